"""Distribute the jobs of a prewarming over worker processes."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TypeVar

from pydantic import BaseModel

from ..errors import PrewarmError
from ..system.fork_lock import ForkLock
from ..system.worker_process import WorkerLostError, WorkerProcess
from .worker import BuildPlan, CompileJob, CompileResult, PrewarmRequest, PrewarmSpec

__all__ = ["CompileProcess", "compile_all"]

GRACE = 5.0
"""Seconds that a worker has to end by itself when it is closed."""

DROPPED_VARIABLES = frozenset(
    {"TRITON_INTERPRET", "DEJAVU_CACHE_URL", "DEJAVU_CACHE_REPORT", "TRITON_CACHE_MANAGER"}
)
"""Settings of this process that would keep a worker from compiling, or change what it stores."""

JOBS_PER_PROCESS = 4
"""Jobs for which another process is worth the seconds that it needs to import the kernels."""

ModelT = TypeVar("ModelT", bound=BaseModel)


class CompileProcess:
    """One worker process.

    Args:
        spec: the options of the prewarming.
    """

    def __init__(self, spec: PrewarmSpec) -> None:
        """Start the process and send it the options.

        Raises:
            PrewarmError: it cannot be started.
        """
        self._spec = spec
        environment = {
            name: value for name, value in os.environ.items() if name not in DROPPED_VARIABLES
        }
        environment |= {
            "CUDA_VISIBLE_DEVICES": "",  # a builder that has a GPU must not use its driver either
            "HIP_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        try:
            self._worker = WorkerProcess("dejavu_cache.prewarm.worker", environment, grace=GRACE)
        except OSError as error:
            raise PrewarmError(
                f"no process can be started that compiles: {error.strerror or error}"
            ) from None
        self._worker.send(spec)

    def plan(self) -> BuildPlan:
        """Return the plan of the prewarming.

        Raises:
            PrewarmError: nothing can be compiled as asked.
        """
        try:
            return self._ask(PrewarmRequest(), BuildPlan)
        except WorkerLostError as error:
            modules = ", ".join(self._spec.modules)
            raise PrewarmError(f"the process that imported {modules} {error}") from None

    def compile(self, job: CompileJob) -> CompileResult:
        """Run a job.

        Raises:
            WorkerLostError: the process ended.
        """
        try:
            return self._ask(PrewarmRequest(job=job), CompileResult)
        except PrewarmError as error:
            return CompileResult(error=str(error), fatal=True)

    def _ask(self, request: PrewarmRequest, answer: type[ModelT]) -> ModelT:
        self._worker.send(request)
        event = self._worker.receive()
        if event["event"] == "refused":
            raise PrewarmError(event["message"])
        return answer.model_validate(event["answer"])

    def close(self) -> None:
        """End the process."""
        self._worker.stop()


def compile_all(
    spec: PrewarmSpec,
    first: CompileProcess,
    jobs: Sequence[CompileJob],
    processes: int,
    on_result: Callable[[CompileJob, CompileResult], None],
) -> dict[CompileJob, CompileResult]:
    """Run all jobs in worker processes and return their results; a fatal one stops the others.

    Args:
        spec: the options of the prewarming.
        first: a process that runs already; the caller closes it.
        jobs: the jobs.
        processes: maximum number of processes.
        on_result: called with each job and its result.

    Raises:
        PrewarmError: a process cannot be started.
    """
    pool = _Pool(spec, jobs, on_result)
    count = max(1, min(processes, len(jobs) // JOBS_PER_PROCESS))
    threads = [
        threading.Thread(target=pool.work, args=(None if index else first,))
        for index in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:  # after an interrupt, wait for the running jobs, so that nothing is written later
        pool.stop.set()
        for thread in threads:
            thread.join()
    if pool.error is not None:
        raise pool.error
    return pool.results


class _Pool:
    """The jobs that are left, the results so far, and the loop that threads run on them.

    Attributes:
        error: what stopped the pool, if anything did: there are jobs without a result then.
    """

    def __init__(
        self,
        spec: PrewarmSpec,
        jobs: Sequence[CompileJob],
        on_result: Callable[[CompileJob, CompileResult], None],
    ) -> None:
        self.results: dict[CompileJob, CompileResult] = {}
        self.stop = threading.Event()
        self.error: Exception | None = None
        self._spec = spec
        self._on_result = on_result
        self._lock = ForkLock()
        self._jobs: queue.SimpleQueue[CompileJob] = queue.SimpleQueue()
        for job in sorted(jobs, key=lambda job: job.arch):
            self._jobs.put(job)

    def work(self, process: CompileProcess | None) -> None:
        """Run jobs until none is left, in a process or, if None is given, in a new one.

        A process compiles for one architecture only, since Triton keeps converting float8 as the
        first architecture of its process needed it.
        """
        try:
            self._run_jobs(process)
        except Exception as error:
            self.error = error
            self.stop.set()

    def _run_jobs(self, process: CompileProcess | None) -> None:
        arch = None
        with ExitStack() as started:
            for job in self._next_jobs():
                if process is None or arch not in (None, job.arch):
                    started.close()
                    process = CompileProcess(self._spec)
                    started.callback(process.close)
                arch = job.arch
                try:
                    result = process.compile(job)
                except WorkerLostError as error:
                    process = None
                    result = CompileResult(error=f"the process of the compiler {error}")
                self._add_result(job, result)

    def _next_jobs(self) -> Iterator[CompileJob]:
        """Yield jobs for one thread until none is left, or the pool is stopped."""
        while not self.stop.is_set():
            try:
                yield self._jobs.get_nowait()
            except queue.Empty:
                return

    def _add_result(self, job: CompileJob, result: CompileResult) -> None:
        with self._lock:
            self.results[job] = result
            self._on_result(job, result)
        if result.fatal:
            self.stop.set()
