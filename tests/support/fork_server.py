"""Start processes by forking an interpreter that imported libraries and nothing of this project."""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.checkout import PROGRAMS, environment

COMMAND = "from dejavu_client.cli.main import main; main()"
"""`dejavu-cache`, with the child's arguments."""
FORKING_COMMAND = f"from support.fork_server import fork_workers; fork_workers(); {COMMAND}"
"""`dejavu-cache`, whose workers are forked too."""
WITH_TRITON = ("doctor", "prewarm", "sweep")
"""Commands that may import Triton themselves."""

FOR_KERNELS = (
    "filelock", "httpcore", "httpx", "platformdirs", "pydantic.dataclasses",
    "pydantic.type_adapter", "rich", "support.quicker_triton", "torch", "typer",
)  # fmt: skip
FOR_SERVERS = (
    "alembic.command", "alembic.config", "alembic.script", "anyio._backends._asyncio", "fastapi",
    "filelock", "httpx", "jinja2", "jwt", "platformdirs", "prometheus_client.core", "psycopg",
    "pydantic.dataclasses", "pydantic.v1", "sqlalchemy.dialects.postgresql",
    "sqlalchemy.dialects.sqlite", "sqlite3", "typer", "uvicorn.lifespan.on", "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
)  # fmt: skip
"""What commands and servers import before they do anything; none of it runs or needs a kernel."""


_LEAKS = re.compile(
    r"^(nanobind: |See https://nanobind| - leaked | - \.\.\. skipped).*\n?", re.MULTILINE
)
"""What the binding of Triton 3.9 prints about itself where a process ends."""

TEMPORARY = tempfile.gettempdir()
"""Where the sockets are; a test that asks for the first one may have another folder itself."""

SHARED_FOLDER = "TEST_NURSERIES"
"""Environment variable: where workers of pytest-xdist find the nurseries that they share."""

WORKERS_ADDRESS = "TEST_WORKERS_ADDRESS"
"""Environment variable: where a command asks for its workers, and its `TRITON_INTERPRET`."""

KINDS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "servers": (FOR_SERVERS, {}),
    "kernels-0": (FOR_KERNELS, {"TRITON_INTERPRET": "0"}),
    "kernels-1": (FOR_KERNELS, {"TRITON_INTERPRET": "1"}),
}
"""What each kind of nursery imports before it forks, in which environment.

None of the modules may start a thread.
"""


class Nursery:
    """Starts processes for tests that need many, or one after the other, by a fork server."""

    def __init__(self, address: str) -> None:
        self.address = address

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

    def _output_files(self, folder: Path) -> tuple[Path, Path]:
        folder.mkdir(parents=True, exist_ok=True)
        name = uuid.uuid4().hex
        return folder / f"{name}.out", folder / f"{name}.err"


class ForkServers:
    """A fork server of each kind, which imports its modules when it is first asked.

    They end with the process that made this object, or when it closes it.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(dir=TEMPORARY)
        self.folder = self._folder.name
        self._processes = [_start_fork_server(f"{self.folder}/{kind}", kind) for kind in KINDS]

    def close(self) -> None:
        """End the servers, and remove their sockets."""
        for process in self._processes:
            process.communicate()
        self._folder.cleanup()


def _start_fork_server(address: str, kind: str) -> subprocess.Popen[bytes]:
    """Start what accepts connections to an address until its standard input is closed."""
    modules, env = KINDS[kind]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(100)
        return subprocess.Popen(
            [sys.executable, PROGRAMS / "fork_on_request.py", str(listener.fileno()), *modules],
            # A process with threads must not fork.
            env=environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", **env),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[listener.fileno()],
        )  # fmt: skip


def _nursery(kind: str) -> Nursery:
    """Return a nursery that the workers of pytest-xdist share, or else one of this process."""
    if SHARED_FOLDER not in os.environ:
        servers = ForkServers()
        os.environ[SHARED_FOLDER] = servers.folder
        atexit.register(servers.close)
    return Nursery(f"{os.environ[SHARED_FOLDER]}/{kind}")


def light_nursery() -> Nursery:
    """Return the nursery for commands and servers."""
    return _nursery("servers")


def kernel_nursery(interpret: str = "") -> Nursery:
    """Return the nursery for kernels, which runs them in the interpreter or not.

    Args:
        interpret: the value of `TRITON_INTERPRET`, which Triton reads when it is imported.
    """
    return _nursery(f"kernels-{interpret or os.environ.get('TRITON_INTERPRET', '0')}")


class ForkedProcess:
    """A process that a fork server starts.

    Args:
        address: the server's socket.
        streams: the process's standard input, output and error.
        task: what it runs: `code` or a `file`, its `arguments`, and all of `env`.
    """

    def __init__(self, address: str, streams: Sequence[int], **task: Any) -> None:
        message = json.dumps({"folder": os.getcwd(), "arguments": [], "new_session": False, **task})
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(address)
        socket.send_fds(self._connection, [message.encode()], streams)
        self.pid = int(self._connection.recv(64))
        self.arguments: Sequence[str] = task.get("arguments", ())
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def __del__(self) -> None:
        self._connection.close()

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        with self._lock:
            return self._receive_exit_code(0)

    def wait(self, timeout: float | None = 560.0) -> int:
        """Wait for the process to end, and return its exit code."""
        with self._lock:
            code = self._receive_exit_code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.arguments, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended this moment
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def _receive_exit_code(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], timeout)[0]:
            with self._connection:
                self.returncode = int(self._connection.recv(64))
        return self.returncode


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
        err = _LEAKS.sub("", self.err.read_text())
        return subprocess.CompletedProcess(self.arguments, code, self.out.read_text(), err)

    def finish(self) -> str:
        """Wait for the process to succeed, and return what it printed."""
        done = self.complete()
        assert done.returncode == 0, done
        return done.stdout


def start_command(
    *arguments: object, interpret: str, folder: Path, env: Mapping[str, str]
) -> Child:
    """Start `dejavu-cache` in a process of exactly this environment, and fork its workers too."""
    kernels = kernel_nursery(interpret)
    nursery = kernels if arguments[0] in WITH_TRITON else light_nursery()
    workers = {WORKERS_ADDRESS: f"{kernels.address}|{interpret}"}
    return nursery.start_code(FORKING_COMMAND, *arguments, folder=folder, env={**env, **workers})


class PipedProcess(ForkedProcess):
    """A process that is talked to through pipes; the task is that of `ForkedProcess`."""

    def __init__(self, address: str, **task: Any) -> None:
        reads_requests, writes_requests = os.pipe()
        reads_events, writes_events = os.pipe()
        super().__init__(address, (reads_requests, writes_events, 2), **task)
        os.close(reads_requests)
        os.close(writes_events)
        self.stdin = os.fdopen(writes_requests, "w", encoding="utf-8")
        self.stdout = os.fdopen(reads_events, encoding="utf-8")


def worker_starter(address: str, interpret: str) -> Callable[[str, Mapping[str, str]], Any]:
    """Return what the library may start workers with: it forks them from a server.

    Workers whose libraries would have been imported in another environment are started as ever.
    """
    from dejavu_cache.system.workers import start_process

    def start_or_fork(module: str, environment: Mapping[str, str]) -> Any:
        if environment.get("TRITON_INTERPRET", "0") != interpret:
            return start_process(module, environment)
        code = f"import sys; sys.path.insert(0, ''); import {module} as worker; worker.main()"
        return PipedProcess(address, code=code, env=dict(environment), new_session=True)

    return start_or_fork


def fork_workers() -> None:
    """Fork the workers of this process from the server that the environment names."""
    from dejavu_cache.system import workers

    workers.start_process = worker_starter(  # type: ignore[assignment]
        *os.environ[WORKERS_ADDRESS].split("|")
    )
