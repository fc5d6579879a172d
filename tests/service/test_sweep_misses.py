"""What servers met and nobody tuned is tuned offline."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from support.processes import PROGRAMS, environment
from support.service import running_server


def python(folder: Path, url: str, *arguments: str, code: int = 0, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(
            TRITON_INTERPRET="1",
            DEJAVU_CACHE_URL=url,
            DEJAVU_CACHE_WAIT="10",
            XDG_CACHE_HOME=str(folder),
            PYTHONPATH=str(folder),
            **env,
        ),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_only_what_programs_missed_is_tuned(sqlite_url: str, tmp_path: Path) -> None:
    shutil.copy(PROGRAMS / "missed_additions.py", tmp_path / "met.py")
    with running_server(sqlite_url, tmp_path / "log") as server:
        python(
            tmp_path,
            server.base,
            str(PROGRAMS / "launch_missed_additions.py"),
            "200",
            "300",
            DEJAVU_CACHE_MODE="reuse",
        )
        sweep = ["-m", "dejavu_client", "sweep", "met", "--from-misses", "--store", server.base]
        output = python(tmp_path, server.base, *sweep)
        assert "2 cases tuned, 4 configs measured" in output
        assert "0 were there already" in output
        assert "1 nobody asked for" in output
        shown = python(
            tmp_path, server.base, "-m", "dejavu_client", "show", "add_one", "--store", server.base
        )
        sizes = [line.partition("\t")[0] for line in shown.splitlines() if "\t" in line]
        assert sizes == ["n", "200", "300"]
        assert "0 cases tuned" in python(tmp_path, server.base, *sweep)


def test_a_miss_that_no_case_stands_for_is_told(sqlite_url: str, tmp_path: Path) -> None:
    shutil.copy(PROGRAMS / "missed_additions.py", tmp_path / "met.py")
    with running_server(sqlite_url, tmp_path / "log") as server:
        met = "200", "300", "500"
        python(
            tmp_path,
            server.base,
            str(PROGRAMS / "launch_missed_additions.py"),
            *met,
            DEJAVU_CACHE_MODE="reuse",
        )
        sweep = [
            "-m",
            "dejavu_client",
            "sweep",
            "met:fixed",
            "--from-misses",
            "--store",
            server.base,
        ]
        output = python(tmp_path, server.base, *sweep, code=1)
        assert "1 cases tuned" in output
        assert "2 misses have no case here" in output


def test_a_miss_whose_case_raises_costs_itself_and_nothing_else(
    sqlite_url: str, tmp_path: Path
) -> None:
    shutil.copy(PROGRAMS / "missed_additions.py", tmp_path / "met.py")
    with running_server(sqlite_url, tmp_path / "log") as server:
        python(
            tmp_path,
            server.base,
            str(PROGRAMS / "launch_missed_additions.py"),
            "300",
            "400",
            DEJAVU_CACHE_MODE="reuse",
        )
        sweep = ["-m", "dejavu_client", "sweep", "met", "--from-misses", "--store", server.base]
        output = python(tmp_path, server.base, *sweep, code=1)
        assert "1 cases tuned" in output
        assert "n=400" in output
        assert "failed: ValueError: mine" in output
        assert "have no case here" not in output
