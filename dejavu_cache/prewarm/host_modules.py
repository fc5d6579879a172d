"""Build the host modules that Triton would run a C compiler for at a kernel's first launch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..triton_internals.hooks import build_host_modules_with
from ..triton_internals.host_modules import build_driver_module, build_launcher

__all__ = ["HostModuleBuilder"]


class HostModuleBuilder:
    """Builds host modules with Triton's own drivers, without loading them.

    Args:
        tools: the folder that `make_stub_driver` filled.
    """

    def __init__(self, tools: Path) -> None:
        """Let Triton build host modules with the stub tools from now on."""
        os.environ["CC"] = str(tools / "cc")
        self._driver_module_lock = FileLock(tools / "cuda-utils.lock")
        build_host_modules_with(str(tools))

    def build(self, compiled: Any, target: Any) -> str:
        """Build the modules that launch one kernel.

        Args:
            compiled: Triton's compiled kernel.
            target: Triton's target of the kernel.

        Returns:
            The reason why the modules are left out, or an empty string.

        Raises:
            Exception: any error of Triton or of the C compiler.
        """
        if target.backend == "cuda":
            with self._driver_module_lock:  # shared by all kernels: one process builds it
                build_driver_module("cuda")
            build_launcher("cuda", compiled)
            return ""
        try:
            build_driver_module("hip")
            build_launcher("hip", compiled)
        except (AttributeError, FileNotFoundError, RuntimeError) as error:
            return (
                f"{target.arch}: the modules that launch kernels are left out, since the library "
                f"they find the driver by is not here ({str(error)[:120]}): install torch for ROCm "
                "on the builder, or have gcc at run time"
            )
        return ""
