"""Configs compile in parallel for an absent GPU, and those that cannot run fail early."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import triton
from support.processes import run_python

HAS_ASYNC = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 5)

PROGRAM = """
    import json, sys, threading
    from types import SimpleNamespace
    import triton, triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner
    from support.kernels import load

    class H200:
        # What compiling asks of a driver; the binaries go nowhere.
        utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 232448},
            load_binary=lambda *binary: (object(), object(), 0, 0, 1024),
        )
        launcher_cls = staticmethod(lambda src, metadata: None)
        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)
        def get_current_device(self):
            return 0
        def get_current_stream(self, device):
            return 0

    driver.set_active(H200())
    kernels = load(__import__("pathlib").Path(sys.argv[1]) / "kernels.py", '''
        import triton, triton.language as tl

        @triton.jit
        def product(
            a_ptr, b_ptr, c_ptr, K,
            BLOCK: tl.constexpr, TILE: tl.constexpr, LIMIT: tl.constexpr = 0,
        ):
            tl.static_assert(BLOCK != 32, "32 is refused")
            rows, inner = tl.arange(0, TILE), tl.arange(0, BLOCK)
            total = tl.zeros((TILE, TILE), dtype=tl.float32)
            for start in range(0, K, BLOCK):
                a = tl.load(a_ptr + rows[:, None] * K + start + inner[None, :])
                b = tl.load(b_ptr + (start + inner)[:, None] * TILE + rows[None, :])
                total = tl.dot(a, b, total)
            tl.store(c_ptr + rows[:, None] * TILE + rows[None, :], total.to(tl.float16))
    ''')
    import torch
    args = (torch.float16, torch.float16, torch.float16, 4096)
    args = tuple(triton.runtime.jit.MockTensor.wrap_dtype(arg) for arg in args)
    hooked = []
    configs = [
        triton.Config({"BLOCK": 64, "TILE": 64}, pre_hook=lambda args: hooked.append(args["K"])),
        triton.Config({"BLOCK": 128, "TILE": 256}, num_stages=4, num_warps=8),
        triton.Config({"BLOCK": 32, "TILE": 64}),
        triton.Config({"BLOCK": 64, "TILE": 64, "waves_per_eu": 2}),
        triton.Config({"BLOCK": 64, "TILE": 128}),
    ]
    tuner = Autotuner(kernels.product, kernels.product.arg_names, configs, [], None, None)
    tuner.nargs = dict(zip(tuner.arg_names, args))
    threads = set()
    put = triton.compiler.compiler.CompiledKernel.__init__
    def spy(self, *rest):
        threads.add(threading.current_thread().name)
        put(self, *rest)
    triton.compiler.compiler.CompiledKernel.__init__ = spy

    from dejavu_cache.tuning.config_failures import compile_failure_of
    from dejavu_cache.tuning.compile_ahead import compile_ahead
    seen = []
    with compile_ahead(tuner, configs, args, {"grid": (1,)}) as candidates:
        for candidate in candidates[: int(sys.argv[2])]:
            try:
                candidate.check()
                seen.append("runs")
            except Exception as error:
                failure = compile_failure_of(error)
                seen.append(f"{failure.kind}: {failure.reason}")
    after = kernels.product.run(*args, grid=(1,), warmup=True, **configs[-1].all_kwargs())
    print(json.dumps([seen, hooked, sorted(threads), type(after).__name__]))
"""


@pytest.mark.skipif(not HAS_ASYNC, reason="this Triton compiles one after the other")
def test_what_cannot_run_is_known_before_any_launch(tmp_path: Path) -> None:
    done = run_python(
        PROGRAM, str(tmp_path), "5", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path / "cache")
    )
    seen, hooked, threads, after = json.loads(done.stdout)
    assert seen[0] == seen[4] == "runs"
    assert seen[1].startswith("out_of_resources: out of resource: shared memory, Required: 5")
    assert seen[2].startswith("compile_error: ")
    assert "32 is refused" in seen[2]
    assert seen[3].startswith("compile_error: ")
    assert "waves_per_eu" in seen[3]
    assert hooked == [4096], "a hook may change what is compiled"
    assert threads
    assert all(name.startswith("dejavu-cache compile") for name in threads)
    assert after == "CompiledKernel"


@pytest.mark.skipif(not HAS_ASYNC, reason="this Triton compiles one after the other")
def test_what_is_given_up_halfway_can_still_be_launched(tmp_path: Path) -> None:
    done = run_python(
        PROGRAM, str(tmp_path), "1", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path / "cache")
    )
    seen, _, _, after = json.loads(done.stdout)
    assert seen == ["runs"]
    assert after == "CompiledKernel"
