"""A tune leaves the kernel of the winner in memory, and no others of its own."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.processes import in_own_process

from dejavu_cache import cached_autotune
from dejavu_cache.triton_internals.compilation import keys_in_memory, release_later


@triton.jit
def add_one(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


def make(bench: Any, *blocks: int) -> Any:
    configs = [triton.Config({"BLOCK": block}) for block in blocks]
    return cached_autotune(configs, ["n"], do_bench=bench, check=False)(add_one)


@in_own_process(TRITON_INTERPRET="0")
def test_the_kernels_of_configs_that_lost_are_released(tmp_path: str) -> None:
    """Look at all compiled kernels that are alive, when they are compiled for an absent GPU."""
    import support.pretended_gpu  # replaces the driver
    from triton.compiler import compiler

    triton.knobs.cache.dir = tmp_path
    triton.compiler.compile = compiler.compile  # the real one again
    assert support.pretended_gpu.LAUNCHED == []
    driver = triton.runtime.driver.active
    driver.utils = SimpleNamespace(
        get_device_properties=lambda device: {"max_shared_mem": 232448},
        load_binary=lambda *binary: (object(), 0, 0, 0, 1024),
    )
    driver.launcher_cls = lambda src, metadata: lambda *arguments: None
    while_tuning: list[Any] = []
    calls: list[None] = []
    x = torch.zeros(4096)

    def in_memory() -> tuple[list[int], int]:
        """Return the blocks of the kernels, and the bytes of their binaries and texts."""
        gc.collect()
        alive = [one for one in gc.get_objects() if type(one) is compiler.CompiledKernel]
        size = sum(len(text) for kernel in alive for text in kernel.asm.values())
        return sorted(kernel.src.constants[2,] for kernel in alive), size

    def bench(kernel_call: Any, quantiles: Any) -> list[float]:
        kernel_call()
        calls.append(None)
        while_tuning[:] = in_memory() if len(calls) == 5 else ()
        return [1.0 + len(calls) % 4] * 3  # the last but one, block 512, is the fastest

    def launch_by_itself(block: int) -> None:
        add_one[(1,)](x, 4096, BLOCK=block, num_warps=4, num_ctas=1, num_stages=3)

    kernel = make(bench, 64, 128, 256, 512, 1024)
    launch_by_itself(256)
    assert in_memory()[0] == [256]
    kernel[(1,)](x, 4096)
    assert kernel.best_config.kwargs == {"BLOCK": 512}
    assert while_tuning[0] == [64, 128, 256, 512, 1024]
    left, size = in_memory()
    assert left == [256, 512], "the program's own, and the winner"
    assert size < 0.7 * while_tuning[1]
    launch_by_itself(128)
    assert in_memory()[0] == [128, 256, 512], "a config that lost can still be launched"
    kernel[(1,)](x, 4096)


@in_own_process(TRITON_INTERPRET="0", DEJAVU_CACHE_URL="memory://", DEJAVU_CACHE_SHIPPED="0")
def test_binaries_of_other_settings_are_not_timed() -> None:
    """Triton launches what is in memory, also after a setting has changed that changes the code."""
    from support.pretended_gpu import LAUNCHED

    setting, really = "DISABLE_LLVM_OPT", triton.compiler.compile
    timed: list[str] = []
    earlier: list[Any] = []

    def compile_and_note(*arguments: Any, **options: Any) -> Any:
        kernel = really(*arguments, **options)
        kernel.compiled_under = os.environ.get(setting, "default")
        if setting not in os.environ:
            earlier.append(weakref.ref(kernel))
        return kernel

    def bench(kernel_call: Any, quantiles: Any) -> list[float]:
        kernel_call()
        timed.append(LAUNCHED[-1].compiled_under)  # type: ignore[attr-defined]
        return [1.0] * 3

    triton.compiler.compile = compile_and_note
    kernel, x = make(bench, 16, 32), torch.zeros(64)
    for n in (1, 33):
        kernel[(1,)](x, n)
    os.environ[setting] = "1"
    for n in (33, 35, 37):  # the first one keeps its config, and its binary as with Triton
        kernel[(1,)](x, n)
    LAUNCHED.clear()
    kernel.forget_choices()
    gc.collect()
    assert any(held() is not None for held in earlier), "a CUDA graph may have captured them"
    del os.environ[setting]
    kernel[(1,)](x, 39)
    assert timed == ["default"] * 4 + ["1"] * 4 + ["default"] * 2


def test_tunes_of_two_threads_may_release_the_same_kernels(
    request: pytest.FixtureRequest,
) -> None:
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    function: Any = SimpleNamespace(device_caches={0: ({},)})
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            earlier = keys_in_memory(function)
            function.device_caches[0][0].update({number: object() for number in range(3000)})
            list(pool.map(release_later, [function] * 2, [earlier] * 2, [None] * 2))
            assert not function.device_caches[0][0]
