"""Recorded launches give Triton the same compilation keys again, with any config."""

from __future__ import annotations

from support.prewarming import DEVICES, HERE
from support.processes import fork_program

SCRIPT = HERE / "check_compilation_keys.py"


def test_the_key_is_the_one_that_triton_looks_for() -> None:
    """Kernels with all kinds of arguments, for three architectures, in a compiled program."""
    targets = ("cuda:90", "cuda:100", "hip:gfx942")[: len(DEVICES)]
    fork_program(
        "prewarm/check_compilation_keys.py", *targets, TRITON_INTERPRET="0", PYTHONPATH=str(HERE)
    )
