"""Worker processes, each answering one job at a time."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from ..errors import PrewarmError
from .messages import BuildPlan, CompileJob, CompileResult, PrewarmSpec, Refusal
from .worker import PLAN

__all__ = ["CompileProcess", "compile_all"]

M = TypeVar("M", bound=BaseModel)


class CompileProcess:
    """One worker process."""

    def __init__(self, spec: PrewarmSpec) -> None:
        self._spec = spec
        # It compiles, whatever this process does; and no driver may be touched, where there is one.
        own = {
            "CUDA_VISIBLE_DEVICES": "",
            "HIP_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        dropped = (
            "TRITON_INTERPRET",
            "DEJAVU_CACHE_URL",
            "DEJAVU_CACHE_REPORT",
            "TRITON_CACHE_MANAGER",
        )
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dejavu_cache.prewarm.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**kept, **own},
            start_new_session=True,  # an interrupt is this process's to deal with
        )
        self._send(spec.model_dump_json())

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # its answer says why, or that there is none
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _answer(self, kind: type[M]) -> M | Refusal:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise _LostError(how)
        answer: M | Refusal
        try:
            answer = kind.model_validate_json(line)
        except ValidationError:
            answer = TypeAdapter(Refusal).validate_json(line)
        return answer

    def plan(self) -> BuildPlan:
        """What there is to do.

        Raises:
            PrewarmError: nothing can be done.
        """
        self._send(PLAN)
        try:
            answer = self._answer(BuildPlan)
        except _LostError as error:
            raise PrewarmError(
                f"importing {', '.join(self._spec.modules)} took the process down ({error})"
            ) from None
        if isinstance(answer, Refusal):
            raise PrewarmError(answer.message)
        return answer

    def build(self, job: CompileJob) -> CompileResult:
        """Makes one binary."""
        self._send(job.model_dump_json())
        answer = self._answer(CompileResult)
        return (
            CompileResult(error=answer.message, fatal=True)
            if isinstance(answer, Refusal)
            else answer
        )

    def close(self) -> None:
        """Ends the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> CompileProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


class _LostError(Exception):
    """The process is gone."""


def compile_all(
    spec: PrewarmSpec,
    first: CompileProcess,
    jobs: Sequence[CompileJob],
    processes: int,
    advance: Callable[[CompileJob, CompileResult], None],
) -> dict[CompileJob, CompileResult]:
    """Does all jobs in some processes, and returns how each went; a fatal one stops the others.

    A process compiles for one architecture only: Triton goes on converting float8 as the first one of its process did.

    Args:
        first: a process that runs already.
        advance: is told each job that is done.
    """
    left: queue.SimpleQueue[CompileJob] = queue.SimpleQueue()
    for job in sorted(jobs, key=lambda job: job.arch):
        left.put(job)
    done: dict[CompileJob, CompileResult] = {}
    stop = threading.Event()
    lock = threading.Lock()

    def work(process: CompileProcess | None) -> None:
        mine: list[CompileProcess] = []
        arch = None
        try:
            while not stop.is_set():
                try:
                    job = left.get_nowait()
                except queue.Empty:
                    return
                if process in mine and arch != job.arch:
                    process.close()
                if process is None or arch not in (None, job.arch):
                    process = CompileProcess(spec)
                    mine.append(process)
                arch = job.arch
                try:
                    built = process.build(job)
                except _LostError as error:
                    built, process = (
                        CompileResult(error=f"the compiler took its process down ({error})"),
                        None,
                    )
                with lock:
                    done[job] = built
                    advance(job, built)
                if built.fatal:
                    stop.set()
        finally:
            for each in mine:
                each.close()

    # Another process imports the kernels for some seconds before it is of use.
    wanted = max(1, min(processes, len(jobs) // 4))
    threads = [
        threading.Thread(target=work, args=(first if not each else None,)) for each in range(wanted)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:  # whoever interrupts waits for the jobs that are being done, so that nothing is written afterwards
        stop.set()
        for thread in threads:
            thread.join()
    return done
