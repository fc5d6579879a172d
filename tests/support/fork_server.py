"""Start processes by forking an interpreter that imported Torch and nothing of this project."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.processes import PROGRAMS, environment

__all__ = ["COMMAND", "Child", "Nursery"]

COMMAND = "from dejavu_client.cli.main import main; main()"
"""`dejavu-cache`, with the child's arguments."""


class Nursery:
    """Starts processes for tests that need many, or one after the other."""

    def __init__(self) -> None:
        self._started = 0
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "fork_on_request.py")],
            # A process with threads must not fork.
            env=environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def start(self, code: str, *arguments: object, folder: Path, **env: str) -> Child:
        """Start code in a new process; its output goes to files in a folder."""
        self._started += 1
        folder.mkdir(parents=True, exist_ok=True)
        out, err = folder / f"{self._started}.out", folder / f"{self._started}.err"
        texts = tuple(map(str, arguments))
        pid = self._ask(
            code=textwrap.dedent(code),
            arguments=texts,
            env=environment(**env),
            out=str(out),
            err=str(err),
        )
        return Child(pid, texts, out, err, self)

    def wait(self, pid: int) -> int:
        """Wait for a child and return its exit code; negative if a signal ended it."""
        return self._ask(wait=pid)

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, **task: Any) -> int:
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(task), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


@dataclass
class Child:
    """A process that a nursery started."""

    pid: int
    arguments: tuple[str, ...]
    out: Path
    err: Path
    _nursery: Nursery

    def wait(self) -> subprocess.CompletedProcess[str]:
        """Wait for the process to end, whatever its exit code."""
        code = self._nursery.wait(self.pid)
        return subprocess.CompletedProcess(
            self.arguments, code, self.out.read_text(), self.err.read_text()
        )

    def finish(self) -> str:
        """Wait for the process to succeed, and return what it printed."""
        done = self.wait()
        assert done.returncode == 0, done
        return done.stdout

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        os.kill(self.pid, signal.SIGKILL)
        self._nursery.wait(self.pid)
