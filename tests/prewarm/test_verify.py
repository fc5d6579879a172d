"""`verify --expect-hits` passes a program that is tuned, and names untuned scenarios."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.processes import dejavu

PROGRAM = """
import sys
import torch
import triton
import triton.language as tl
from dejavu_cache import cached_autotune

@cached_autotune(configs=[triton.Config({"BLOCK": block}) for block in (16, 32)], key=["n"])
@triton.jit
def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)

for n in map(int, sys.argv[1:]):
    x = torch.arange(n, dtype=torch.float32)
    y = torch.full_like(x, float("nan"))
    add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
    assert torch.equal(y, x + 1)
"""


def verify(tmp_path: Path, *sizes: int, **env: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    own = {"DEJAVU_CACHE_URL": str(tmp_path / "store"), "TRITON_INTERPRET": "1"}
    return dejavu(
        "verify", "--expect-hits", "--", sys.executable, program, *sizes, **{**own, **env}
    )


def test_an_untuned_scenario_is_named(tmp_path: Path) -> None:
    """After one run has tuned two scenarios, these two are hits, and a third is not."""
    tuning = verify(tmp_path, 100, 200)
    assert tuning.returncode == 1
    assert (
        "benchmarked: program.add(n=100; x_ptr: float32, y_ptr: float32) (2 configs)"
        in tuning.stdout
    )
    missed = verify(tmp_path, 100, 200, 5000, DEJAVU_CACHE_MODE="reuse")
    assert missed.returncode == 1
    assert (
        "missed: program.add(n=5000; x_ptr: float32, y_ptr: float32) (resolved by: default)"
        in missed.stdout
    )
    assert "2 scenarios hit, 1 missed" in missed.stdout


def test_a_program_that_shows_nothing_does_not_pass(tmp_path: Path) -> None:
    """One that decorates no kernel, one that fails, and one that is not there."""
    unseen = dejavu("verify", "--expect-hits", "--", sys.executable, "-c", "print('hello')")
    assert unseen.returncode == 1
    assert "nothing was seen" in unseen.stdout
    failed = dejavu("verify", "--expect-hits", "--", sys.executable, "-c", "raise SystemExit(7)")
    assert failed.returncode == 3
    assert "exit code 7" in failed.stderr
    absent = dejavu("verify", "--expect-hits", "--", tmp_path / "absent")
    assert absent.returncode == 2
    assert "No such file" in absent.stderr
