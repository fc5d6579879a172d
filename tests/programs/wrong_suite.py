"""A suite of one kernel in which the fastest config is wrong, and any may become SLOWER."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from dejavu_cache import cached_autotune
from dejavu_cache.sweep.suite import Case

MILLISECONDS = {32: 0.1, 1024: 1.0, 2048: 2.0}
if "SLOWER" in os.environ:
    MILLISECONDS[int(os.environ["SLOWER"])] *= 9
CONFIGS = [triton.Config({"LIMIT": limit}) for limit in (2048, 32, 1024)]


def bench(kernel_call: Any, quantiles: Any) -> list[float]:
    """Launch, and return the time by the kernel's LIMIT, which the launch wrote down."""
    kernel_call()
    return [MILLISECONDS[int(CALLS[-1])]] * 3


CALLS: list[int] = []


def remember(arguments: dict[str, Any], reset_only: bool = False) -> None:
    """Note which config is launched."""
    CALLS.append(arguments["LIMIT"])


@cached_autotune(CONFIGS, ["n"], do_bench=bench, pre_hook=remember, check=True)
@triton.jit
def total(x_ptr: Any, out_ptr: Any, n: Any, LIMIT: tl.constexpr) -> None:
    """Sum n numbers; a config whose LIMIT is less than n leaves some out."""
    accumulator = 0.0
    for start in range(0, LIMIT, 32):
        at = start + tl.arange(0, 32)
        accumulator += tl.sum(tl.load(x_ptr + at, mask=at < n, other=0.0))
    tl.store(out_ptr, accumulator)


def arguments(n: int) -> dict[str, Any]:
    """Return the arguments of a launch on n random numbers."""
    return {"x_ptr": torch.rand(n), "out_ptr": torch.zeros(1), "n": n}


def suite() -> Iterator[Case]:
    """Return the cases."""
    for n in (900, 1000):
        yield Case(f"n={n}", total, (1,), partial(arguments, n))
