"""Tune a kernel on a pretended GPU, of whose configs one does not compile, with hooks."""

from __future__ import annotations

from typing import Any

import support.pretended_gpu
import torch
import triton
import triton.compiler
import triton.language as tl
from triton.runtime.errors import OutOfResources

from dejavu_cache import cached_autotune

compile_pretended = triton.compiler.compile
running: list[int] = []
heard: dict[str, list[tuple[int, str]]] = {}


def compile_or_fail(src: Any, target: Any = None, options: Any = None, **_: Any) -> Any:
    if src.constants[(2,)] == 32:
        raise OutOfResources(2, 1, "shared memory")
    return compile_pretended(src, target, options)


def body(x, n, B: tl.constexpr):
    tl.store(x, n)


def bench(kernel_call: Any, quantiles: Any) -> list[float]:
    kernel_call()
    return [1.0, 1.0, 1.0]


def run(name: str, decorate: Any) -> None:
    heard[name] = []

    def before(arguments: dict[str, Any], reset_only: bool = False) -> None:
        if not reset_only:
            running.append(arguments["B"])

    def after(arguments: dict[str, Any], exception: Exception | None) -> None:
        heard[name].append((running.pop(), type(exception).__name__))
        assert not running

    configs = [triton.Config({"B": block}) for block in (16, 32, 64)]
    decorator = decorate(
        configs=configs, key=["n"], do_bench=bench, pre_hook=before, post_hook=after
    )
    decorator(triton.jit(body))[(1,)](torch.empty(64), 3)


assert support.pretended_gpu.LAUNCHED == []
triton.compiler.compile = compile_or_fail
run("triton", triton.autotune)
run("cached", cached_autotune)
print(sorted(heard["triton"]) == sorted(heard["cached"]), sorted(heard["cached"]))
