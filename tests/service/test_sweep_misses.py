"""What servers met and nobody tuned is tuned offline."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from service_support import running
from support import environment

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

    def case(n):
        grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)
        return Case(f"n={n}", add_one, grid, lambda: {"x_ptr": torch.zeros(n), "y_ptr": torch.zeros(n), "n": n})

    suite = Suite(cases=lambda: [case(100), case(200)], for_scenario=lambda kernel, scenario: case(scenario.args["n"]))
"""

SERVER = """
    import torch
    from met import add_one
    for n in (200, 300):
        add_one[(1,)](torch.zeros(n), torch.zeros(n), n)
    assert add_one.benchmarked == 0
"""


def python(folder: Path, url: str, *arguments: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(
            TRITON_INTERPRET="1", DEJAVU_CACHE_URL=url, DEJAVU_CACHE_WAIT="10", XDG_CACHE_HOME=str(folder), **env
        ),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_only_what_programs_missed_is_tuned(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "met.py").write_text(textwrap.dedent(KERNEL))
    with running(sqlite_url, tmp_path / "log") as server:
        python(tmp_path, server.base, "-c", textwrap.dedent(SERVER), DEJAVU_CACHE_MODE="reuse")
        sweep = ["-m", "dejavu_client", "sweep", "met", "--from-misses", "--store", server.base]
        assert "2 cases tuned, 4 configs measured" in python(tmp_path, server.base, *sweep)
        shown = python(tmp_path, server.base, "-m", "dejavu_client", "show", "add_one", "--store", server.base)
        assert "n=200" in shown
        assert "n=300" in shown
        assert "n=100" not in shown
        assert "0 cases tuned" in python(tmp_path, server.base, *sweep)
