"""A GPU and a compiler that are only pretended, so that launches can be watched without either.

Launches go through Triton's own `JITFunction.run`, and through the hot path, down to the function
that would put the kernel on a stream. Importing the module replaces the process's driver.
"""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import torch
import triton.compiler
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

__all__ = ["LAUNCHED", "PretendedKernel"]

LAUNCHED: list[PretendedKernel] = []
"""The kernels that were launched, in order."""


class PretendedKernel:
    """What Triton's compiler returns: it holds what would be compiled, and notes its launches."""

    def __init__(self, src: Any, options: Any) -> None:
        src.hash()  # reads the kernel's globals, as the compiler does
        self.src = src
        parts = (src.fn._fn_name, src.signature, src.constants, src.attrs, sorted(options.items()))
        self.hash = hashlib.sha256(repr(parts).encode()).hexdigest()
        self.metadata = SimpleNamespace(hash=self.hash, name=src.fn._fn_name)
        self.packed_metadata, self.function = (), 0
        self.asm: dict[str, Any] = {}
        self.run = self._run

    def constant(self, name: str) -> Any:
        """Return the value of a constant parameter."""
        return self.src.constants[(self.src.fn.arg_names.index(name),)]

    def launch_metadata(self, *_: Any) -> None:
        """Return nothing: there are no launch hooks."""

    def _run(self, *_: Any) -> None:
        LAUNCHED.append(self)


class _Driver:
    """A driver of one device, an H100."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 7

    def get_device_interface(self) -> Any:
        return SimpleNamespace(synchronize=lambda: None, current_device=lambda: 0)


def _compile(src: Any, target: Any = None, options: Any = None, **_: Any) -> PretendedKernel:
    return PretendedKernel(src, options)


driver.set_active(_Driver())
triton.compiler.compile = _compile
_PROPERTIES = SimpleNamespace(
    name="NVIDIA H100", multi_processor_count=132, total_memory=80 << 30, major=9, minor=0
)
torch.cuda.get_device_properties = lambda device=0: _PROPERTIES
