"""The attention kernels under NVIDIA's compute-sanitizer: no access outside of their tensors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.attention_batches import has_hopper

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).parents[1] / "programs" / "attend_drawn_batches.py"
BATCHES = {
    "hopper": 12,
    "few_sequences": 4,
    "qblock": 4,
    "segmented": 4,
    "static_grid": 4,
    "naive": 4,
}


def sanitizer() -> str:
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(found):
        pytest.skip("compute-sanitizer is not installed")
    return found


@pytest.mark.parametrize("implementation", list(BATCHES))
def test_no_kernel_reads_or_writes_outside_of_its_tensors(implementation: str) -> None:
    if implementation == "hopper" and not has_hopper():
        pytest.skip(f"{implementation} does not run on this GPU")
    memcheck = [sanitizer(), "--tool", "memcheck", "--error-exitcode", "9"]
    program = [sys.executable, str(PROGRAM), implementation, str(BATCHES[implementation])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PROGRAM.parents[1]), *sys.path]),
        # An allocation of its own for each tensor, so that what lies beside one is not another.
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    }

    def run(*command: str) -> tuple[int, str]:
        completed = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=280
        )
        return completed.returncode, completed.stdout + completed.stderr[-4000:]

    status, output = run(*program)  # compiles; under the sanitizer, that would take minutes
    assert status == 0, output
    status, output = run(*memcheck, *program)
    if "Device not supported" in output:
        pytest.skip("compute-sanitizer does not support this device")
    assert status == 0, output
    assert "ERROR SUMMARY: 0 errors" in output
