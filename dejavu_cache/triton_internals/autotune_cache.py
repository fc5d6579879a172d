"""Keys by which Triton's own autotuner keeps results, in memory and on disk."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .compiler_settings import code_generation_variables
from .environment import backend_hash, current_target

__all__ = ["disk_cache_key", "launch_key"]


def launch_key(
    autotuner: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    replacements: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Any, ...]:
    """Return a launch's key in `Autotuner.cache`, as `Autotuner.run` makes it.

    Args:
        autotuner: Triton's `Autotuner`.
        args: the launch's positional arguments.
        kwargs: its keyword arguments.
        replacements: values of key arguments that count in place of the launch's own.
    """
    names = autotuner.arg_names
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    arguments = {name: value for name, value in arguments.items() if name in names}
    values = [
        replacements.get(name, arguments[name]) for name in autotuner.keys if name in arguments
    ]
    dtypes = [str(value.dtype) for value in arguments.values() if hasattr(value, "dtype")]
    return (*values, *dtypes)


def disk_cache_key(kernel: Any, key: Sequence[Any], configs: Iterable[Any]) -> str:
    """Return the name of the folder in which `Autotuner.check_disk_cache` keeps a launch's results.

    Args:
        kernel: a jit function, with or without decorators around it.
        key: the launch's key, as `Autotuner.run` makes it.
        configs: the `triton.Config`s that are measured, in order.

    Returns:
        An empty string for interpreted kernels, of which Triton keeps nothing.
    """
    from .versions import triton_key

    while not hasattr(kernel, "cache_key") and hasattr(kernel, "fn"):
        kernel = kernel.fn
    if not hasattr(kernel, "cache_key"):
        return ""
    parts = [
        triton_key(),
        backend_hash(current_target()),
        kernel.cache_key,
        str(sorted(code_generation_variables().items())),
        str(tuple(key)),
        *map(str, configs),
    ]
    digest = hashlib.sha256("-".join(parts).encode()).digest()
    return base64.b32encode(digest).decode().rstrip("=")
