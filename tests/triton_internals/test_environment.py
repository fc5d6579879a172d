"""Triton's version under whatever name it was distributed, and which of its tools count."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.processes import run_python

from dejavu_cache.triton_internals.environment import triton_version


@pytest.mark.parametrize("name", ["triton", "pytorch-triton-rocm", "pytorch-triton-xpu"])
def test_any_distribution_of_triton_counts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"{name.replace('-', '_')}-3.9.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.9.1\n")
    (folder / "top_level.txt").write_text("triton\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert triton_version() == "3.9.1"


def test_without_a_distribution_there_is_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert triton_version() is None


def test_unset_tools_are_not_run_for_their_versions() -> None:
    code = """
        import subprocess
        from unittest.mock import patch
        from dejavu_cache.triton_internals.environment import compiler_settings
        with patch("subprocess.check_output") as run:
            print(compiler_settings(), run.call_count)
    """
    assert run_python(code).stdout.split() == ["{}", "0"]


def test_a_tool_of_ones_own_counts(tmp_path: Path) -> None:
    tool = tmp_path / "ptxas"
    tool.write_text("#!/bin/sh\necho release 12.9, V12.9.1\n")
    tool.chmod(0o755)
    code = """
        import sys
        from triton import knobs
        from dejavu_cache.triton_internals.environment import compiler_settings
        print(*compiler_settings())
        knobs.nvidia.ptxas = sys.argv[1]
        print(*compiler_settings())
    """
    assert run_python(code, str(tool)).stdout.split() == ["TRITON_PTXAS_PATH"]
    by_variable = run_python(code, str(tool), TRITON_PTXAS_PATH=str(tool))
    assert by_variable.stdout.split() == ["TRITON_PTXAS_PATH"] * 2
