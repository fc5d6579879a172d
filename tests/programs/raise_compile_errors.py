"""Print how kernels that do not compile end, with Triton alone and with records."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import support.pretended_gpu  # noqa: F401 - replaces the driver
import torch
import triton
import triton.compiler
import triton.language as tl
from triton.backends.compiler import GPUTarget

from dejavu_cache import cached_autotune
from dejavu_cache.stores import MemoryStore

_compile = importlib.import_module("triton.compiler.compiler").compile
_pretend = triton.compiler.compile


def _check_and_pretend(src: Any, target: Any = None, options: Any = None, **_: Any) -> Any:
    _compile(src, target=GPUTarget("cuda", 90, 32), options=options)
    return _pretend(src, target, options)


triton.compiler.compile = _check_and_pretend


@triton.jit
def name_nothing(x, n, BLOCK: tl.constexpr):
    tl.store(x + nothing_has_this_name, 1)  # type: ignore[name-defined]  # noqa: F821


@triton.jit
def refuse_blocks(x, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK == 7, "BLOCK must be 7")


@triton.jit
def multiply_scalars(x, n, BLOCK: tl.constexpr):
    tl.store(x, tl.dot(n, n))


def bench(call: Callable[[], None], quantiles: Any = None) -> list[float]:
    call()
    return [1.0] * 3


for kernel in (name_nothing, refuse_blocks, multiply_scalars):
    for decorate in (triton.autotune, partial(cached_autotune, store=MemoryStore())):
        configs = [triton.Config({"BLOCK": block}) for block in (16, 32)]
        tuned: Any = decorate(configs, ["n"], do_bench=bench)(kernel)
        for _ in range(2):
            try:
                tuned[(1,)](torch.empty(64), 3)
            except Exception as error:
                frames = [each.filename for each in traceback.extract_tb(error.__traceback__)]
                own = sum("/dejavu_cache/" in name for name in frames)
                print(type(error).__name__, error, repr(error.__cause__), own)
    print("---")
