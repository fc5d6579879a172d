"""Jobs on their way through several workers, each of which a thread serves."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from .fork_lock import ForkCondition

__all__ = ["WorkerPool"]


class _Startable(Protocol):
    def start(self) -> object:
        """Start the worker, unless it runs."""


WorkerT = TypeVar("WorkerT", bound=_Startable)
JobT = TypeVar("JobT")


class WorkerPool(Generic[WorkerT, JobT]):
    """Has workers do jobs, with one thread per worker.

    Each worker works through a part of the jobs of its own, then helps where most are left.
    Neighbours in a list of jobs mostly share their binaries, and two workers that took turns would
    both compile all of them.

    Args:
        workers: the workers; whoever calls `run` closes them.
        jobs: the jobs, in order.
        attempt: has a worker do a job, in the worker's thread; returns whether the job is done, and
            need not be tried again. If it raises, the worker takes no job any more.
        deadline: when no job is handed out any more, in seconds of `time.monotonic`.

    Attributes:
        errors: what workers that could not start, and attempts, have raised.
        is_stopped: whether no job is handed out any more.
    """

    def __init__(
        self,
        workers: Sequence[WorkerT],
        jobs: Sequence[JobT],
        attempt: Callable[[WorkerT, JobT], bool],
        deadline: float = math.inf,
    ) -> None:
        """Let the jobs wait; the arguments are described at the class."""
        self.errors: list[Exception] = []
        self.is_stopped = False
        self._attempt = attempt
        self._deadline = deadline
        self._left = len(jobs)
        self._changed = ForkCondition()
        self._parts: list[deque[JobT]] = []
        self._threads: list[threading.Thread] = []
        edges = [number * len(jobs) // len(workers) for number in range(len(workers) + 1)]
        for worker, (start, end) in zip(workers, itertools.pairwise(edges), strict=True):
            part = deque(jobs[start:end])
            self._parts.append(part)
            self._threads.append(
                threading.Thread(target=self._serve, args=(worker, part), daemon=True)
            )
        self._serving = len(workers)

    def run(self) -> None:
        """Work until all jobs are done, the time is up, or the pool is stopped.

        When it returns, or an interrupt ends it, a worker may still be starting, or at a job; see
        `join`.
        """
        try:
            for thread in self._threads:
                thread.start()
            with self._changed:
                self._changed.wait_for(lambda: self.is_done or not self._serving)
        finally:
            self.stop()

    def stop(self) -> None:
        """Hand out no job any more."""
        with self._changed:
            self.is_stopped = True
            self._changed.notify_all()

    def join(self, seconds: float | None = None) -> None:
        """Wait until each worker has ended its job, but not for longer than some seconds each."""
        for thread in self._threads:
            if thread.ident is not None:  # an interrupt may have come before it was started
                thread.join(seconds)

    @property
    def is_done(self) -> bool:
        """Whether all jobs are done."""
        return not self._left

    def _serve(self, worker: WorkerT, own: deque[JobT]) -> None:
        """Hand jobs to one worker until none is left."""
        try:
            while not self.is_done:
                worker.start()  # before a job is taken, so that none waits for it
                job = self._take(own)
                if job is None:
                    return
                is_done = False
                try:
                    is_done = self._attempt(worker, job)
                finally:  # on an error too, or nobody would do this job
                    self._end(job, own, is_done=is_done)
        except Exception as error:
            if not self.is_stopped:
                self.errors.append(error)
        finally:
            with self._changed:
                self._serving -= 1
                self._changed.notify_all()

    def _take(self, own: deque[JobT]) -> JobT | None:
        """Return the next job, or None at the end; wait while one may be put back."""
        with self._changed:
            while self._left and not self.is_stopped and time.monotonic() < self._deadline:
                if any(self._parts):
                    return own.popleft() if own else max(self._parts, key=len).pop()
                seconds = self._deadline - time.monotonic()
                self._changed.wait(seconds if math.isfinite(seconds) else None)
            return None

    def _end(self, job: JobT, own: deque[JobT], *, is_done: bool) -> None:
        with self._changed:
            if is_done:
                self._left -= 1
            else:
                own.appendleft(job)
            self._changed.notify_all()
