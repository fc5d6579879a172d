"""Compile launches of a matrix product together for an absent H200, and print what happened.

Printed are the number of kernels that were compiled, the kinds of threads that compiled them, what
the launches returned, the number that launching the same again compiles, the error of a launch
whose compilation failed, and the kinds of threads that compiled launches whose grid fails.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress

import torch
import triton
from matrix_product import product  # type: ignore[import-not-found]
from support import absent_h200  # noqa: F401 - replaces the driver

from dejavu_cache.attention.kernels.kernel_call import KernelCall
from dejavu_cache.tuning import compile_ahead as module
from dejavu_cache.tuning.compile_ahead import compile_together

BLOCKS = (16, 64, 128)
compiled: list[str] = []
initialise = triton.compiler.compiler.CompiledKernel.__init__


def note_thread(self, *rest):
    """Remember which thread makes a compiled kernel."""
    compiled.append(threading.current_thread().name.partition("_")[0])
    initialise(self, *rest)


triton.compiler.compiler.CompiledKernel.__init__ = note_thread
dtypes = (torch.float16, torch.float16, torch.float16, 4096)
args = tuple(triton.runtime.jit.MockTensor.wrap_dtype(dtype) for dtype in dtypes)
returned: list[object] = []


noted: list[int] = []


def launch(block, grid=(1,)):
    """Launch the product with a block, and keep what that returned."""
    returned.append(KernelCall(product, grid, args, {"BLOCK": block, "TILE": 64})())


def note_grid(meta):
    """Return a grid, and note the block."""
    noted.append(meta["BLOCK"])
    return (1,)


def fail_as_grid(meta):
    """Fail, as a grid does that asks for an argument's default."""
    raise KeyError("LIMIT")


def launch_with_failing_grid(block):
    """Launch a smaller tile with a grid that fails."""
    KernelCall(product, fail_as_grid, args, {"BLOCK": block, "TILE": 16})()


def launch_repeatedly():
    """Launch a block that cannot be compiled, to repeat it."""
    returned.append(KernelCall(product, (1,), args, {"BLOCK": 32, "TILE": 64}).launch(()))


def launch_what_was_noted():
    """Launch twice the block that the last grid has noted."""
    launch(2 * noted[-1])


with compile_together():
    launch(16)
    launch_repeatedly()
    launch(64, note_grid)
    launch_what_was_noted()
    launch_what_was_noted()
together, compiled[:] = sorted(compiled), []
for block in BLOCKS:
    product.run(*args, grid=(1,), warmup=True, BLOCK=block, TILE=64)
try:
    product.run(*args, grid=(1,), warmup=True, BLOCK=32, TILE=64)
    failure = ""
except Exception as error:
    failure = type(error).__name__
later, compiled[:] = len(compiled), []
module.threads_for = lambda most: 1  # type: ignore[assignment]
with compile_together():
    for block in BLOCKS:
        with suppress(KeyError):
            launch_with_failing_grid(block)
print(json.dumps([together, returned, later, failure, compiled]))
