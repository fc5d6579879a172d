"""Which of Triton's tools count as settings, and what it costs to ask."""

from __future__ import annotations

from pathlib import Path

from support.processes import run_python


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
