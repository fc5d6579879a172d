"""Tune under one of Triton's settings, then under another; print which binaries were timed.

And how many of the earlier ones are still held, as a CUDA graph that launches them needs.
"""

from __future__ import annotations

import gc
import os
import weakref
from typing import Any

import torch
import triton
import triton.language as tl
from support import pretended_gpu

from dejavu_cache import cached_autotune

SETTING = "DISABLE_LLVM_OPT"
CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32)]
compile_kernel: Any = triton.compiler.compile


def compile_and_note(*args: Any, **kwargs: Any) -> Any:
    kernel = compile_kernel(*args, **kwargs)
    kernel.compiled_under = os.environ.get(SETTING, "default")
    if SETTING not in os.environ:
        earlier.append(weakref.ref(kernel))
    return kernel


def bench(kernel_call: Any, quantiles: Any) -> list[float]:
    kernel_call()
    timed.append(pretended_gpu.LAUNCHED[-1].compiled_under)  # type: ignore[attr-defined]
    return [1.0] * 3


@cached_autotune(configs=CONFIGS, key=["n"], do_bench=bench, check=False, store="memory://")
@triton.jit
def add_one(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


triton.compiler.compile = compile_and_note
timed: list[str] = []
earlier: list[weakref.ref[Any]] = []
x = torch.zeros(64)
add_one[(1,)](x, 1)
add_one[(1,)](x, 33)
os.environ[SETTING] = "1"
add_one[(1,)](x, 33)  # keeps its config, and its binary as with Triton
add_one[(1,)](x, 35)
add_one[(1,)](x, 37)
pretended_gpu.LAUNCHED.clear()
add_one.forget_choices()
gc.collect()
held = sum(kernel() is not None for kernel in earlier)
del os.environ[SETTING]
add_one[(1,)](x, 39)
print(" ".join(timed), held)
