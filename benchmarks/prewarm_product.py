"""Matrix product that the benchmarks tune, and compile ahead of time; it needs no torch."""

from __future__ import annotations

import triton
import triton.language as tl

from dejavu_cache import cached_autotune


def matmul_configs() -> list[triton.Config]:
    """Return 48 configs, the usual tiles of a matrix product."""
    return [
        triton.Config(
            {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, num_warps=warps, num_stages=stages
        )
        for m in (64, 128)
        for n in (64, 128, 256)
        for k in (32, 64)
        for warps in (4, 8)
        for stages in (3, 4)
    ]


@triton.jit
def matmul_kernel(
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
    """Compute c[M, N] = a[M, K] @ b[K, N]; all sizes are multiples of the blocks."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        a = tl.load(a_ptr + rows[:, None] * K + (start + inner)[None, :])
        b = tl.load(b_ptr + (start + inner)[:, None] * N + columns[None, :])
        total = tl.dot(a, b, total)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], total.to(c_ptr.dtype.element_ty))


product = cached_autotune(configs=matmul_configs(), key=["M", "N", "K"])(matmul_kernel)
