"""Python processes that import this checkout."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from support.checkout import PROGRAMS, ROOT, environment
from support.fork_server import run_module

__all__ = ["PROGRAMS", "ROOT", "dejavu", "environment", "run_program", "run_python"]


def run_python(
    code: str, *argv: str, check: bool = True, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter with this checkout on its path."""
    return _run(["-c", textwrap.dedent(code), *argv], check, env)


def run_program(
    name: str, *argv: str, check: bool = True, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a file of `tests/programs` in a new interpreter with this checkout on its path."""
    return _run([str(PROGRAMS / name), *argv], check, env)


def _run(
    arguments: list[str], check: bool, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(**env),
        capture_output=True,
        text=True,
        check=check,
        timeout=240,
    )


def dejavu(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would.

    An interpreter's own settings are read at its start, so they get a new one.
    """
    if not any(name.startswith("PYTHON") for name in env):
        return run_module("dejavu_client", *arguments, env=environment(**env))
    command = [sys.executable, "-m", "dejavu_client", *map(str, arguments)]
    return subprocess.run(
        command, env=environment(**env), capture_output=True, text=True, timeout=240, check=False
    )
