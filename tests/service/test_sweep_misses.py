"""What servers met and nobody tuned is tuned offline."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from support.processes import environment
from support.service import running_server

KERNEL = """
    import torch, triton, triton.language as tl
    from functools import partial
    from dejavu_cache import cached_autotune
    from dejavu_cache.sweep.suite import Case, Suite

    CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32)]

    @cached_autotune(configs=CONFIGS, key=["n"])
    @triton.jit
    def add_one(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)

    @cached_autotune(configs=CONFIGS, key=["m"])
    @triton.jit
    def add_two(x_ptr, y_ptr, m, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < m) + 2, mask=at < m)

    def case(n):
        if n == 400:
            raise ValueError("mine")
        grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)
        return Case(f"n={n}", add_one, grid, partial(arguments, n))

    def arguments(n):
        return {"x_ptr": torch.zeros(n), "y_ptr": torch.zeros(n), "n": n}

    def cases():
        return [case(100), case(200)]

    suite = Suite(cases, for_scenario=lambda kernel, scenario: case(scenario.args["n"]))
    fixed = Suite(cases)
"""

SERVER = """
    import sys, torch
    from met import add_one, add_two
    for n in map(int, sys.argv[1:]):
        add_one[(1,)](torch.zeros(n), torch.zeros(n), n)
        add_two[(1,)](torch.zeros(n), torch.zeros(n), n)
    assert add_one.benchmarked == 0
"""


def python(folder: Path, url: str, *arguments: str, code: int = 0, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(
            TRITON_INTERPRET="1",
            DEJAVU_CACHE_URL=url,
            DEJAVU_CACHE_WAIT="10",
            XDG_CACHE_HOME=str(folder),
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
    (tmp_path / "met.py").write_text(textwrap.dedent(KERNEL))
    with running_server(sqlite_url, tmp_path / "log") as server:
        python(
            tmp_path,
            server.base,
            "-c",
            textwrap.dedent(SERVER),
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
        assert "n=200" in shown
        assert "n=300" in shown
        assert "n=100" not in shown
        assert "0 cases tuned" in python(tmp_path, server.base, *sweep)


def test_a_miss_that_no_case_stands_for_is_told(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "met.py").write_text(textwrap.dedent(KERNEL))
    with running_server(sqlite_url, tmp_path / "log") as server:
        met = "200", "300", "500"
        python(
            tmp_path, server.base, "-c", textwrap.dedent(SERVER), *met, DEJAVU_CACHE_MODE="reuse"
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
    (tmp_path / "met.py").write_text(textwrap.dedent(KERNEL))
    with running_server(sqlite_url, tmp_path / "log") as server:
        python(
            tmp_path,
            server.base,
            "-c",
            textwrap.dedent(SERVER),
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
