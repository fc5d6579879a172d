"""A kernel whose instructions depend on how an architecture converts float8."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def widen(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at).to(tl.bfloat16))
