"""Launch tuned kernels on a pretended device whose backend is neither CUDA nor HIP."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import support.pretended_gpu  # noqa: F401 - replaces the driver
import torch
import triton
import triton.language as tl
from triton.runtime import driver

import dejavu_cache

logging.basicConfig(level=logging.WARNING)
_TARGET = driver.active.get_current_target()


class _OtherTarget(SimpleNamespace):
    """Stands for another backend; CUDA's compiler stands in for the backend's own."""


def body(x, n, B: tl.constexpr):
    tl.store(x, n)


def run(name: str, decorate: Any) -> None:
    benched = []

    def bench(kernel_call: Any, quantiles: Any) -> list[float]:
        benched.append(kernel_call())
        return [1.0, 1.0, 1.0]

    configs = [triton.Config({"B": block}) for block in (16, 32)]
    kernel = decorate(configs=configs, key=["n"], do_bench=bench)(triton.jit(body))
    for _ in range(2):
        kernel[(1,)](torch.empty(64), 5)
    print(name, len(benched), kernel.best_config.kwargs["B"])


def target_for_caller() -> Any:
    """Return the pretended target to this package, and to Triton one that it can compile for."""
    import sys

    caller = sys._getframe(1).f_globals["__name__"]
    return _OtherTarget(backend="xpu", arch="pvc") if caller.startswith("dejavu") else _TARGET


driver.active.get_current_target = target_for_caller
dejavu_cache.install()
run("install", triton.autotune)
run("decorator", dejavu_cache.cached_autotune)
