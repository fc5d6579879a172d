"""Add one to tensors of the sizes given, with an autotuned kernel."""

from __future__ import annotations

import sys

import torch
import triton
import triton.language as tl

from dejavu_cache import cached_autotune


@cached_autotune(configs=[triton.Config({"BLOCK": block}) for block in (16, 32)], key=["n"])
@triton.jit
def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


for n in map(int, sys.argv[1:]):
    x = torch.arange(n, dtype=torch.float32)
    y = torch.full_like(x, float("nan"))
    add[(triton.cdiv(n, 16),)](x, y, n)
    assert torch.equal(y, x + 1)
