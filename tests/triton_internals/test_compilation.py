"""Recorded launches give Triton the same compilation keys again, with any config."""

from __future__ import annotations

import subprocess
import sys

from support.prewarming import DEVICES, HERE
from support.processes import environment

SCRIPT = HERE / "check_compilation_keys.py"


def test_the_key_is_the_one_that_triton_looks_for() -> None:
    """Kernels with all kinds of arguments, for three architectures, in a compiled program."""
    env = environment(TRITON_INTERPRET="", PYTHONPATH=str(HERE))
    targets = ("cuda:90", "cuda:100", "hip:gfx942")[: len(DEVICES)]
    script = [sys.executable, str(HERE / "check_compilation_keys.py"), *targets]
    ran = subprocess.run(script, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
