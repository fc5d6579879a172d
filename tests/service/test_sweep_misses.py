"""What servers met and nobody tuned is tuned offline."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.processes import PROGRAMS, dejavu, fork_program
from support.service import running_server


def setting(folder: Path, url: str) -> dict[str, str]:
    """Return the environment of programs and sweeps, and put their suite into the folder."""
    shutil.copy(PROGRAMS / "missed_additions.py", folder / "met.py")
    return {
        "TRITON_INTERPRET": "1",
        "DEJAVU_CACHE_URL": url,
        "DEJAVU_CACHE_WAIT": "10",
        "XDG_CACHE_HOME": str(folder),
        "PYTHONPATH": str(folder),
    }


def launch(*sizes: str, **env: str) -> None:
    fork_program("launch_missed_additions.py", *sizes, DEJAVU_CACHE_MODE="reuse", **env)


def sweep_misses(env: dict[str, str], suite: str, code: int = 0) -> str:
    store = env["DEJAVU_CACHE_URL"]
    done = dejavu("sweep", suite, "--from-misses", "--store", store, **env)
    assert done.returncode == code, done
    return done.stdout


def test_only_what_programs_missed_is_tuned(sqlite_url: str, tmp_path: Path) -> None:
    with running_server(sqlite_url, tmp_path / "log") as server:
        env = setting(tmp_path, server.base)
        launch("200", "300", **env)
        output = sweep_misses(env, "met")
        assert "2 cases tuned, 4 configs measured" in output
        assert "0 were there already" in output
        assert "1 nobody asked for" in output
        shown = dejavu("show", "add_one", "--store", server.base, **env).stdout
        sizes = [line.partition("\t")[0] for line in shown.splitlines() if "\t" in line]
        assert sizes == ["n", "200", "300"]
        assert "0 cases tuned" in sweep_misses(env, "met")


def test_a_miss_that_no_case_stands_for_is_told(sqlite_url: str, tmp_path: Path) -> None:
    with running_server(sqlite_url, tmp_path / "log") as server:
        env = setting(tmp_path, server.base)
        launch("200", "300", "500", **env)
        output = sweep_misses(env, "met:fixed", code=1)
        assert "1 case tuned" in output
        assert "2 misses have no case here" in output


def test_a_miss_whose_case_raises_costs_itself_and_nothing_else(
    sqlite_url: str, tmp_path: Path
) -> None:
    with running_server(sqlite_url, tmp_path / "log") as server:
        env = setting(tmp_path, server.base)
        launch("300", "400", **env)
        output = sweep_misses(env, "met", code=1)
        assert "1 case tuned" in output
        assert "1 miss has no case here" in output
