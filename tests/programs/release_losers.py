"""Tune an addition that is compiled for an absent GPU; print which kernels are in memory.

Prints JSON with the blocks of all compiled kernels that are alive, and the bytes of their binaries
and texts: when the program has launched block 256 by itself, at the tune's last measurement, after
the tune, and after a launch of block 128, which lost.
"""

from __future__ import annotations

import gc
import json
from types import SimpleNamespace

import torch
import triton
import triton.language as tl
from support import pretended_gpu  # noqa: F401 - replaces the driver
from triton.compiler import compiler

from dejavu_cache import cached_autotune

triton.compiler.compile = compiler.compile  # the real one again
driver = triton.runtime.driver.active
driver.utils = SimpleNamespace(
    get_device_properties=lambda device: {"max_shared_mem": 232448},
    load_binary=lambda *binary: (object(), 0, 0, 0, 1024),
)
driver.launcher_cls = lambda src, metadata: lambda *arguments: None
compiled = compiler.CompiledKernel
reports: list[dict[str, object]] = []


@triton.jit
def add_one(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


def report():
    gc.collect()
    kernels = [kernel for kernel in gc.get_objects() if type(kernel) is compiled]
    blocks = sorted(kernel.src.constants[2,] for kernel in kernels)
    size = sum(len(text) for kernel in kernels for text in kernel.asm.values())
    reports.append({"blocks": blocks, "bytes": size})


def bench(kernel_call, quantiles):
    kernel_call()
    calls.append(None)
    if len(calls) == len(CONFIGS):
        report()
    return [1.0 + len(calls) % 4] * 3  # the last but one, block 512, is the fastest


calls: list[None] = []
CONFIGS = [triton.Config({"BLOCK": block}) for block in (64, 128, 256, 512, 1024)]
x = torch.zeros(4096)
kernel = cached_autotune(configs=CONFIGS, key=["n"], do_bench=bench, check=False)(add_one)
add_one[(1,)](x, 4096, BLOCK=256, num_warps=4, num_ctas=1, num_stages=3)
report()
kernel[(1,)](x, 4096)
report()
add_one[(1,)](x, 4096, BLOCK=128, num_warps=4, num_ctas=1, num_stages=3)
report()
kernel[(1,)](x, 4096)
print(json.dumps({"best": kernel.best_config.kwargs["BLOCK"], "reports": reports}))
