"""`verify --expect-hits` passes a program that is tuned, and names untuned scenarios."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.kernels import ADD, write_source
from support.processes import dejavu


def verify(tmp_path: Path, *sizes: int, **env: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    write_source(program, ADD)
    with program.open("a") as text:
        text.write("\nimport sys\nfrom support.kernels import launch\n")
        text.write("for size in sys.argv[1:]:\n    launch(add, int(size))\n")
    own = {"DEJAVU_CACHE_URL": str(tmp_path / "store"), "TRITON_INTERPRET": "1"}
    return dejavu(
        "verify", "--expect-hits", "--", sys.executable, program, *sizes, **{**own, **env}
    )


def test_an_untuned_scenario_is_named(tmp_path: Path) -> None:
    """After one run has tuned two scenarios, these two are hits, and a third is not."""
    tuning = verify(tmp_path, 100, 200)
    assert tuning.returncode == 1
    assert (
        "benchmarked: program.add(n=100; x_ptr: float32, y_ptr: float32) (tuned: BLOCK="
        in tuning.stdout
    )
    missed = verify(tmp_path, 100, 200, 5000, DEJAVU_CACHE_MODE="reuse")
    assert missed.returncode == 1
    assert (
        "missed: program.add(n=5000; x_ptr: float32, y_ptr: float32) (default: BLOCK="
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


def test_json_is_one_document_whatever_the_program_prints() -> None:
    said = dejavu("verify", "--json", "--", sys.executable, "-c", "print('hello')")
    assert json.loads(said.stdout)["exit_code"] == 0
    assert "hello" in said.stderr


def start_verification(program: str, tmp_path: Path, **options: Any) -> tuple[Any, int]:
    """Verify a program; return the verification and the program's process number as it runs."""
    begun = tmp_path / "begun"
    note = f"import os, pathlib, time; pathlib.Path({str(begun)!r}).write_text(str(os.getpid()))"
    command = [sys.executable, "-c", f"{note}; {program}"]
    verifying = subprocess.Popen(
        [sys.executable, "-m", "dejavu_client", "verify", "--", *command], **options
    )
    return verifying, int(wait_for_text(begun))


def wait_for_text(file: Path) -> str:
    """Return a file's text once there is some."""
    until = time.monotonic() + 240
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return file.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_verification_that_is_ended_ends_its_program(
    tmp_path: Path, number: signal.Signals
) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("processes of this suite ignore the signal, as under nohup")
    verifying, program = start_verification("time.sleep(3600)", tmp_path)
    verifying.send_signal(number)
    assert verifying.wait(240) == 128 + number
    await_end(program)


def await_end(process: int) -> None:
    """Wait until a process is not there any more, or has ended."""
    until = time.monotonic() + 240
    while is_running(process):
        assert time.monotonic() < until
        time.sleep(0.02)


def is_running(process: int) -> bool:
    """Return whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_verification_under_nohup_goes_on(tmp_path: Path) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    verifying, _ = start_verification("time.sleep(1)", tmp_path, preexec_fn=ignore)
    verifying.send_signal(signal.SIGHUP)
    assert verifying.wait(240) == 0
