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
import triton.language as tl

from support.addition import equal_times
from support.compiling_gpu import pretend_gpu

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


def body(x, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(x, n)


def make(decorate: Any, blocks: tuple[int, ...] = (16, 32, 64), **options: Any) -> Any:
    """Decorate a kernel anew, by Triton's decorator or by ours; nothing is computed."""
    configs = [triton.Config({"B": block}) for block in blocks]
    options = {"configs": configs, "key": ["n"], "do_bench": equal_times, **options}
    return decorate(**options)(triton.jit(body))


def launch(kernel: Any, *sizes: int, dtype: torch.dtype = torch.float32) -> list[int]:
    """Launch with each size, and return the blocks that ran."""
    before = len(LAUNCHED)
    for n in sizes:
        kernel[(1,)](torch.empty(64, dtype=dtype), n)
    return [launched.constant("B") for launched in LAUNCHED[before:]]


def _compile(src: Any, target: Any = None, options: Any = None, **_: Any) -> PretendedKernel:
    return PretendedKernel(src, options)


pretend_gpu("cuda:90")
triton.compiler.compile = _compile
