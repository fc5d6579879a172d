"""Identities of a kernel whose heuristic a test writes."""

from __future__ import annotations

from pathlib import Path

from dejavu_cache.triton_internals.identity import KernelIdentity, identify
from support.kernels import load

__all__ = ["HEAD", "KERNEL", "identity_of"]

HEAD = """
import contextlib, datetime, functools, itertools, math, operator, os, random, time, warnings
from pathlib import Path
from typing import Any
import torch, triton, triton.language as tl
"""
KERNEL = """
@triton.heuristics({"B": block})
@triton.jit
def k(x, n, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), B)
"""


def identity_of(folder: Path, heuristic: str) -> KernelIdentity:
    """Return the identity of a kernel with a heuristic `block`, of which this is the source."""
    module = load(folder / f"kernel{abs(hash(heuristic))}.py", HEAD + heuristic + KERNEL)
    return identify(module.k, [])
