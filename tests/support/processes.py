"""Python processes that import this checkout."""

import functools
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.checkout import PROGRAMS, ROOT, environment
from support.fork_server import Child, Nursery, kernel_nursery, start_command

__all__ = ["PROGRAMS", "ROOT", "environment"]


def run_python(
    code: str, *argv: str, check: bool = True, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter with this checkout on its path."""
    return _run(["-c", textwrap.dedent(code), *argv], check, env)


def fork_python(code: str, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code to its success in a process that is forked with Torch and Triton."""
    with tempfile.TemporaryDirectory() as folder:
        return _succeed(_nursery(env).start(code, *argv, folder=Path(folder), **env))


def fork_program(name: str, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a file of `tests/programs` as `fork_python` runs code."""
    with tempfile.TemporaryDirectory() as folder:
        path = PROGRAMS / name
        return _succeed(_nursery(env).start_file(path, *argv, folder=Path(folder), **env))


RUN_TEST = """
import json, sys
from pathlib import Path
from support.kernels import load_file

path, name, arguments = sys.argv[1:]
getattr(load_file(Path(path), "a_test"), name).__wrapped__(**json.loads(arguments))
"""


def in_own_process(**env: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have a test run in a process of its own, forked with Torch and Triton.

    It is found by its name in its file, and gets its arguments as JSON: paths as texts.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**arguments: object) -> None:
            given = json.dumps(arguments, default=str)
            fork_python(RUN_TEST, inspect.getfile(test), test.__name__, given, **env)

        return run

    return decorate


def in_fork(call: Callable[[], object]) -> None:
    """Call a function in a forked child, within a minute."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        call()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def _nursery(env: dict[str, str]) -> Nursery:
    return kernel_nursery(environment(**env).get("TRITON_INTERPRET") or "0")


def _succeed(child: Child) -> subprocess.CompletedProcess[str]:
    done = child.complete()
    assert done.returncode == 0, done
    return done


def _run(
    arguments: list[str], check: bool, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return run_command(sys.executable, *arguments, env=environment(**env), check=check)


def run_command(
    *command: object, check: bool = True, timeout: float = 300.0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; the options are those of `subprocess.run`."""
    words = [*map(str, command)]
    return subprocess.run(
        words, capture_output=True, text=True, check=check, timeout=timeout, **options
    )


def dejavu(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would.

    An interpreter's own settings are read at its start, so they get a new one.
    """
    environ = environment(**env)
    if any(name.startswith("PYTHON") and name != "PYTHONPATH" for name in env):
        return _run(["-m", "dejavu_client", *map(str, arguments)], False, env)
    compiles = arguments[0] == "prewarm"
    interpret = "0" if compiles else environ.get("TRITON_INTERPRET") or "0"
    with tempfile.TemporaryDirectory() as folder:
        task: Any = {"interpret": interpret, "folder": Path(folder), "env": environ}
        return start_command(*arguments, **task).complete()
