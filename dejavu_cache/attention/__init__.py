"""Paged attention in Triton, tuned through the cache.

The kernels follow "The Anatomy of a Triton Attention Kernel" (Ringlein et al., 2025), one per file;
the section numbers in their docstrings are those of the paper. `suite` lists the cases that
`dejavu-cache sweep dejavu_cache.attention` tunes.
"""

from typing import Any

from .api import IMPLEMENTATIONS, Plan, paged_attention, plan
from .batch import NewTokens

__all__ = ["IMPLEMENTATIONS", "NewTokens", "Plan", "paged_attention", "plan", "suite"]


def __getattr__(name: str) -> Any:
    if name == "suite":  # imported lazily, because a launch does not need the code of sweeps
        from .sweep_suite import suite

        return suite
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
