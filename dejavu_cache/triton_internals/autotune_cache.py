"""Keys of the results that Triton's own autotuner keeps on disk (`cache_results=True`)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from .compiler_settings import code_generation_variables
from .environment import backend_hash, current_target

__all__ = ["disk_cache_key"]


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
