"""On an H200: the shipped records serve Llama 3 8B's attention, and nothing is benchmarked."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import triton
from support.processes import environment

pytestmark = pytest.mark.gpu

PROCESS = """
    import torch
    from dejavu_cache.attention import sweep_suite
    from dejavu_cache.attention.api import IMPLEMENTATIONS
    batches = list(sweep_suite.lengths())
    model = sweep_suite.PRESETS["llama3-8b"]
    for lengths in batches:
        IMPLEMENTATIONS["auto"](sweep_suite.batch_of(lengths, model, 16, torch.bfloat16))
    torch.cuda.synchronize()
    tuned = sum(kernel.benchmarked for kernel in sweep_suite.KERNELS.values())
    print(len(batches), tuned)
"""


def test_a_process_with_an_empty_store_benchmarks_nothing(tmp_path: Path) -> None:
    if torch.cuda.get_device_name() != "NVIDIA H200" or not triton.__version__.startswith("3.6."):
        pytest.skip("the shipped records are of an H200 and Triton 3.6")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROCESS)],
        env=environment(DEJAVU_CACHE_URL=str(tmp_path / "store"), DEJAVU_CACHE_MODE="tune"),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("139 0\n", "")
