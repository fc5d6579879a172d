"""Compile functions that launch tuned kernels for a pretended GPU, and print Inductor's configs.

Tensors lie on the CPU; the code that Inductor generates for kernels is noted and not run.
"""

import contextlib
import re
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils._triton
import triton
import triton.language as tl
from support.pretended_gpu import LAUNCHED  # replaces the driver, too
from triton.runtime import driver

import dejavu_cache
from dejavu_cache import Pow2, cached_autotune
from dejavu_cache.model.record import Pin, Record
from dejavu_cache.model.scenario import now
from dejavu_cache.triton_internals.config_names import describe

CONFIGS = [triton.Config({"B": block}, num_warps=warps) for block in (64, 128) for warps in (2, 4)]
SOURCES: list[str] = []
BENCHMARKED: list[int] = []


def bench(kernel_call: Any, quantiles: Any) -> list[float]:
    kernel_call()
    BENCHMARKED.append(1)
    return [1.0 if len(BENCHMARKED) % 4 == 3 else 9.0] * 3


def make(**options: Any) -> Any:
    @triton.jit
    def add(x, out, n, B: tl.constexpr):
        at = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

    options = {"check": False, **options}  # nothing is computed
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
    return configs_of_call(call_of(kernel), **options)


def configs_of_call(call: Any, *more: torch.Tensor, **options: Any) -> list[str]:
    torch._dynamo.reset()
    SOURCES.clear()
    torch.compile(call, fullgraph=True, **options)(torch.ones(1000), *more)
    (text,) = re.findall(r"configs=\[(.*)\],", SOURCES[0])
    return re.findall(r"'B': (\d+), 'num_warps': (\d+)", text)


def disable_caches() -> None:
    """Have this thread compile each graph anew."""
    torch._inductor.config.force_disable_caches = True


def print_cached_graph(subject: str) -> None:
    """Compile with Inductor's cache of graphs, and print the configs and whether it had a graph."""
    counters = torch._dynamo.utils.counters["inductor"]
    before = counters["fxgraph_cache_hit"]
    with torch._inductor.config.patch(force_disable_caches=False):
        configs = configs_of(make())
    source = "cached" if counters["fxgraph_cache_hit"] > before else "compiled"
    print(subject, source, configs if len(configs) == 1 else len(configs))


def pin(kernel: Any, config: triton.Config) -> None:
    """Pin a config in place of what was recorded."""
    request = kernel.request(torch.ones(1000), torch.ones(1000), 1000)
    kernel.home.delete(request.context)
    pinned = Record(scenario=request.scenario, pin=Pin(config=describe(config), at=now(), by="a@b"))
    kernel.home.put(request.context, [pinned])


def look_ups_of_data_dependent_size(kernel: Any) -> list[Any]:
    """Return the sizes that are looked up where a tensor's content is a key argument."""
    sizes: list[Any] = []
    kernel.look_up = lambda **arguments: sizes.append(arguments["n"])

    def call(x: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        kernel[(8,)](x, out, size.item())
        return out

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        configs_of_call(call, torch.tensor(1000))
    return sizes


class Launching(torch.nn.Module):
    """A module that calls a function which launches a kernel."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor) -> Any:
        return self.call(x)


def operator_of(kernel: Any, name: str) -> Any:
    """Return a kernel's launch as an operator of PyTorch's."""

    @torch.library.triton_op(f"compile_tuned_kernel::{name}", mutates_args={})
    def operator(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        launch = torch.library.wrap_triton(kernel)
        launch[lambda meta: (triton.cdiv(x.numel(), meta["B"]),)](x, out, x.numel())
        return out

    return operator


class PassesDoneError(BaseException):
    """Ends a compilation ahead of time after Inductor's passes: the rest of it needs a GPU."""


def packaged_configs(call: Any, *, strict: bool = False, dynamic: bool = False) -> list[Any]:
    """Return the configs of the kernel in a program that AOTInductor compiles."""
    wrapper = torch._higher_order_ops.triton_kernel_wrap
    configs: list[Any] = []

    def note_configs(graph: Any) -> None:
        for node in graph.nodes:
            if "kernel_idx" in node.kwargs:
                kernel = wrapper.kernel_side_table.get_kernel(node.kwargs["kernel_idx"])
                configs.extend((c.kwargs["B"], c.num_warps) for c in kernel.configs)
        raise PassesDoneError

    torch._dynamo.reset()
    shapes = ({0: torch.export.Dim("n", min=600, max=1000)},) if dynamic else None
    noting = torch._inductor.config.patch(post_grad_custom_post_pass=note_configs)
    program = torch.export.export(
        Launching(call), (torch.ones(1000),), strict=strict, dynamic_shapes=shapes
    )
    with noting, contextlib.suppress(PassesDoneError):
        torch._inductor.aoti_compile_and_package(program)
    return configs


def prepare() -> None:
    """Make Inductor believe that CPU tensors can be given to Triton's kernels."""
    import torch._inductor.async_compile as async_compile

    driver.active.get_active_torch_device = lambda: torch.device("cpu")
    torch.utils._triton.has_triton = lambda *_, **__: True
    torch.utils._triton.has_triton_package = lambda *_, **__: True
    async_compile.AsyncCompile.triton = note_source


dejavu_cache.install()
prepare()
disable_caches()
tuned, bucketed = make(), make(buckets={"n": Pow2()})
call_of(tuned)(torch.ones(1000))
call_of(bucketed)(torch.ones(1000))
before = len(BENCHMARKED)
print("tuned", configs_of(tuned))
print("symbolic, bucket", configs_of(bucketed, dynamic=True))
print("symbolic, exact", len(configs_of(tuned, dynamic=True)))
print("untuned", len(configs_of(make(store="memory://"))))
exact, by_bucket = operator_of(tuned, "exact"), operator_of(bucketed, "by_bucket")
print("operator", configs_of_call(exact))
exported = torch.export.export(Launching(exact), (torch.ones(1000),), strict=False)
print("exported", configs_of_call(exported.module()))
print("packaged", packaged_configs(call_of(tuned), strict=True), packaged_configs(exact))
print("packaged, symbolic, bucket", packaged_configs(by_bucket, dynamic=True))
print("packaged, symbolic, exact", len(packaged_configs(exact, dynamic=True)))
print("data-dependent", look_ups_of_data_dependent_size(make(buckets={"n": Pow2()})))
with ThreadPoolExecutor(1, initializer=disable_caches) as thread:
    print("thread", thread.submit(configs_of, tuned).result())
    torch._dynamo.reset()
    launched = torch.export.export(Launching(call_of(tuned)), (torch.ones(1000),), strict=True)
    LAUNCHED.clear()
    torch.compile(launched.module())(torch.ones(1000))
    print(
        "exported launch",
        [(kernel.constant("B"), kernel.src.fn is tuned.fn) for kernel in LAUNCHED],
    )
    print_cached_graph("first")
    print_cached_graph("again")
    pin(tuned, CONFIGS[1])
    print_cached_graph("pinned")
    print_cached_graph("pinned, again")
    tuned.home.delete(tuned.context)
    print_cached_graph("deleted")
    print_cached_graph("deleted, again")
    dejavu_cache.uninstall()
    print("uninstalled", len(configs_of(tuned)), len(thread.submit(configs_of, tuned).result()))
print("benchmarked", len(BENCHMARKED) - before)
