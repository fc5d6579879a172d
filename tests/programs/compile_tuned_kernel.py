"""Compile functions that launch tuned kernels for a pretended GPU, and print Inductor's configs.

Tensors lie on the CPU; the code that Inductor generates for kernels is noted and not run.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import support.pretended_gpu  # noqa: F401 - replaces the driver
import torch
import torch.utils._triton
import triton
import triton.language as tl
from triton.runtime import driver

import dejavu_cache
from dejavu_cache import Pow2, cached_autotune

CONFIGS = [triton.Config({"B": block}, num_warps=warps) for block in (64, 128) for warps in (2, 4)]
SOURCES: list[str] = []
BENCHMARKED: list[int] = []


def bench(kernel_call: Any, quantiles: Any) -> list[float]:
    kernel_call()
    BENCHMARKED.append(1)
    return [1.0 if len(BENCHMARKED) % 4 == 3 else 9.0] * 3


def prune(configs: list[Any], named: dict[str, Any], **_: Any) -> list[Any]:
    return configs[:2]


def make(**options: Any) -> Any:
    @triton.jit
    def add(x, out, n, B: tl.constexpr):
        at = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

    return cached_autotune(configs=CONFIGS, key=["n"], do_bench=bench, **options)(add)


def call_of(kernel: Any) -> Any:
    def call(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        kernel[lambda meta: (triton.cdiv(x.numel(), meta["B"]),)](x, out, x.numel())
        return out

    return call


def note_source(self: Any, name: str, source: str, device_str: str = "cuda") -> Any:
    SOURCES.append(source)
    return SimpleNamespace(run=lambda *_, **__: None)


def configs_of(kernel: Any, **options: Any) -> list[str]:
    torch._dynamo.reset()
    SOURCES.clear()
    torch.compile(call_of(kernel), fullgraph=True, **options)(torch.ones(1000))
    (text,) = re.findall(r"configs=\[(.*)\],", SOURCES[0])
    return re.findall(r"'B': (\d+), 'num_warps': (\d+)", text)


def prepare() -> None:
    """Make Inductor believe that CPU tensors can be given to Triton's kernels."""
    import torch._inductor.async_compile as async_compile

    active = driver.active
    active.get_active_torch_device = lambda: torch.device("cpu")
    active.get_benchmarker = lambda: lambda call, quantiles=None, **_: call()
    active.utils = SimpleNamespace(
        get_device_properties=lambda _: {
            "max_shared_mem": 232448,
            "multiprocessor_count": 132,
            "max_num_regs": 65536,
            "warpSize": 32,
        }
    )
    torch.utils._triton.has_triton = lambda *_, **__: True
    torch.utils._triton.has_triton_package = lambda *_, **__: True
    async_compile.AsyncCompile.triton = note_source


dejavu_cache.install()
prepare()
torch._inductor.config.force_disable_caches = True
tuned, bucketed = make(), make(buckets={"n": Pow2()})
call_of(tuned)(torch.ones(1000))
call_of(bucketed)(torch.ones(1000))
before = len(BENCHMARKED)
print("tuned", configs_of(tuned))
print("symbolic, bucket", configs_of(bucketed, dynamic=True))
print("symbolic, exact", len(configs_of(tuned, dynamic=True)))
print("untuned", len(configs_of(make(store="memory://"))))
dejavu_cache.uninstall()
print("uninstalled", len(configs_of(tuned)))
print("benchmarked", len(BENCHMARKED) - before)
