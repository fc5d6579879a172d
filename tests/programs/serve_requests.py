"""Serve launches on a pretended GPU: print what was benchmarked and compiled while serving.

Arguments: a folder for records.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import support.pretended_gpu
import torch
import triton
import triton.compiler
import triton.language as tl

import dejavu_cache
from dejavu_cache.model.record import Pin, Record
from dejavu_cache.model.scenario import now
from dejavu_cache.stores import open_store

compile_pretended = triton.compiler.compile
COMPILED: list[int] = []
BENCHMARKED: list[str] = []
CONFIGS = [triton.Config({"B": block}) for block in (16, 32, 64)]


def compile_and_count(src: Any, target: Any = None, options: Any = None, **_: Any) -> Any:
    COMPILED.append(src.constants.get((2,), 0))
    return compile_pretended(src, target, options)


triton.compiler.compile = compile_and_count


def bench(kernel_call: Any, quantiles: Any) -> list[float]:
    BENCHMARKED.append("")
    kernel_call()
    return [1.0, 1.0, 1.0]


def body(x, n, B: tl.constexpr):
    tl.store(x, n)


def clear(x):
    tl.store(x, 0)


def blocks(kernel: Any, *sizes: int, dtype: torch.dtype = torch.float32) -> list[int]:
    """Launch with each size; return the blocks that ran."""
    before = len(support.pretended_gpu.LAUNCHED)
    for n in sizes:
        kernel[(1,)](torch.empty(64, dtype=dtype), n)
    return [ran.constant("B") for ran in support.pretended_gpu.LAUNCHED[before:]]


def take_counts() -> list[int]:
    counts = [len(BENCHMARKED), len(COMPILED)]
    BENCHMARKED.clear()
    COMPILED.clear()
    return counts


def make(mode: Any) -> Any:
    return dejavu_cache.cached_autotune(
        configs=CONFIGS, key=["n"], do_bench=bench, store=sys.argv[1], mode=mode, check=False
    )(triton.jit(body))


report: dict[str, Any] = {}
tuned = make("tune")
with dejavu_cache.warmup():
    blocks(tuned, 32)
take_counts()
phase = dejavu_cache.serving()
report["untuned"] = blocks(tuned, 32, 48, 48, 64), take_counts()
with dejavu_cache.warmup():
    report["warmed again"] = len(blocks(tuned, 80)) > 1, take_counts()[0]
blocks(tuned, 32, dtype=torch.float16)  # nothing in memory fits these arguments
report["unavoidable"] = take_counts()
phase.end()
report["ended"] = take_counts() if not blocks(tuned, 96) else take_counts()[0]

# A recorded config that this process has not compiled gives way to one that it has.
other = make("reuse")
first = blocks(other, 32)
request = other.request(torch.empty(64), 112)
unlike = next(
    config for config in request.declared if request.declared[config].kwargs["B"] != first[0]
)
pin = Pin(config=unlike, by="somebody", at=now())
open_store(sys.argv[1]).put(request.context, [Record(scenario=request.scenario, pin=pin)])
take_counts()
with dejavu_cache.serving():
    report["stand-in"] = blocks(other, 112) == first, take_counts()
report["chosen afterwards"] = blocks(make("reuse"), 112) == [unlike.params["B"]]

# A config's hook launches a kernel of its own, which is not compiled for its arguments yet.
cleared, scratch = triton.jit(clear), [torch.empty(64)]


def clear_scratch(args: Any) -> None:
    cleared[(1,)](scratch[0])


hooked = dejavu_cache.cached_autotune(
    configs=[triton.Config(config.kwargs, pre_hook=clear_scratch) for config in CONFIGS],
    key=["n"],
    store=sys.argv[1],
    mode="reuse",
)(triton.jit(body))
hooked[(1,)](torch.empty(64), 32)
scratch[0] = torch.empty(64, dtype=torch.float16)
with dejavu_cache.serving():
    before = len(support.pretended_gpu.LAUNCHED)
    hooked[(1,)](torch.empty(64), 32)
    launched = support.pretended_gpu.LAUNCHED[before:]
report["hooked"] = [ran.src.fn.__name__ for ran in launched]


class Silent:
    """Stands between an autotuner and its function, and returns nothing."""

    def __init__(self, fn: Any) -> None:
        self.fn, self.arg_names = fn, fn.arg_names

    def run(self, *args: Any, **kwargs: Any) -> None:
        self.fn.run(*args, **kwargs)


silent = dejavu_cache.cached_autotune(
    configs=CONFIGS, key=["n"], store=sys.argv[1], mode="reuse", check=False
)(Silent(triton.jit(body)))
blocks(silent, 32)
with dejavu_cache.serving():
    report["silent"] = len(blocks(silent, 32)), len(blocks(silent, 32, dtype=torch.float16))

off = make("off")
take_counts()
with dejavu_cache.serving():
    report["off"] = blocks(off, 32, 48), take_counts()[0]
print(json.dumps(report))
