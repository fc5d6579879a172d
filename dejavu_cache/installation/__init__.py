"""Replace `triton.autotune` in programs that do not know this package."""

from __future__ import annotations

import importlib
import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    """Return what this package exported while it was a module."""
    if name not in ("AdoptedAutotuner", "install", "uninstall"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"{__name__}.{name} has moved to {__name__}.autotune_replacement",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(importlib.import_module(".autotune_replacement", __name__), name)
