"""Tiled matrix product, the kernel of the demo."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dejavu_cache import Pow2, cached_autotune


def configs() -> list[triton.Config]:
    """Return tile shapes; a few suffice under the interpreter, which is slow."""
    tiles = (
        [(16, 16), (32, 32)]
        if triton.knobs.runtime.interpret
        else [(64, 64), (128, 64), (128, 128), (128, 256)]
    )
    return [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 32}, num_warps=warps, num_stages=3)
        for m, n in tiles
        for warps in (4, 8)
    ]


@cached_autotune(configs=configs(), key=["M", "N", "K"], buckets={"M": Pow2(min=16, max=8192)})
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
    """Compute c[M, N] = a[M, K] @ b[K, N], all contiguous."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a = tl.load(
            a_ptr + rows[:, None] * K + inner[None, :],
            mask=(rows[:, None] < M) & (inner[None, :] < K),
            other=0.0,
        )
        b = tl.load(
            b_ptr + inner[:, None] * N + columns[None, :],
            mask=(inner[:, None] < K) & (columns[None, :] < N),
            other=0.0,
        )
        total += tl.dot(a, b)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(
        c_ptr + rows[:, None] * N + columns[None, :], total.to(c_ptr.dtype.element_ty), mask=inside
    )


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply two contiguous matrices, [M, K] and [K, N]."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.full((m, n), float("nan"), device=a.device, dtype=a.dtype)
    matmul_kernel[lambda meta: (triton.cdiv(m, meta["BLOCK_M"]), triton.cdiv(n, meta["BLOCK_N"]))](
        a, b, c, m, n, k
    )
    return c
