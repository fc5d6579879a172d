"""Start processes by forking an interpreter that imported libraries and nothing of this project."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.checkout import PROGRAMS, environment

__all__ = ["COMMAND", "Child", "Nursery", "light_nursery"]

COMMAND = "from dejavu_client.cli.main import main; main()"
"""`dejavu-cache`, with the child's arguments."""

FOR_KERNELS = (
    "filelock", "httpx", "platformdirs", "pydantic", "sklearn.tree", "stamina", "torch", "triton",
    "typer",
)  # fmt: skip
FOR_SERVERS = (
    "alembic.command", "alembic.script", "anyio", "fastapi", "filelock", "httpx", "jinja2",
    "platformdirs", "prometheus_client", "psycopg", "pydantic", "sqlalchemy.dialects.postgresql",
    "sqlalchemy.dialects.sqlite", "stamina", "typer", "uvicorn",
)  # fmt: skip
"""What commands and servers import before they do anything; none of it runs or needs a kernel."""


class Nursery:
    """Starts processes for tests that need many, or one after the other.

    Args:
        modules: what is imported before any process is forked; modules that start threads must not.
    """

    def __init__(self, modules: tuple[str, ...] = FOR_KERNELS) -> None:
        self._started = 0
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "fork_on_request.py"), *modules],
            # A process with threads must not fork.
            env=environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def start(self, code: str, *arguments: object, folder: Path, **env: str) -> Child:
        """Start code in a new process; its output goes to files in a folder."""
        with self._lock:
            self._started += 1
            name = str(self._started)
        folder.mkdir(parents=True, exist_ok=True)
        out, err = folder / f"{name}.out", folder / f"{name}.err"
        return self._fork(arguments, environment(**env), out, err, code=textwrap.dedent(code))

    def start_module(
        self, module: str, *arguments: object, out: Path, err: Path, env: Mapping[str, str]
    ) -> Child:
        """Start `python -m module` in a new process of exactly this environment."""
        return self._fork(arguments, env, out, err, module=module)

    def _fork(
        self, arguments: tuple[object, ...], env: Mapping[str, str], out: Path, err: Path,
        **program: str,
    ) -> Child:  # fmt: skip
        texts = tuple(map(str, arguments))
        pid = self._ask(
            **program, arguments=texts, env=dict(env), folder=os.getcwd(), out=str(out),
            err=str(err),
        )  # fmt: skip
        return Child(int(pid), texts, out, err, self)

    def poll(self, pid: int) -> int | None:
        """Return a child's exit code, negative if a signal ended it; None while it runs."""
        code = self._ask(poll=pid, wait=False)
        return int(code) if code else None

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, **task: Any) -> str:
        assert self._process.stdin
        assert self._process.stdout
        with self._lock:
            print(json.dumps(task), file=self._process.stdin, flush=True)
            return self._process.stdout.readline().strip()


@functools.cache
def light_nursery() -> Nursery:
    """Return the nursery of this process for commands and servers."""
    nursery = Nursery(FOR_SERVERS)
    atexit.register(nursery.close)
    return nursery


@dataclass
class Child:
    """A process that a nursery started, with the methods of a `Popen` that tests use."""

    pid: int
    arguments: tuple[str, ...]
    out: Path
    err: Path
    _nursery: Nursery
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        if self.returncode is None:
            self.returncode = self._nursery.poll(self.pid)
        return self.returncode

    def wait(self, timeout: float = 240.0) -> int:
        """Wait for the process to end, and return its exit code."""
        deadline = time.monotonic() + timeout
        pause = 0.002
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.arguments, timeout)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
        return code

    def complete(self) -> subprocess.CompletedProcess[str]:
        """Wait for the process to end, whatever its exit code, and return what it printed."""
        try:
            code = self.wait()
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return subprocess.CompletedProcess(
            self.arguments, code, self.out.read_text(), self.err.read_text()
        )

    def finish(self) -> str:
        """Wait for the process to succeed, and return what it printed."""
        done = self.complete()
        assert done.returncode == 0, done
        return done.stdout

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        self.send_signal(signal.SIGKILL)
        self.wait()


def run_module(
    module: str, *arguments: object, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module` in a process forked for it, and return what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        return (
            light_nursery().start_module(module, *arguments, out=out, err=err, env=env).complete()
        )
