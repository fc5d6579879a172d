"""Launch products with the blocks given as arguments, as on a machine with an H200, or of $ARCH.

There is no GPU to launch on; everything before that is Triton's own: it binds the arguments, looks
into its cache, compiles if it must, and builds the modules that launch, which are not loaded.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import products
from support.launch_binding import Pointer
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher, CudaUtils
from triton.runtime import build, driver

from dejavu_cache.triton_internals.hooks import DevicelessDriver, UnloadedModule
from dejavu_cache.triton_internals.identity import jit_function


class Driver(DevicelessDriver):
    """One that launches nowhere."""

    def get_current_stream(self, device: int) -> int:
        return 0


def launch(kernel: Any, *args: Any, **values: Any) -> None:
    compiled = kernel.run(*args, grid=(1,), warmup=True, **values)
    CudaLauncher(compiled.src, compiled.metadata)


driver.set_active(Driver(GPUTarget("cuda", int(os.environ.get("ARCH", "90")), 32)))
build._load_module_from_path = lambda name, path: UnloadedModule()
CudaUtils()
launch(products.halve, Pointer("float32"), BLOCK=64)
for block in sys.argv[1:]:
    for n in (1024, 1001):
        launch(
            jit_function(products.add_one),
            Pointer("float32"),
            Pointer("float32"),
            n,
            BLOCK=int(block),
            num_warps=2,
        )
