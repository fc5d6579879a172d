"""The parent's side of a worker process.

The worker's side of the connection to its parent.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

from pydantic import BaseModel

from ..errors import DejavuError, SettingsError
from .fork_lock import ForkLock

__all__ = [
    "ParentConnection",
    "WorkerLostError",
    "WorkerProcess",
]


_START = """
import sys
folders = [sys.path.pop(0)] if sys.path[:1] == [""] else []
import importlib, runpy
module = sys.argv.pop(1)
importlib.import_module(module)
del sys.modules[module]
sys.path[:0] = folders
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""Runs a module as `python -m` does, but imports what it needs before the working folder counts.

A file of the user's there may have the name of a library's module.
"""


class WorkerLostError(DejavuError):
    """A worker process ended, or was killed because it gave no answer.

    Attributes:
        hung: whether the worker was killed because it gave no answer.
    """

    def __init__(self, reason: str, *, hung: bool) -> None:
        """Set the reason, which is also the message."""
        super().__init__(reason)
        self.hung = hung


class WorkerProcess:
    """A child process that reads requests and writes events, one JSON document per line.

    The worker ends by itself when its standard input is closed; `stop` closes it, and kills a
    worker that does not end in time.

    Args:
        module: name of the module to run as the worker.
        environment: all environment variables of the worker.
        grace: seconds that a worker has to end by itself when it is stopped.
        patience: seconds to wait for an event before the worker is considered hung; None waits
            without limit.
    """

    def __init__(
        self,
        module: str,
        environment: Mapping[str, str],
        *,
        grace: float,
        patience: float | None = None,
    ) -> None:
        """Start the worker; the arguments are described at the class."""
        self._grace = grace
        self._patience = patience
        self._process = start_process(module, environment)
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read_events, daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    def send(self, request: BaseModel) -> None:
        """Send a request; if the worker has ended, `receive` raises the reason.

        Raises:
            SettingsError: the request names something that has no UTF-8, such as a file.
        """
        assert self._process.stdin is not None
        try:
            line = request.model_dump_json()
        except ValueError as error:
            raise SettingsError(
                f"a worker process cannot be told a name that has no UTF-8 ({error}): "
                "rename the file, folder or case"
            ) from None
        with suppress(OSError, ValueError):  # the pipe is broken, or another thread closed it
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Return the next event that the worker sent; its key `event` names its kind.

        Raises:
            WorkerLostError: the worker ended, or gave no answer in time and was killed.
        """
        try:
            event = self._events.get(timeout=self._patience)
        except queue.Empty:
            self.kill()
            raise WorkerLostError(f"gave no answer in {self._patience:.0f} s", hung=True) from None
        if event is None:
            raise WorkerLostError(f"ended with {_describe_exit(self.stop())}", hung=False)
        return event

    def stop(self) -> int:
        """Let the worker end, kill it if it does not do so in time, and return its exit code."""
        self._close_requests()
        try:
            return self._process.wait(self._grace)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """Kill the worker and return its exit code."""
        self._process.kill()
        self._close_requests()
        return self._process.wait()

    def _close_requests(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # the pipe is broken, and part of a request was not written yet
            self._process.stdin.close()

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with suppress(json.JSONDecodeError):  # a killed worker may leave half a line
                    self._events.put(json.loads(line))
        self._events.put(None)


def start_process(module: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a module as a process that is connected through pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", _START, module],
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C reaches the parent alone, which then stops its workers
    )


def _describe_exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"


class ParentConnection:
    """Reads the parent's requests and sends it events, one JSON document per line.

    Args:
        requests: the lines that the parent writes.
        events: the stream that the parent reads.
    """

    def __init__(self, requests: IO[str], events: IO[str]) -> None:
        """Connect through two streams."""
        self.requests = requests
        self._events = events
        self._lock = ForkLock()

    @classmethod
    def take_standard_streams(cls) -> ParentConnection:
        """Connect through the standard streams, and keep all other code of the process off them.

        From then on, code that reads standard input finds it empty, and what code prints goes to
        standard error, so that neither can disturb the exchange with the parent.
        """
        connection = cls(
            os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
        )
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        return connection

    def send(self, event: str, **fields: Any) -> None:
        """Send an event; any thread may call this, and nothing is raised if the parent is gone.

        Args:
            event: the kind of the event.
            fields: its content, of types that JSON has.
        """
        line = json.dumps({"event": event, **fields})
        with self._lock, suppress(BrokenPipeError):
            self._events.write(line + "\n")
            self._events.flush()
