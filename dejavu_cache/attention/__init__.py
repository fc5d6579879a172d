"""Paged attention in Triton, tuned through the cache.

The kernels are those of "The Anatomy of a Triton Attention Kernel" (Ringlein et al., 2025), one per file; the
numbers in their docstrings are its sections.
"""

from __future__ import annotations

from .api import IMPLEMENTATIONS, paged_attention

__all__ = ["IMPLEMENTATIONS", "paged_attention"]
