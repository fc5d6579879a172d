"""Python processes that import this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

__all__ = ["PROGRAMS", "ROOT", "dejavu", "environment", "run_program", "run_python"]

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs"


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
    """Run the command line as a user would."""
    command = [sys.executable, "-m", "dejavu_client", *map(str, arguments)]
    return subprocess.run(
        command, env=environment(**env), capture_output=True, text=True, timeout=240, check=False
    )


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment with the checkout's packages on the path."""
    more_path = more.pop("PYTHONPATH", "")
    ours = map(str, (ROOT, ROOT / "client", ROOT / "service", ROOT / "tests"))
    path = [*ours, more_path, os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        # A file that is edited twice within a second would be read from its bytecode.
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }
