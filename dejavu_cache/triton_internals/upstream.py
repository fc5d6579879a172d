"""Triton's private objects that other packages use, importable from here alone."""

from __future__ import annotations

from .versions import knobs  # isort: skip - first, for it names a Triton that is too old

from triton.compiler.errors import CompilationError
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner, Heuristics, autotune
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITFunction

__all__ = [
    "Autotuner",
    "CompilationError",
    "Heuristics",
    "JITFunction",
    "OutOfResources",
    "PTXASError",
    "autotune",
    "driver",
    "knobs",
]
