"""A matrix product that refuses one block size when it is compiled."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(
    a_ptr, b_ptr, c_ptr, K,
    BLOCK: tl.constexpr, TILE: tl.constexpr, LIMIT: tl.constexpr = 0,
):  # fmt: skip
    tl.static_assert(BLOCK != 32, "32 is refused")
    rows, inner = tl.arange(0, TILE), tl.arange(0, BLOCK)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        a = tl.load(a_ptr + rows[:, None] * K + start + inner[None, :])
        b = tl.load(b_ptr + (start + inner)[:, None] * TILE + rows[None, :])
        total = tl.dot(a, b, total)
    tl.store(c_ptr + rows[:, None] * TILE + rows[None, :], total.to(tl.float16))
