"""On a real GPU: tuned, exported, prewarmed without a GPU, moved, sealed, and served."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.processes import PROGRAMS, dejavu, environment

pytestmark = pytest.mark.gpu

HERE = PROGRAMS / "prewarm"
PROGRAM = HERE / "serve_on_gpu.py"
MODULES = ("products", "dejavu_cache.attention")


def env(**more: str) -> dict[str, str]:
    """Return an environment with the test's modules on the path and no home of the user's."""
    return environment(PYTHONPATH=str(HERE), **more)


def tree(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def another_user() -> list[str]:
    """Return a prefix that runs a command as `nobody`, or skip where `nobody` cannot run Python."""
    words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    if os.getuid() or not shutil.which("setpriv"):
        return []
    check = "import sys, torch; torch.cuda.init(); sys.exit(0)"
    ran = subprocess.run(
        [*words, sys.executable, "-c", check], env=env(HOME="/dev/null/nobody"), check=False
    )
    return [] if ran.returncode else words


def test_a_prewarmed_program_benchmarks_compiles_and_misses_nothing(tmp_path: Path) -> None:
    """Benchmarks, compilations and misses are 0 by Triton's own hooks, and outputs are the same."""
    records, exported = tmp_path / "records", tmp_path / "records.jsonl"
    # A few configs of each: what is tuned is not the point here.
    few = {"DEJAVU_CACHE_TUNE_CONFIGS": "4", "DEJAVU_CACHE_SHIPPED": "0"}
    tuning = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path / "tuned.pt")],
        env=env(
            DEJAVU_CACHE_URL=records.as_uri(), TRITON_CACHE_DIR=str(tmp_path / "triton"), **few
        ),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert tuning.returncode == 0, tuning.stderr
    assert dejavu("export", exported, "--store", records).returncode == 0
    assert dejavu("import", exported, "--store", tmp_path / "carried").returncode == 0

    name = torch.cuda.get_device_properties(0).name
    words = [
        "--from",
        str(tmp_path / "carried"),
        "--device",
        name,
        "--out",
        str(tmp_path / "built"),
    ]
    made = subprocess.run(
        [sys.executable, "-m", "dejavu_client", "prewarm", *MODULES, *words],
        env=env(CUDA_VISIBLE_DEVICES="", DEJAVU_CACHE_SHIPPED="0", HOME=str(tmp_path / "builder")),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert made.returncode == 0, made.stderr

    public = Path("/tmp") / f"dejavu-prewarmed-{os.getpid()}"
    folder, home = public / "moved" / "tuned", public / "home"
    try:
        folder.parent.mkdir(parents=True)
        shutil.move(tmp_path / "built", folder)
        home.mkdir()
        public.chmod(0o755)
        home.chmod(0o777)
        for path in (*folder.rglob("*"), folder):
            path.chmod(0o555 if path.is_dir() else 0o444)
        before = tree(folder)
        words, verify = (
            another_user(),
            [sys.executable, "-m", "dejavu_client", "verify", "--expect-hits", "--"],
        )
        served = subprocess.run(
            [*verify, *words, sys.executable, str(PROGRAM), str(home / "served.pt")],
            env=env(
                DEJAVU_CACHE_URL=f"prewarmed://{folder}",
                DEJAVU_CACHE_MODE="strict",
                HOME=str(home),
                CC="/bin/false",
                XDG_CACHE_HOME="",
                **few,
            ),
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert served.returncode == 0, served.stdout + served.stderr
        assert "0 missed, 0 benchmarked" in served.stdout
        assert "0 compiled, 0 modules built" in served.stdout
        assert tree(folder) == before
        outputs = torch.load(home / "served.pt")
        (home / "served.pt").unlink()
        written = [
            path for path in home.rglob("*") if ".nv" not in path.parts
        ]  # that is CUDA's own
        assert not written, "nothing is written, not even a folder"
        assert all(map(torch.equal, torch.load(tmp_path / "tuned.pt"), outputs))
        sys.stdout.write(f"as {'another user' if words else 'the same user'}: {served.stdout}")
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
    finally:
        shutil.rmtree(public, ignore_errors=True)
