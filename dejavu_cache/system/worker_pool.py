"""Jobs on their way through several workers, each of which a thread serves."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Literal, Protocol, TypeVar

from .fork_lock import ForkCondition

__all__ = ["Attempt", "WorkerPool"]

PATIENCE = 900.0
"""Seconds without progress after which jobs that were put off are left."""

Attempt = Literal["done", "again", "later"]
"""What an attempt at a job has led to: it is done, its worker tries it again, or it is put off."""


class _Startable(Protocol):
    def start(self) -> object:
        """Start the worker, unless it runs."""


WorkerT = TypeVar("WorkerT", bound=_Startable)
JobT = TypeVar("JobT")


class WorkerPool(Generic[WorkerT, JobT]):
    """Has workers do jobs, with one thread per worker.

    A job *waits* until a worker takes it. It then *runs*, until it is done, to be tried again since
    its worker was lost, or put off. What was put off is tried again when no job waits.

    Each worker works through a part of the jobs of its own, then helps where most are left.
    Neighbours in a list of jobs mostly share their binaries, and two workers that took turns would
    both compile all of them.

    Args:
        workers: the workers; whoever calls `run` closes them.
        jobs: the jobs, in order.
        attempt: has a worker try a job, in the worker's thread. If it raises, the worker takes no
            job any more.
        deadline: when no job is handed out any more, in seconds of `time.monotonic`.

    Attributes:
        errors: what workers that could not start, and attempts, have raised.
    """

    def __init__(
        self,
        workers: Sequence[WorkerT],
        jobs: Sequence[JobT],
        attempt: Callable[[WorkerT, JobT], Attempt],
        deadline: float = math.inf,
    ) -> None:
        """Let the jobs wait; the arguments are described at the class."""
        self.errors: list[Exception] = []
        self._attempt = attempt
        self._deadline = deadline
        self._parts: list[deque[JobT]] = []
        self._threads: list[threading.Thread] = []
        edges = [number * len(jobs) // len(workers) for number in range(len(workers) + 1)]
        for worker, (start, end) in zip(workers, itertools.pairwise(edges), strict=True):
            part = deque(jobs[start:end])
            self._parts.append(part)
            self._threads.append(
                threading.Thread(target=self._serve, args=(worker, part), daemon=True)
            )
        self._postponed: deque[JobT] = deque()
        self._running = 0
        self._last_progress = time.monotonic()
        self._is_stopped = False
        self._changed = ForkCondition()

    def run(self) -> None:
        """Work until all jobs are done, the time is up, or the pool is stopped.

        When it returns, or an interrupt ends it, a worker may still be starting, or at a job; see
        `join`.
        """
        try:
            for thread in self._threads:
                thread.start()
            while any(thread.is_alive() for thread in self._threads) and not self.is_done:
                with self._changed:
                    self._changed.wait(0.05)
        finally:
            self.stop()

    def stop(self) -> None:
        """Hand out no job any more."""
        self._is_stopped = True

    def join(self, seconds: float | None = None) -> None:
        """Wait until each worker has ended its job, but not for longer than some seconds each."""
        for thread in self._threads:
            if thread.ident is not None:  # an interrupt may have come before it was started
                thread.join(seconds)

    @property
    def is_stopped(self) -> bool:
        """Whether no job is handed out any more."""
        return self._is_stopped

    @property
    def is_done(self) -> bool:
        """Whether all jobs are done."""
        with self._changed:
            return not (self._running or any(self._parts) or self._postponed)

    def _serve(self, worker: WorkerT, own: deque[JobT]) -> None:
        """Hand jobs to one worker until none is left."""
        try:
            while not self.is_done:
                worker.start()  # before a job is taken, so that none waits for it
                job = self._take(own)
                if job is None:
                    return
                led_to: Attempt = "again"
                try:
                    led_to = self._attempt(worker, job)
                finally:  # on an error too, or other threads would wait for this job
                    self._end(job, own, led_to)
        except Exception as error:
            if not self._is_stopped:
                self.errors.append(error)

    def _take(self, own: deque[JobT]) -> JobT | None:
        """Return the next job, or None at the end; wait while one may be put back."""
        with self._changed:
            while not self._is_stopped and time.monotonic() < self._deadline:
                if any(self._parts):
                    self._running += 1
                    return own.popleft() if own else max(self._parts, key=len).pop()
                if self._postponed and time.monotonic() < self._last_progress + PATIENCE:
                    self._running += 1
                    return self._postponed.popleft()
                if not self._running:
                    return None
                self._changed.wait(0.2)
            return None

    def _end(self, job: JobT, own: deque[JobT], led_to: Attempt) -> None:
        with self._changed:
            if led_to == "done":
                self._last_progress = time.monotonic()
            elif led_to == "again":
                own.appendleft(job)
            else:
                self._postponed.append(job)
            self._running -= 1
            self._changed.notify_all()
