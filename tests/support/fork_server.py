"""Start processes by forking an interpreter that imported libraries and nothing of this project."""

from __future__ import annotations

import atexit
import functools
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Mapping
from pathlib import Path

from support.checkout import PROGRAMS, environment
from support.forked_processes import WORKERS_ADDRESS, ForkedProcess

__all__ = ["COMMAND", "Child", "Nursery", "kernel_nursery", "light_nursery", "start_command"]

COMMAND = "from dejavu_client.cli.main import main; main()"
"""`dejavu-cache`, with the child's arguments."""
FORKING_COMMAND = f"from support.forked_processes import fork_workers; fork_workers(); {COMMAND}"
"""`dejavu-cache`, whose workers are forked too."""

FOR_KERNELS = (
    "filelock", "httpx", "platformdirs", "pydantic", "rich", "sklearn.tree", "stamina", "torch",
    "triton", "typer",
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
        env: environment variables in which they are imported.
    """

    def __init__(self, modules: tuple[str, ...] = FOR_KERNELS, **env: str) -> None:
        self._started = 0
        self._lock = threading.Lock()
        self._folder = tempfile.TemporaryDirectory()
        self.address = f"{self._folder.name}/socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.address)
            listener.listen(100)
            self._process = subprocess.Popen(
                [sys.executable, PROGRAMS / "fork_on_request.py", str(listener.fileno()), *modules],
                # A process with threads must not fork.
                env=environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", **env),
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[listener.fileno()],
            )  # fmt: skip

    def start(self, code: str, *arguments: object, folder: Path, **env: str) -> Child:
        """Start code in a new process; its output goes to files in a folder."""
        return self.start_code(code, *arguments, folder=folder, env=environment(**env))

    def start_code(
        self, code: str, *arguments: object, folder: Path, env: Mapping[str, str]
    ) -> Child:
        """Start code in a new process of exactly this environment."""
        out, err = self._output_files(folder)
        return Child(self, out, err, arguments, env, code=textwrap.dedent(code))

    def start_file(self, path: Path, *arguments: object, folder: Path, **env: str) -> Child:
        """Start a program in a new process, as `start` does."""
        out, err = self._output_files(folder)
        return Child(self, out, err, arguments, environment(**env), file=str(path))

    def start_module(
        self, module: str, *arguments: object, out: Path, err: Path, env: Mapping[str, str]
    ) -> Child:
        """Start `python -m module` in a new process of exactly this environment."""
        return Child(self, out, err, arguments, env, module=module)

    def _output_files(self, folder: Path) -> tuple[Path, Path]:
        with self._lock:
            self._started += 1
            name = str(self._started)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.out", folder / f"{name}.err"

    def close(self) -> None:
        self._process.communicate()
        self._folder.cleanup()


@functools.cache
def light_nursery() -> Nursery:
    """Return the nursery of this process for commands and servers."""
    nursery = Nursery(FOR_SERVERS)
    atexit.register(nursery.close)
    return nursery


@functools.cache
def kernel_nursery(interpret: str) -> Nursery:
    """Return the nursery of this process for kernels, which runs them in the interpreter or not.

    Args:
        interpret: the value of `TRITON_INTERPRET`, which Triton reads when it is imported.
    """
    nursery = Nursery(TRITON_INTERPRET=interpret)
    atexit.register(nursery.close)
    return nursery


class Child(ForkedProcess):
    """A process that a nursery started, whose output goes to two files."""

    def __init__(
        self, nursery: Nursery, out: Path, err: Path, arguments: tuple[object, ...],
        env: Mapping[str, str], **program: str,
    ) -> None:  # fmt: skip
        self.out, self.err = out, err
        with open(os.devnull) as nothing, out.open("a") as output, err.open("a") as errors:
            super().__init__(
                nursery.address, (nothing.fileno(), output.fileno(), errors.fileno()),
                arguments=tuple(map(str, arguments)), env=dict(env), **program,
            )  # fmt: skip

    def communicate(self, timeout: float = 240.0) -> tuple[str, str]:
        """Wait for the process to end, and return its standard output and error."""
        self.wait(timeout)
        return self.out.read_text(), self.err.read_text()

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


def start_command(
    *arguments: object, interpret: str, folder: Path, env: Mapping[str, str]
) -> Child:
    """Start `dejavu-cache` in a process of exactly this environment, and fork its workers too.

    Args:
        arguments: the arguments of the command.
        interpret: the value of `TRITON_INTERPRET` that the workers get.
        folder: where the output goes.
        env: all environment variables.
    """
    workers = f"{kernel_nursery(interpret).address}|{interpret}"
    return light_nursery().start_code(
        FORKING_COMMAND, *arguments, folder=folder, env={**env, WORKERS_ADDRESS: workers}
    )
