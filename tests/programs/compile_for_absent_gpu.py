"""Compile five configs of a matrix product for an absent H200, and print what became of each.

The last thing that is printed are the blocks in the order in which compilation began.

Arguments: how many of the configs to take before the rest is given up; optionally, which of them
there are.
"""

from __future__ import annotations

import json
import sys
import threading

import torch
import triton
from matrix_product import product  # type: ignore[import-not-found]
from support import absent_h200  # noqa: F401 - replaces the driver
from triton.runtime.autotuner import Autotuner

from dejavu_cache.triton_internals.config_names import DeclaredConfigs
from dejavu_cache.tuning.compile_ahead import compile_ahead, compile_failure_of
from dejavu_cache.tuning.tuner import CandidateLaunch

dtypes = (torch.float16, torch.float16, torch.float16, 4096)
args = tuple(triton.runtime.jit.MockTensor.wrap_dtype(dtype) for dtype in dtypes)
hooked = []
configs = [
    triton.Config({"BLOCK": 64, "TILE": 64}, pre_hook=lambda args: hooked.append(args["K"])),
    triton.Config({"BLOCK": 128, "TILE": 256}, num_stages=4, num_warps=8),
    triton.Config({"BLOCK": 32, "TILE": 64}),
    triton.Config({"BLOCK": 64, "TILE": 64, "waves_per_eu": 2}),
    triton.Config({"BLOCK": 64, "TILE": 128}),
]
*_, last = configs
configs = [configs[int(index)] for index in sys.argv[2:]] or configs
tuner = Autotuner(product, product.arg_names, configs, [], None, None)
tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
threads: set[str] = set()
initialise = triton.compiler.compiler.CompiledKernel.__init__


def note_thread(self, *rest):
    """Remember the thread that makes a compiled kernel."""
    threads.add(threading.current_thread().name)
    initialise(self, *rest)


triton.compiler.compiler.CompiledKernel.__init__ = note_thread
begun: list[int] = []
run = product.run


def note_block(*args, **kwargs):
    """Remember which config is compiled next."""
    begun.append(kwargs["BLOCK"])
    return run(*args, **kwargs)


product.run = note_block
outcomes = []
declared = DeclaredConfigs("product", configs)
launch = CandidateLaunch(tuner, declared, next(iter(declared)), args, {"grid": (1,)})
with compile_ahead(launch, list(declared)) as candidates:
    for candidate in list(candidates.values())[: int(sys.argv[1])]:
        assert candidate is not None
        try:
            candidate.check()
            outcomes.append("runs")
        except Exception as error:
            failure = compile_failure_of(error)
            assert failure is not None
            outcomes.append(f"{failure.kind}: {failure.reason}")
after = run(*args, grid=(1,), warmup=True, **last.all_kwargs())
print(json.dumps([outcomes, hooked, sorted(threads), type(after).__name__, begun]))
