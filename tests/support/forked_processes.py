"""Processes that `fork_on_request.py` forks, with the methods of a `Popen`."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

__all__ = ["WORKERS_ADDRESS", "ForkedProcess", "ForkedWorker", "fork_workers", "worker_starter"]

WORKERS_ADDRESS = "TEST_WORKERS_ADDRESS"
"""Environment variable: where a command asks for its workers, and its `TRITON_INTERPRET`."""


class ForkedProcess:
    """A process that a fork server starts.

    Args:
        address: the server's socket.
        streams: the process's standard input, output and error.
        task: what it runs: `code`, a `file` or a `module`, its `arguments`, and all of `env`.
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

    def wait(self, timeout: float | None = 240.0) -> int:
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


class ForkedWorker(ForkedProcess):
    """A worker process of the library, connected through pipes."""

    def __init__(self, address: str, module: str, environment: Mapping[str, str]) -> None:
        reads_requests, writes_requests = os.pipe()
        reads_events, writes_events = os.pipe()
        super().__init__(
            address, (reads_requests, writes_events, 2),
            code=f"import sys; sys.path.insert(0, ''); import {module} as worker; worker.main()",
            env=dict(environment), new_session=True,
        )  # fmt: skip
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
        return ForkedWorker(address, module, environment)

    return start_or_fork


def fork_workers() -> None:
    """Fork the workers of this process from the server that the environment names."""
    from dejavu_cache.system import workers

    workers.start_process = worker_starter(  # type: ignore[assignment]
        *os.environ[WORKERS_ADDRESS].split("|")
    )
