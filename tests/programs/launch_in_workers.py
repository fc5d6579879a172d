"""Launch a script's own kernel in this process and in started ones, and print what was benchmarked.

Started processes import a script as `__mp_main__`, not as `__main__`.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

import torch
import triton
import triton.language as tl

from dejavu_cache import cached_autotune


def bench(kernel_call, quantiles):
    kernel_call()
    return [1.0] * 3


@cached_autotune(
    configs=[triton.Config({"BLOCK": block}) for block in (16, 32)], key=["n"], do_bench=bench
)
@triton.jit
def fill(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), 1.0)


def report(process):
    """Launch the kernel, and print the process's name with the number of configs benchmarked."""
    fill[(1,)](torch.zeros(64), 5)
    print(process, fill.benchmarked, flush=True)


if __name__ == "__main__":
    report("main")
    for method in ("spawn", "forkserver"):
        context: Any = multiprocessing.get_context(method)
        worker = context.Process(target=report, args=(method,))
        worker.start()
        worker.join()
