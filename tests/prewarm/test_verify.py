"""`verify` and `doctor` name what is not tuned, and what of a prewarmed folder is not used."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import run_cli
from support.kernels import ADD, write_source
from support.prewarming import prewarm
from support.processes import dejavu
from support.sweeping import wait_until

from dejavu_cache.stores import FileStore
from dejavu_cache.stores.manifest import MANIFEST, SCHEMA


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
    said = "benchmarked: program.add(n=100; x_ptr: float32, y_ptr: float32) (tuned: BLOCK="
    assert said in tuning.stdout
    missed = verify(tmp_path, 100, 200, 5000, DEJAVU_CACHE_MODE="reuse")
    assert missed.returncode == 1
    named = (
        r"missed: program\.add\(n=5000; x_ptr: float32, y_ptr: float32\) \((default|predicted): "
    )
    assert re.search(named, missed.stdout)
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
    wait_until(lambda: begun.exists() and bool(begun.read_text()))
    return verifying, int(begun.read_text())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_verification_that_is_ended_ends_its_program(
    tmp_path: Path, number: signal.Signals
) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("processes of this suite ignore the signal, as under nohup")
    verifying, program = start_verification("time.sleep(3600)", tmp_path)
    verifying.send_signal(number)
    assert verifying.wait(240) == 128 + number
    wait_until(lambda: not is_running(program))


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


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")


@pytest.fixture(scope="module")
def sound(records: FileStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for one GPU; do not change it."""
    out = tmp_path_factory.mktemp("sound") / "out"
    done = prewarm(records, out, devices=("NVIDIA H200",))
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def out(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "out")
    return tmp_path / "out"


def change_manifest(out: Path, **changes: object) -> None:
    path = out / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def flip_a_byte(out: Path) -> None:
    path = sorted(out.rglob("*.cubin"))[0]
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    path.write_bytes(damaged)


def link(path: Path) -> None:
    moved = path.parent.with_name(f"moved {path.name}")
    shutil.move(path, moved)
    path.symlink_to(moved)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "altered": (flip_a_byte, "was altered: its digest is not the manifest's"),
    "missing": (lambda out: sorted(out.rglob("*.so"))[0].unlink(), ".so is missing"),
    "writable": (lambda out: sorted(out.rglob("*.cubin"))[0].chmod(0o666), "others may write"),
    "planted": (
        lambda out: (out / "binaries" / "planted.so").write_text("ELF"),
        "binaries/planted.so is not in the manifest",
    ),
    "a link": (lambda out: link(sorted(out.rglob("*.cubin"))[0]), "was altered"),
    "a link to all": (lambda out: link(out / "binaries"), "binaries is a link"),
    "no manifest's text": (lambda out: (out / MANIFEST).write_text("{"), "is damaged"),
    "an empty list": (lambda out: change_manifest(out, files={}), "is not in the manifest"),
    "newer": (lambda out: change_manifest(out, schema_version=SCHEMA + 1), "upgrade dejavu-cache"),
    "a linked manifest": (lambda out: link(out / MANIFEST), "prewarmed.json is a link"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_the_doctor_names_what_would_not_be_used(case: str, out: Path, monkeypatch: Any) -> None:
    damage, named = DAMAGES[case]
    damage(out)
    if case == "altered":  # the files are compared without Triton, too
        monkeypatch.setattr("dejavu_client.cli.commands.doctor.triton_version", lambda: None)
    said = run_cli("doctor", "--store", f"prewarmed://{out}", TRITON_INTERPRET="")
    assert said.returncode == 1, said.stdout
    (line, *_) = [line for line in said.stdout.splitlines() if line.startswith("wrong prewarmed")]
    assert named in line


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, "ok    prewarmed"),
        ({"triton": "3.3.1"}, "they are for Triton 3.3.1"),
        ({"wheel": "triton 3.6.0 cp399"}, "its binaries are those of triton 3.6.0 cp399"),
    ],
)
def test_the_doctor_compares_triton(changes: dict[str, str], named: str, out: Path) -> None:
    change_manifest(out, **changes)
    said = run_cli("doctor", "--store", f"prewarmed://{out}", TRITON_INTERPRET="")
    assert (said.returncode, named in said.stdout) == (int(bool(changes)), True), said.stdout
