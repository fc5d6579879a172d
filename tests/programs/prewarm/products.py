"""Two kernels with declared configs and one without: what the prewarming tests compile."""

from __future__ import annotations

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
def add_one(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


@cached_autotune(
    configs=[
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 32}, num_warps=4, num_stages=2)
        for m, n in ((32, 32), (64, 32), (64, 64))
    ],
    key=["M", "N", "K"],
    buckets={"M": Pow2(min=16, max=8192)},
)
@triton.jit
def product(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :], mask=rows[:, None] < M, other=0.0)
        b = tl.load(
            b_ptr + inner[:, None] * N + columns[None, :], mask=columns[None, :] < N, other=0.0
        )
        total += tl.dot(a, b)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(
        c_ptr + rows[:, None] * N + columns[None, :], total.to(c_ptr.dtype.element_ty), mask=inside
    )


@triton.jit
def halve(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at) / 2)
