"""Binding a launch as Triton does, up to where it would compile: no GPU, no tensors."""

import dataclasses
from functools import cache
from types import SimpleNamespace
from typing import Any

from triton.runtime import jit

from dejavu_cache.triton_internals.compilation import binary_key, source_class
from dejavu_cache.triton_internals.environment import backend_for


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
    _, signature, constants, attrs = fn._pack_args(backend, options, arguments, specialization, {})
    source = source_class(fn)(fn, signature, constants, attrs)
    metadata = {
        **dataclasses.asdict(parsed),
        "target": target,
        "hash": binary_key(source, backend, parsed),
    }
    return source, SimpleNamespace(**metadata)
