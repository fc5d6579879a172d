"""Where jobs are done: a worker process on this machine, replaced whenever it is lost."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, Protocol

from ..errors import DejavuError, SettingsError, StoreError
from ..model.scenario import Config
from .journal import left_behind
from .messages import CaseJob, CaseOutcome, SweepSpec

__all__ = ["HostLostError", "LocalHost", "SweepHost"]

OnEvent = Callable[[Mapping[str, Any]], None]

Blame = Literal["config", "machine", "unknown"]

PATIENCE = 600.0
"""Seconds without a word from a worker, after which it is taken to hang: compiling one config may take minutes."""

LAST_WORDS = 15.0
"""Seconds that a worker has to hand over what it holds when it is stopped."""


class HostLostError(DejavuError):
    """A worker died, or its device's context did.

    Attributes:
        config: what it was measuring, if anything.
        reason: what it said last, or how it ended.
        blame: the `config`, if the worker said so itself; the `machine`, if that is gone; else somebody may have
            killed the process, which is `unknown`.
    """

    def __init__(self, config: Config | None, reason: str, blame: Blame) -> None:
        super().__init__(reason)
        self.config = config
        self.reason = reason
        self.blame = blame


class SweepHost(Protocol):
    """Something that does jobs, one at a time."""

    def cases(self) -> list[str]:
        """The names of all cases, once a worker is there to do them.

        Raises:
            DejavuError: there is nothing that could do them.
        """

    def do(self, job: CaseJob, on_event: OnEvent) -> CaseOutcome:
        """Does a job.

        Raises:
            HostLostError: its worker was lost; the next job gets a new one.
        """

    def close(self) -> None:
        """Ends the worker; what it measured is kept."""

    def kept(self) -> list[str]:
        """The files, where the worker was, with what the store has not taken; to be asked after `close`."""


class LocalHost:
    """A worker process on this machine.

    Args:
        environment: what its environment has more than this one's: which GPU it sees.
        patience: seconds without a word after which a worker is taken to hang.
    """

    def __init__(
        self,
        spec: SweepSpec,
        environment: Mapping[str, str] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._spec = spec
        self._environment = {**os.environ, "DEJAVU_CACHE_PROGRESS": "0", **(environment or {})}
        self._patience = patience
        self._process: subprocess.Popen[str] | None = None
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._cases: list[str] = []
        self._lock = threading.Lock()

    def cases(self) -> list[str]:
        self._started()
        return self._cases

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._started().pid

    def do(self, job: CaseJob, on_event: OnEvent) -> CaseOutcome:
        process = self._started()
        config: Config | None = None
        try:
            assert process.stdin is not None
            process.stdin.write(job.model_dump_json() + "\n")
            process.stdin.flush()
            while True:
                event = self._event()
                if event["event"] == "outcome":
                    return CaseOutcome.model_validate(event["outcome"])
                if event["event"] == "crash":
                    raise HostLostError(config, event["reason"], "config")
                if event["event"] == "config":
                    config = Config.model_validate(event["config"])
                on_event(event)
        except queue.Empty:
            self._end(kill=True)
            raise HostLostError(
                config, f"it gave no answer in {self._patience:.0f} s", "config"
            ) from None
        except (EOFError, BrokenPipeError):
            code = self._end(kill=False)  # it is about to end by itself: how, is the reason
            raise HostLostError(
                config, f"the process that measured it ended with {_told(code)}", "unknown"
            ) from None
        except HostLostError:
            self._end(kill=True)
            raise

    def close(self) -> None:
        self._end(kill=False)

    def kept(self) -> list[str]:
        return [str(path) for path in left_behind(self._spec.store)]

    def _started(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._process is None:
                self._process = self._start()
            return self._process

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "dejavu_cache.sweep.worker"],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a Ctrl-C is for the sweep, which ends its workers in good order
        )
        events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._events = events
        threading.Thread(target=_listen, args=(process, events), daemon=True).start()
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(self._spec.model_dump_json() + "\n")
            process.stdin.flush()
        try:
            event = self._event()
        except EOFError:
            how = f"it ended with {_told(_ended(process))}"
            raise HostLostError(None, f"no worker can be started: {how}", "config") from None
        except (queue.Empty, KeyboardInterrupt) as error:
            process.kill()
            process.wait()
            if isinstance(error, KeyboardInterrupt):
                raise
            how = f"it gave no answer in {self._patience:.0f} s"
            raise HostLostError(None, f"no worker can be started: {how}", "config") from None
        if event["event"] == "refused":
            process.wait()
            raise (StoreError if event["store"] else SettingsError)(event["message"])
        self._cases = event["cases"]
        return process

    def _event(self) -> dict[str, Any]:
        event = self._events.get(timeout=self._patience)
        if event is None:
            raise EOFError
        return event

    def _end(self, *, kill: bool) -> int:
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return 0
        if kill:
            process.kill()
        with suppress(OSError):
            process.stdin.close()  # type: ignore[union-attr]
        return _ended(process)


def _ended(process: subprocess.Popen[str]) -> int:
    """The exit code of a process that is about to end, or is made to."""
    try:
        return process.wait(LAST_WORDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _listen(
    process: subprocess.Popen[str], events: queue.SimpleQueue[dict[str, Any] | None]
) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            with suppress(json.JSONDecodeError):  # the last line of a process that was killed
                events.put(json.loads(line))
    events.put(None)


def _told(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"
