"""Configs compile at once and ahead of launches, and those that lost are let go of."""

import gc
import inspect
import os
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.addition import add_one
from support.compiling_gpu import pretend_gpu
from support.processes import in_own_process
from triton.runtime.autotuner import Autotuner

from dejavu_cache import cached_autotune
from dejavu_cache.attention.kernels.kernel_call import KernelCall
from dejavu_cache.sweep.worker import EARLY, FEW, EarlyCompiler
from dejavu_cache.triton_internals.compilation import keys_in_memory, release_later
from dejavu_cache.triton_internals.config_names import DeclaredConfigs
from dejavu_cache.triton_internals.hooks import add_compilation_listener
from dejavu_cache.tuning import compile_ahead as compile_ahead_module
from dejavu_cache.tuning.compile_ahead import (
    _tile_of_a_warp,
    compile_ahead,
    compile_failure_of,
    compile_together,
)
from dejavu_cache.tuning.tuner import CandidateLaunch


@triton.jit
def product(
    a_ptr, b_ptr, c_ptr, K,
    BLOCK: tl.constexpr, TILE: tl.constexpr, LIMIT: tl.constexpr = 0,
):  # fmt: skip
    tl.static_assert(BLOCK != 32, "32 is refused")
    rows, inner = tl.arange(0, TILE), tl.arange(0, BLOCK)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        a = tl.load(a_ptr + rows[:, None] * K + start + inner[None, :])
        b = tl.load(b_ptr + (start + inner)[:, None] * TILE + rows[None, :])
        total = tl.dot(a, b, total)
    tl.store(c_ptr + rows[:, None] * TILE + rows[None, :], total.to(tl.float16))


DTYPES = (torch.float16, torch.float16, torch.float16, 4096)
ARGUMENTS = tuple(map(triton.runtime.jit.MockTensor.wrap_dtype, DTYPES))
HOOKED: list[int] = []
CONFIGS = [
    triton.Config({"BLOCK": 64, "TILE": 64}, pre_hook=lambda args: HOOKED.append(args["K"])),
    triton.Config({"BLOCK": 128, "TILE": 256}, num_stages=4, num_warps=8),
    triton.Config({"BLOCK": 32, "TILE": 64}),
    triton.Config({"BLOCK": 64, "TILE": 64, "waves_per_eu": 2}),
    triton.Config({"BLOCK": 64, "TILE": 128}),
]

absent = in_own_process(TRITON_INTERPRET="0", TRITON_ALWAYS_COMPILE="1")


def note_threads() -> list[str]:
    """Compile for a GPU that is absent, and return a list of the threads that do."""
    pretend_gpu("cuda:90")
    threads: list[str] = []
    initialise = triton.compiler.compiler.CompiledKernel.__init__

    def note(self: Any, *rest: Any) -> None:
        threads.append(threading.current_thread().name.partition("_")[0])
        initialise(self, *rest)

    triton.compiler.compiler.CompiledKernel.__init__ = note
    return threads


def launch_of(
    configs: list[triton.Config], function: Any = product, arguments: Any = ARGUMENTS
) -> CandidateLaunch:
    tuner = Autotuner(function, function.arg_names, configs, [], None, None)
    tuner.nargs = dict(zip(tuner.arg_names, arguments, strict=False))
    declared = DeclaredConfigs("a kernel", configs)
    return CandidateLaunch(tuner, declared, next(iter(declared)), arguments, {"grid": (1,)})


def compile_some(configs: list[triton.Config], count: int) -> list[str]:
    """Compile configs, take some, and return what became of them; the last one can be launched."""
    launch, outcomes = launch_of(configs), []
    with compile_ahead(launch, list(launch.declared)) as candidates:
        for candidate in list(candidates.values())[:count]:
            assert candidate is not None
            try:
                candidate.check()
                outcomes.append("runs")
            except Exception as error:
                failure = compile_failure_of(error)
                assert failure is not None
                outcomes.append(f"{failure.kind}: {failure.reason}")
    after = product.run(*ARGUMENTS, grid=(1,), warmup=True, **CONFIGS[-1].all_kwargs())
    assert type(after).__name__ == "CompiledKernel"
    return outcomes


@absent
def test_what_cannot_run_is_known_before_any_launch() -> None:
    threads, begun, run = note_threads(), [], product.run

    def note_block(*arguments: Any, **options: Any) -> Any:
        begun.append(options["BLOCK"])
        return run(*arguments, **options)

    product.run = note_block
    runs, too_large, refused, _, also = compile_some(CONFIGS, 5)
    assert too_large.startswith("out_of_resources: out of resource: shared memory, Required: 5")
    assert (runs, also, refused[:15]) == ("runs", "runs", "compile_error: ")
    assert "32 is refused" in refused
    assert HOOKED == [4096], "a hook may change what is compiled"
    assert {*threads} == {"dejavu-cache compile"}
    order = [64, 128, 64, 64, 32, 64]
    assert begun == order, "the default, and then large tiles, which take longest"


@absent
def test_a_single_config_and_what_is_given_up_halfway() -> None:
    """A compilation that failed is repeated, and then it is often alone."""
    note_threads()
    assert compile_some(CONFIGS, 1) == ["runs"]
    (seen,) = compile_some(CONFIGS[3:4], 1)
    assert seen.startswith("compile_error: ")
    assert "waves_per_eu" in seen


@in_own_process(TRITON_INTERPRET="0")
def test_what_launches_a_kernel_is_built_while_it_compiles(tmp_path: str) -> None:
    triton.knobs.cache.dir = tmp_path
    pretend_gpu("cuda:90")
    built: list[Any] = []
    triton.runtime.driver.active.launcher_cls = lambda *source: built.append(source)
    compile_some(CONFIGS[-1:], 1)
    for thread in filter(lambda thread: "launcher" in thread.name, threading.enumerate()):
        thread.join()
    assert [source.signature["K"] for source, metadata in built if metadata is None] == ["i32"]


@pytest.mark.parametrize(("launches", "hits"), [(1, 0), (FEW, 0), (FEW, 1)])
@in_own_process(TRITON_INTERPRET="0")
def test_processes_compile_meanwhile_what_they_can(tmp_path: str, launches: int, hits: int) -> None:
    """The rest is compiled once all launches are known; no process runs a package's scripts."""
    os.environ["TRITON_CACHE_DIR"] = tmp_path
    os.mkdir(package := Path(tmp_path, "adding"))
    source = inspect.getsource(add_one.fn)
    made = f"{source.replace('add_one', 'gone')}\nmade = [gone]\ndel gone\n"
    (package / "__init__.py").write_text(f"import triton, triton.language as tl\n{made}{source}")
    (package / "script.py").write_text("open(__file__ + '.ran', 'w')")
    sys.path.insert(0, tmp_path)
    adding = import_module("adding")
    sys.path[:1] = [tmp_path] * hits  # a process finds what this one can import
    threads, loaded = note_threads(), list[bool]()
    add_compilation_listener(lambda **event: loaded.append(event["cache_hit"]))
    cases = {"c": adding.add_one, "b": adding.made[0], "a": adding.add_one}
    with EarlyCompiler([adding.add_one] * launches) as compiler:
        for case, function in cases.items():
            configs = [triton.Config({"BLOCK": n}) for n in (64, 48)]  # 48 cannot be compiled
            launch = launch_of(configs, function, ARGUMENTS[1:])
            compiler.begin(case, launch, list(launch.declared))
        assert hits or threads == []
        list(map(compiler.finish, sorted(cases)))
    assert (sum(loaded), threads, [*package.glob("*.ran")]) == (hits, [EARLY] * 2, [])


def test_a_config_without_sizes_has_a_place_in_the_order_too() -> None:
    for values in ({"SEED": 2**2000}, {"BLOCK": 0, "SHIFT": -1}, {"KIND": "x", "FLAG": True}):
        config = triton.Config(values)
        config.num_warps = None if "KIND" in values else 4
        assert isinstance(_tile_of_a_warp(config), float)


@in_own_process(TRITON_INTERPRET="0")
def test_launches_compile_each_kernel_once_and_run_nothing(tmp_path: str) -> None:
    triton.knobs.cache.dir = tmp_path
    threads, noted = note_threads(), []

    def launch(block: int, grid: Any = (1,), tile: int = 64) -> None:
        assert KernelCall(product, grid, ARGUMENTS, {"BLOCK": block, "TILE": tile})() is None

    def note_grid(meta: Any) -> tuple[int, ...]:
        noted.append(meta["BLOCK"])
        return (1,)

    def fail_as_grid(meta: Any) -> Any:
        """Fail, as a grid does that asks for an argument's default."""
        raise KeyError("LIMIT")

    def compile_later(block: int) -> None:
        product.run(*ARGUMENTS, grid=(1,), warmup=True, BLOCK=block, TILE=64)

    with compile_together():
        launch(16)
        call = KernelCall(product, (1,), ARGUMENTS, {"BLOCK": 32, "TILE": 64})
        assert call.launch(()) is None
        launch(64, note_grid)
        for _ in range(2):
            launch(2 * noted[-1])
    assert threads == ["dejavu-cache compile"] * 3
    threads.clear()
    for block in (16, 64, 128):
        compile_later(block)
    with pytest.raises(Exception, match="32 is refused"):
        compile_later(32)
    assert threads == [], "the launches that follow find the kernels in memory"
    compile_ahead_module.threads_for = lambda most: 1  # type: ignore[assignment]
    with compile_together():
        for block in (16, 64, 128):
            with suppress(KeyError):
                launch(block, fail_as_grid, 16)
    assert threads == ["dejavu-cache compile"] * 3, "none was cancelled, though one waited"


def test_by_the_interpreter_which_would_run_launches_nothing_is_compiled() -> None:
    with compile_together() as is_compiling:
        assert not is_compiling


def make(bench: Any, *blocks: int) -> Any:
    configs = [triton.Config({"BLOCK": block}) for block in blocks]
    return cached_autotune(configs, ["n"], do_bench=bench, check=False)(add_one)


@in_own_process(TRITON_INTERPRET="0")
def test_the_kernels_of_configs_that_lost_are_released(tmp_path: str) -> None:
    import support.pretended_gpu  # replaces the driver
    from triton.compiler import compiler

    triton.knobs.cache.dir = tmp_path
    triton.compiler.compile = compiler.compile  # the real one again
    assert support.pretended_gpu.LAUNCHED == []
    while_tuning: list[Any] = []
    calls: list[None] = []
    x = torch.zeros(4096)

    def in_memory() -> tuple[list[int], int]:
        """Return the blocks of the kernels, and the bytes of their binaries and texts."""
        gc.collect()
        alive = [one for one in gc.get_objects() if type(one) is compiler.CompiledKernel]
        size = sum(len(text) for kernel in alive for text in kernel.asm.values())
        return sorted(kernel.src.constants[3,] for kernel in alive), size

    def bench(kernel_call: Any, quantiles: Any) -> list[float]:
        kernel_call()
        calls.append(None)
        while_tuning[:] = in_memory() if len(calls) == 5 else ()
        return [1.0 + len(calls) % 4] * 3  # the last but one, block 512, is the fastest

    def launch_by_itself(block: int) -> None:
        add_one[(1,)](x, x, 4096, BLOCK=block, num_warps=4, num_ctas=1, num_stages=3)

    kernel = make(bench, 64, 128, 256, 512, 1024)
    launch_by_itself(256)
    assert in_memory()[0] == [256]
    kernel[(1,)](x, x, 4096)
    assert kernel.best_config.kwargs == {"BLOCK": 512}
    assert while_tuning[0] == [64, 128, 256, 512, 1024]
    left, size = in_memory()
    assert left == [256, 512], "the program's own, and the winner"
    assert size < 0.7 * while_tuning[1]
    launch_by_itself(128)
    assert in_memory()[0] == [128, 256, 512], "a config that lost can still be launched"
    kernel[(1,)](x, x, 4096)


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
        kernel[(1,)](x, x, n)
    os.environ[setting] = "1"
    for n in (33, 35, 37):  # the first one keeps its config, and its binary as with Triton
        kernel[(1,)](x, x, n)
    LAUNCHED.clear()
    kernel.forget_choices()
    gc.collect()
    assert any(held() is not None for held in earlier), "a CUDA graph may have captured them"
    del os.environ[setting]
    kernel[(1,)](x, x, 39)
    assert timed == ["default"] * 4 + ["1"] * 4 + ["default"] * 2


def test_tunes_of_two_threads_may_release_the_same_kernels(request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    function: Any = SimpleNamespace(device_caches={0: ({},)})
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            earlier = keys_in_memory(function)
            function.device_caches[0][0].update({number: object() for number in range(3000)})
            list(pool.map(release_later, [function] * 2, [earlier] * 2, [None] * 2))
            assert not function.device_caches[0][0]
