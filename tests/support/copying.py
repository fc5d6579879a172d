"""A kernel that copies numbers, by configs that are right or fast because they leave some out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from dejavu_cache import cached_autotune
from support.addition import Bench

DEFAULT, RIGHT, WRONG = (
    triton.Config({"STEP": 1, "LIMIT": 1024}),
    triton.Config({"STEP": 2, "LIMIT": 1024}),
    triton.Config({"STEP": 3, "LIMIT": 4}),
)


@triton.jit
def copy(x_ptr, out_ptr, n, STEP: tl.constexpr, LIMIT: tl.constexpr):
    """Copy n numbers; a config whose LIMIT is less than n leaves some out."""
    at = tl.arange(0, 128)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=(at < n) & (at < LIMIT))


def decorate(folder: Path, configs: list[triton.Config], *times: float, **options: Any) -> Any:
    """Return the kernel as a new process would decorate it; times are those of the configs."""
    bench = Bench(times or (2.0, 1.0))
    return cached_autotune(configs, ["n"], store=folder, do_bench=bench, **options)(copy)


def launch(kernel: Any, n: int = 100) -> bool:
    """Launch, and return whether the results are right."""
    x, out = torch.rand(128), torch.zeros(128)
    kernel[(1,)](x, out, n)
    return bool(torch.equal(out[:n], x[:n]))


def explain(kernel: Any, n: int = 100) -> Any:
    return kernel.explain(torch.rand(128), torch.zeros(128), n)
