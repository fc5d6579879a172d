"""An H200 that is not there: kernels compile for it, and no launch succeeds.

Importing the module replaces the process's driver.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver

__all__: list[str] = []


class _AbsentH200:
    """Answers what compiling asks of a driver; the binaries go nowhere."""

    utils = SimpleNamespace(
        get_device_properties=lambda device: {"max_shared_mem": 232448},
        load_binary=lambda *binary: (object(), object(), 0, 0, 1024),
    )
    launcher_cls: Any = staticmethod(lambda src, metadata: None)

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


driver.set_active(_AbsentH200())
