"""Kernel of the program."""

import triton
import triton.language as tl

from dejavu_cache import Pow2, cached_autotune


@cached_autotune(
    configs=[
        triton.Config({"BLOCK": block}, num_warps=warps)
        for block in (256, 512, 1024)
        for warps in (2, 4)
    ],
    key=["n"],
    buckets={"n": Pow2(max=1 << 24)},
)
@triton.jit
def scale(x_ptr, y_ptr, factor, n, BLOCK: tl.constexpr):
    """Compute y[n] = x[n] * factor."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor, mask=at < n)
