"""A prewarmed folder that was damaged or tampered with: what `doctor` and the next build say."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import run_cli
from support.prewarming import prewarm

from dejavu_cache.stores import FileStore
from dejavu_cache.stores.manifest import MANIFEST, SCHEMA

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


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


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
def test_the_doctor_names_what_would_not_be_used(case: str, out: Path) -> None:
    damage, named = DAMAGES[case]
    damage(out)
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
