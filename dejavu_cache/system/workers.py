"""Worker processes, which a parent tells what to do and replaces when they are lost; their pool.

Parent and worker exchange JSON documents, one per line. The parent names the subject, then one job
after the other. The worker sends events, whose key `event` says what they are:

- `ready`: it has understood the subject;
- `refused`: it cannot do what was asked for, for a reason that it has found;
- `answer`: the outcome of a job;
- `crash`: a job has left the process unusable, which ends now;
- any other: how far a job is, for whoever hears that the process was lost.

A worker closes its output when all it had to write is written.
"""

from __future__ import annotations

import _thread
import itertools
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import IO, Any, Generic, NoReturn, Protocol, TypeVar

from pydantic import BaseModel

from ..errors import DejavuError, PrewarmError, SettingsError, StoreError
from .fork_lock import ForkLock

END_SECONDS = 15.0
"""Seconds that a process has to end once it has closed its output."""


class WorkerLostError(DejavuError):
    """A worker process ended, or was killed because it gave no answer.

    Attributes:
        is_convicted: whether the job is known to have caused it, since the worker reported that, or
            hung; somebody may have killed a process that just ended.
        last_event: what the worker said last of the job, if anything.
    """

    def __init__(self, reason: str, *, is_convicted: bool = False) -> None:
        """Set the reason, which is also the message."""
        super().__init__(reason)
        self.is_convicted = is_convicted
        self.last_event: Mapping[str, Any] = {}


@dataclass(eq=False)
class Worker:
    """Runs jobs in a worker process; if that is lost, the next job gets a new one.

    A process ends by itself when its standard input is closed. A closed worker starts none again.

    Args:
        module: name of the module whose `main` serves the parent.
        subject: what each process is told first.
        environment: all environment variables of the process.
        grace: seconds that a process has to write what it has, when it is stopped.
        patience: seconds to wait for an event before a process is considered hung; None waits
            without limit.
    """

    module: str
    subject: BaseModel
    environment: Mapping[str, str] = field(repr=False)
    grace: float
    patience: float | None = None
    _process: _Process | None = field(default=None, init=False)
    _ready: Mapping[str, Any] = field(default_factory=dict, init=False)
    _starting: ForkLock = field(default_factory=ForkLock, init=False)
    _is_closed: bool = field(default=False, init=False)

    @property
    def pid(self) -> int | None:
        """Process id, if a process runs."""
        return None if self._process is None else self._process.popen.pid

    def start(self) -> Mapping[str, Any]:
        """Return what the process said when it was ready; start one if none runs.

        Raises:
            WorkerLostError: it ended or hung before it was ready, or the worker was closed.
            SettingsError, StoreError: it refuses the subject.
            OSError: no process can be started.
        """
        with self._starting:
            if self._process is None:
                self._ready = self._start()
            return self._ready

    def _start(self) -> Mapping[str, Any]:
        # Assigned first, so that `close` in another thread stops it while it starts.
        self._process = process = _Process(self.module, self.environment)
        try:
            if self._is_closed:
                raise WorkerLostError("it was stopped")
            process.send(self.subject)
            return process.receive("ready", self.patience)
        except BaseException as error:
            self._process = None
            process.stop(self.grace if isinstance(error, DejavuError) else 0.0)
            raise

    def run(self, job: BaseModel) -> Any:
        """Run a job and return its answer.

        Raises:
            WorkerLostError: the process was lost.
            SettingsError, StoreError: it refuses the job.
        """
        self.start()
        process = self._process
        if process is None:
            raise WorkerLostError("it was stopped")
        process.send(job)
        try:
            return process.receive("answer", self.patience)["answer"]
        except WorkerLostError:
            self._process = None
            raise

    def close(self) -> None:
        """Stop the process if one runs, once it has written what it has."""
        self._is_closed = True
        process, self._process = self._process, None
        if process is not None:
            process.stop(self.grace)


class _Process:
    """A child process that reads requests and writes events; see `Worker` for the arguments."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self.popen = start_process(module, environment)
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read_events, daemon=True)
        self._reader.start()

    def send(self, request: BaseModel) -> None:
        """Send a request; if the process has ended, `receive` raises the reason."""
        assert self.popen.stdin is not None
        line = json.dumps(request.model_dump(mode="json"))  # ASCII: a path need not be UTF-8
        with suppress(OSError, ValueError):  # the pipe is broken, or another thread closed it
            self.popen.stdin.write(line + "\n")
            self.popen.stdin.flush()

    def receive(self, wanted: str, patience: float | None) -> dict[str, Any]:
        """Return the next event of a kind.

        Raises:
            WorkerLostError: the process ended or reports a crash, or gave no answer in time and was
                killed.
            SettingsError, StoreError: it refuses what was asked for.
        """
        last: dict[str, Any] = {}
        try:
            while (event := self._next_event(patience))["event"] != wanted:
                last = event
        except WorkerLostError as error:
            error.last_event = last
            raise
        return event

    def _next_event(self, patience: float | None) -> dict[str, Any]:
        try:
            event = self._events.get(timeout=patience)
        except queue.Empty:
            self.stop(0.0)
            raise WorkerLostError(
                f"it gave no answer in {patience:.0f} s", is_convicted=True
            ) from None
        if event is None:
            code = self.wait()
            exit_text = f"signal {-code}" if code < 0 else f"code {code}"
            raise WorkerLostError(f"its process ended with {exit_text}")
        if event["event"] == "crash":
            self.stop(0.0)
            raise WorkerLostError(event["reason"], is_convicted=True)
        if event["event"] == "refused":
            raise (StoreError if event["store"] else SettingsError)(event["message"])
        return event

    def stop(self, grace: float) -> None:
        """Tell the process to end, and kill it if it has not written all in time.

        It may not have ended when this returns: a GPU takes seconds to let go of a process.
        """
        self._close_requests()
        self._reader.join(grace)
        if self._reader.is_alive():
            self.popen.kill()
        threading.Thread(target=self.popen.wait, daemon=True).start()

    def wait(self) -> int:
        """Wait for the process to end, and return its exit code."""
        self._close_requests()
        try:
            return self.popen.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            return self.popen.wait()

    def _close_requests(self) -> None:
        assert self.popen.stdin is not None
        with suppress(OSError):  # the pipe is broken, and part of a request was not written yet
            self.popen.stdin.close()

    def _read_events(self) -> None:
        assert self.popen.stdout is not None
        with self.popen.stdout as lines:
            for line in lines:
                with suppress(json.JSONDecodeError):  # a killed process may leave half a line
                    self._events.put(json.loads(line))
        self._events.put(None)


def start_process(module: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a worker's module as a process that is connected through pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", f"from {module} import main; main()"],
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",  # what a library prints as it is imported is no event, and no error
        start_new_session=True,  # Ctrl-C reaches the parent alone, which then stops its workers
    )


class _Jobber(Protocol):
    """What a pool has work: a worker in a process, here or elsewhere."""

    def start(self) -> object:
        """Start, unless it runs; an error ends the pool's use of it."""

    def run(self, job: Any) -> Any:
        """Do a job and return its outcome; an error ends the pool's use of it."""


JobT = TypeVar("JobT")


class WorkerPool(Generic[JobT]):
    """Has workers do jobs, with one thread per worker; whoever makes it closes them and it.

    Each worker works through a part of the jobs of its own, then helps where most are left.
    Neighbours in a list of jobs mostly share their binaries, and two workers that took turns would
    both compile all of them. The workers start at once.

    Attributes:
        errors: what workers have raised that could not start, or could not work.
    """

    def __init__(self, workers: Sequence[_Jobber]) -> None:
        """Begin to start the workers."""
        self.errors: list[Exception] = []
        self._idle: list[int] = []
        self._parts: list[deque[JobT]] = [deque() for _ in workers]
        self._inboxes: list[queue.SimpleQueue[JobT | None]] = [queue.SimpleQueue() for _ in workers]
        # A worker's number, with its job and the outcome, an error, or neither when it is idle.
        self._news: queue.SimpleQueue[tuple[int, JobT | None, Any]] = queue.SimpleQueue()
        self._last = 0
        self._threads = [
            threading.Thread(target=self._serve, args=(number, worker), daemon=True)
            for number, worker in enumerate(workers)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, jobs: Sequence[JobT], deadline: float = math.inf) -> Iterator[tuple[JobT, Any]]:
        """Yield each job with its outcome once it is done.

        After a deadline in seconds of `time.monotonic`, no job is handed out any more.
        """
        count = len(self._parts)
        edges = [number * len(jobs) // count for number in range(count + 1)]
        self._parts = [deque(jobs[start:end]) for start, end in itertools.pairwise(edges)]
        busy: set[int] = set()
        while True:
            seconds = deadline - time.monotonic()
            while self._idle and any(self._parts) and seconds > 0:
                number = self._idle.pop(0)
                busy.add(number)
                own = self._parts[number]
                self._inboxes[number].put(own.popleft() if own else max(self._parts, key=len).pop())
            can_begin = any(self._parts) and seconds > 0 and len(self.errors) < count
            if not busy and not can_begin:
                return
            try:
                waits = can_begin and math.isfinite(seconds)
                number, job, outcome = self._news.get(timeout=seconds if waits else None)
            except queue.Empty:
                continue
            busy.discard(number)
            self._last = number
            if isinstance(outcome, Exception):
                self.errors.append(outcome)
                if job is not None:  # or nobody would do it
                    self.put_back(job)
            elif job is None:
                self._idle.append(number)
            else:
                yield job, outcome

    def put_back(self, job: JobT) -> None:
        """Have the job that was yielded last done again, by the same worker if it can."""
        self._parts[self._last].appendleft(job)

    def _serve(self, number: int, worker: _Jobber) -> None:
        """Hand jobs to one worker until there are no more."""
        job: JobT | None = None
        try:
            while True:
                worker.start()  # before it gets a job, so that none waits for it
                self._news.put((number, None, None))
                if (job := self._inboxes[number].get()) is None:
                    return
                self._news.put((number, job, worker.run(job)))
                job = None
        except Exception as error:
            self._news.put((number, job, error))

    def close(self, seconds: float | None = None) -> None:
        """Hand out no job any more; wait for the current ones, but only for some seconds each."""
        for inbox in self._inboxes:
            inbox.put(None)
        for thread in self._threads:
            thread.join(seconds)


@dataclass(eq=False)
class ParentConnection:
    """The worker's side of the connection: reads requests and sends events."""

    requests: IO[str]
    events: IO[str]
    _lock: ForkLock = field(default_factory=ForkLock, init=False)

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
        """Send an event, with fields of types that JSON has.

        Any thread may call this, and nothing is raised if the parent is gone.
        """
        line = json.dumps({"event": event, **fields})
        with self._lock, suppress(BrokenPipeError):
            self.events.write(line + "\n")
            self.events.flush()

    def refuse(self, error: Exception) -> None:
        """Send the reason why something cannot be done."""
        reason = error if isinstance(error, DejavuError) else f"{type(error).__name__}: {error}"
        is_unusable = isinstance(error, StoreError | PrewarmError | OSError)
        self.send("refused", message=str(reason), store=is_unusable)

    def jobs(self) -> Iterator[str]:
        """Yield the parent's requests; once it is gone, interrupt the current one, or else end."""
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        is_busy = False

        def read() -> None:
            for line in self.requests:
                lines.put(line)
            lines.put(None)
            if is_busy:
                _thread.interrupt_main()
            time.sleep(END_SECONDS)  # what hangs, as an import may, must not outlive the parent
            os._exit(1)

        threading.Thread(target=read, name="dejavu-cache jobs", daemon=True).start()
        while (line := lines.get()) is not None:
            is_busy = True
            yield line
            is_busy = False

    def close(self) -> None:
        """Tell the parent that all is written."""
        with suppress(OSError):
            self.events.close()


def serve(runner: type[Any], subject: type[BaseModel], job: type[BaseModel]) -> NoReturn:
    """Run the jobs of the parent until it closes the connection, then end the process.

    The runner is made with the subject and the `ParentConnection`. Its `ready` is what the parent
    is told before the first job, `run` returns a job's outcome, and `close` writes what is left. A
    `DejavuError` of `run` leaves it usable; any other error ends the process.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    parent = ParentConnection.take_standard_streams()
    with suppress(KeyboardInterrupt):  # the parent may end while this process does
        with suppress(KeyboardInterrupt):
            _serve(parent, runner, subject, job)
        sys.stderr.flush()
        parent.close()
    # A device in a bad state, or a thread that waits for it, would hold up an orderly exit.
    os._exit(0)


def _serve(
    parent: ParentConnection, runner: type[Any], subject: type[BaseModel], job: type[BaseModel]
) -> None:
    """Run the jobs of the parent until it closes the connection, or one leaves a bad state."""
    requests = parent.jobs()
    if (line := next(requests, None)) is None:  # the parent ended before it said what is wanted
        return
    try:
        running = runner(subject.model_validate(json.loads(line)), parent)
    except Exception as error:
        parent.refuse(error)
        return
    parent.send("ready", **running.ready)
    with closing(running), suppress(KeyboardInterrupt):
        for line in requests:
            try:
                answer = running.run(job.model_validate(json.loads(line)))
            except DejavuError as error:
                parent.refuse(error)
            except Exception as error:
                parent.send("crash", reason=f"{type(error).__name__}: {error}"[:2000])
                return
            else:
                parent.send("answer", answer=answer.model_dump(mode="json"))
