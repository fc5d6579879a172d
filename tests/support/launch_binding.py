"""Binding a launch as Triton does, up to where it would compile: no GPU, no tensors."""

from __future__ import annotations

import dataclasses
from functools import cache
from types import SimpleNamespace
from typing import Any

from triton.runtime import jit

from dejavu_cache.triton_internals.compilation import binary_key, source_class
from dejavu_cache.triton_internals.environment import backend_for

__all__ = ["Pointer", "bind_launch"]


@cache
class Dtype:
    """A dtype by its name, which is all that Triton asks for: torch takes seconds to import.

    There is one of each, as in torch: Triton remembers them by their identity.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


class Pointer:
    """A tensor's type and alignment."""

    def __init__(self, dtype: str, address: int = 4096) -> None:
        self.dtype, self.place = Dtype(dtype), address

    def data_ptr(self) -> int:
        return self.place


def bind_launch(
    fn: Any, target: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Any, Any]:
    """Return the source and metadata of a launch, as `JITFunction.run` makes them."""
    backend = backend_for(target)
    binder = jit.create_function_from_signature(fn.signature, fn.params, backend)
    arguments, specialization, _ = binder(*args, **options)
    parsed = backend.parse_options({"debug": False, **options})
    if hasattr(fn, "_pack_args"):
        _, signature, constants, attrs = fn._pack_args(
            backend, options, arguments, specialization, {}
        )
        return _source_and_metadata(fn, signature, constants, attrs, backend, target, parsed)
    # Triton 3.4
    types = [pair[0] for pair in specialization]
    specialized = [pair[1] for pair in specialization]
    find, get = jit.find_paths_if, jit.get_iterable_path
    values = list(arguments.values())
    constants = {
        path: get(values, path) for path in find(types, lambda _, item: item == "constexpr")
    }
    attrs = {
        path: backend.parse_attr(get(specialized, path))
        for path in find(specialized, lambda _, item: isinstance(item, str))
    }
    return _source_and_metadata(
        fn, dict(zip(fn.arg_names, types, strict=True)), constants, attrs, backend, target, parsed
    )


def _source_and_metadata(
    fn: Any, signature: Any, constants: Any, attrs: Any, backend: Any, target: Any, parsed: Any
) -> tuple[Any, Any]:
    source = source_class(fn)(fn, signature, constants, attrs)
    metadata = {
        **dataclasses.asdict(parsed),
        "target": target,
        "hash": binary_key(source, backend, parsed),
    }
    return source, SimpleNamespace(**metadata)
