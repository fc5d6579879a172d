"""A kernel that adds one, to be decorated in many ways."""

from __future__ import annotations

import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32, 64)]


@triton.jit
def add_one(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)
