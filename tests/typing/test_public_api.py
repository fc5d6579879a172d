"""The public API type-checks as a user would write it, and refuses wrong values in the editor."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
from support.processes import run_command

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("public_api.py")
PACKAGES = [ROOT, ROOT / "client", ROOT / "service"]


@pytest.mark.skipif(
    importlib.util.find_spec("basedpyright") is None, reason="basedpyright is not installed"
)
def test_pyright_accepts_the_public_api(tmp_path: Path) -> None:
    config = {
        "include": [str(PROGRAM)],
        "extraPaths": [str(folder) for folder in PACKAGES],
        "pythonVersion": "3.10",
        "typeCheckingMode": "standard",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = (sys.executable, "-m", "basedpyright", "-p", tmp_path, "--pythonpath", sys.executable)
    check = run_command(*command, env={**os.environ, "NO_COLOR": "1"}, check=False)
    assert check.returncode == 0, check.stdout + check.stderr


def test_every_public_name_is_there_and_used() -> None:
    import dejavu_cache

    program = PROGRAM.read_text(encoding="utf-8")
    assert all(getattr(dejavu_cache, name) is not None for name in dejavu_cache.__all__)
    assert set(dir(dejavu_cache)) >= set(dejavu_cache.__all__)
    assert [name for name in dejavu_cache.__all__ if name not in program] == []


@pytest.mark.parametrize(
    "package", ["dejavu_cache", "client/dejavu_client", "service/dejavu_service"]
)
def test_packages_declare_that_they_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
