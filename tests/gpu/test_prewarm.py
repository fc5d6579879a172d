"""On a real GPU: tuned, exported, prewarmed without a GPU, moved, sealed, and served."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.prewarming import HERE, another_user, seal, tree
from support.processes import dejavu, environment, run_command

pytestmark = pytest.mark.gpu

PROGRAM = HERE / "serve_on_gpu.py"
MODULES = ("products", "dejavu_cache.attention")


FEW = {"DEJAVU_CACHE_POLICY": str(HERE.parent / "few_configs.toml"), "DEJAVU_CACHE_SHIPPED": "0"}
"""Settings for a few configs of each kernel: what is tuned is not the point here."""


def run(*words: object, **more: str) -> str:
    """Run a command with the test's modules on the path; return what it printed."""
    variables = environment(PYTHONPATH=str(HERE), **more)
    done = run_command(*words, env=variables, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_prewarmed(folder: Path) -> Path:
    """Tune, carry the records over as a file, and prewarm from them where no GPU is seen."""
    records, exported, carried = folder / "records", folder / "records.jsonl", folder / "carried"
    run(
        sys.executable,
        PROGRAM,
        folder / "tuned.pt",
        DEJAVU_CACHE_URL=records.as_uri(),
        TRITON_CACHE_DIR=str(folder / "triton"),
        **FEW,
    )
    assert dejavu("export", exported, "--store", records).returncode == 0
    assert dejavu("import", exported, "--store", carried).returncode == 0
    device = torch.cuda.get_device_properties(0).name
    words = ("--store", carried, "--device", device, "--out", folder / "built")
    run(
        *(sys.executable, "-m", "dejavu_client", "prewarm", *MODULES, *words),
        CUDA_VISIBLE_DEVICES="",
        DEJAVU_CACHE_SHIPPED="0",
        HOME=str(folder / "builder"),
    )
    return folder / "built"


@pytest.fixture
def public() -> Iterator[Path]:
    """Make a folder that every user can read, with a home that every user can write."""
    folder = Path("/tmp") / f"dejavu-prewarmed-{os.getpid()}"
    (folder / "home").mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "home").chmod(0o777)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_prewarmed_program_benchmarks_compiles_and_misses_nothing(
    tmp_path: Path, public: Path
) -> None:
    """Benchmarks, compilations and misses are 0 by Triton's own hooks, and outputs are the same."""
    folder, home = public / "moved" / "tuned", public / "home"
    folder.parent.mkdir()
    shutil.move(build_prewarmed(tmp_path), folder)
    seal(folder)
    before, user = tree(folder), another_user("import torch; torch.cuda.init()")
    verify = (sys.executable, "-m", "dejavu_client", "verify", "--expect-hits", "--")
    printed = run(
        *(*verify, *user, sys.executable, PROGRAM, home / "served.pt"),
        DEJAVU_CACHE_URL=f"prewarmed://{folder}",
        DEJAVU_CACHE_MODE="strict",
        HOME=str(home),
        CC="/bin/false",
        XDG_CACHE_HOME="",
        **FEW,
    )
    assert "0 missed, 0 benchmarked" in printed
    assert "0 compiled, 0 modules built" in printed
    assert tree(folder) == before
    outputs = torch.load(home / "served.pt")
    (home / "served.pt").unlink()
    written = [path for path in home.rglob("*") if ".nv" not in path.parts]  # that is CUDA's own
    assert not written, "nothing is written, not even a folder"
    assert all(map(torch.equal, torch.load(tmp_path / "tuned.pt"), outputs))
    sys.stdout.write(f"as {'another user' if user else 'the same user'}: {printed}")
