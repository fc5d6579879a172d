"""The processes that compile for a prewarming, and the messages that they exchange with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import DejavuError, PrewarmError
from ..model.record import RecordedLaunch
from ..model.scenario import Config, FrozenModel
from ..stores.manifest import Manifest
from ..system.fork_lock import ForkLock
from ..system.worker_pool import WorkerPool
from ..system.worker_process import Worker, WorkerLostError

__all__ = [
    "BuildPlan",
    "CompileJob",
    "CompileResult",
    "Compiler",
    "OnProgress",
    "PrewarmRequest",
    "PrewarmSpec",
    "compile_all",
]

OnProgress = Callable[[int, int], None]
"""Takes the number of binaries that are done, and that of all."""

GRACE = 5.0
"""Seconds that a process has to end by itself when it is closed."""

DROPPED_VARIABLES = frozenset(
    {"TRITON_INTERPRET", "DEJAVU_CACHE_URL", "DEJAVU_CACHE_REPORT", "TRITON_CACHE_MANAGER"}
)
"""Settings of this process that would keep another from compiling, or change what it stores."""

JOBS_PER_PROCESS = 4
"""Jobs for which another process is worth the seconds that it needs to import the kernels."""


class PrewarmSpec(FrozenModel):
    """The user's options for a prewarming.

    Attributes:
        modules: names of the kernels' modules; a package stands for all modules in it.
        store: URL of the store with the records.
        devices: names of devices, as records have them.
        folder: the folder to write to, as `stores.manifest` describes it.
    """

    modules: tuple[str, ...]
    store: str
    devices: tuple[str, ...]
    folder: str = ""


class CompileJob(FrozenModel):
    """One binary to compile."""

    kernel: str
    arch: str
    launch: RecordedLaunch
    config: Config | None = None

    def __str__(self) -> str:
        """Return the kernel, the architecture and the config for a message."""
        return f"{self.kernel} for {self.arch}{f' ({self.config})' if self.config else ''}"


class PrewarmRequest(FrozenModel):
    """A request to a worker: to run a job, or to make the plan if there is no job."""

    job: CompileJob | None = None


class BuildPlan(FrozenModel):
    """What is to be compiled, and what else a prewarmed folder says and holds.

    Attributes:
        jobs: the binaries of winners.
        fallbacks: those of configs that stand in for winners; one that does not compile is left
            out.
        manifest: the folder's manifest, without its files and the numbers of binaries.
        notes: remarks for the user, one sentence each.
    """

    jobs: tuple[CompileJob, ...]
    fallbacks: tuple[CompileJob, ...]
    manifest: Manifest
    notes: tuple[str, ...]


class CompileResult(FrozenModel):
    """The result of a job.

    Attributes:
        error: the error; empty if there was none.
        note: a remark for the user.
        binary: Triton's key of the binary. Configs that only differ in values that are not compiled
            in share one.
        keys: the folders of Triton's cache that the binary needs.
        is_fresh: whether it was compiled and not found in the cache.
    """

    error: str = ""
    note: str = ""
    binary: str = ""
    keys: tuple[str, ...] = ()
    is_fresh: bool = False


class Compiler:
    """Plans a prewarming and compiles for it, in a process that is replaced if that takes it down.

    Args:
        spec: the options of the prewarming.
    """

    def __init__(self, spec: PrewarmSpec) -> None:
        """Start nothing yet."""
        environment = {
            name: value for name, value in os.environ.items() if name not in DROPPED_VARIABLES
        }
        environment |= {
            "CUDA_VISIBLE_DEVICES": "",  # a builder that has a GPU must not use its driver either
            "HIP_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        self._worker = Worker("dejavu_cache.prewarm.worker", spec, environment, grace=GRACE)
        self._arch: str | None = None

    def start(self) -> None:
        """Start a process unless one runs.

        Raises:
            PrewarmError: none can be started, or it cannot do what the options ask for.
        """
        try:
            self._worker.start()
        except OSError as error:
            raise PrewarmError(
                f"no process can be started that compiles: {error.strerror or error}"
            ) from None
        except DejavuError as error:
            raise PrewarmError(str(error)) from None

    def plan(self) -> BuildPlan:
        """Copy the records to the folder, and return what is to be compiled.

        Raises:
            PrewarmError: nothing can be compiled as asked.
        """
        return BuildPlan.model_validate(self._ask(PrewarmRequest()))

    def compile(self, job: CompileJob) -> CompileResult:
        """Run a job.

        A process compiles for one architecture only, since Triton keeps converting float8 as the
        first architecture of its process needed it.

        Raises:
            PrewarmError: no process can be started.
        """
        if self._arch not in (None, job.arch):
            self.close()
        self._arch = job.arch
        try:
            return CompileResult.model_validate(self._ask(PrewarmRequest(job=job)))
        except WorkerLostError as error:
            return CompileResult(error=f"the compiler was lost: {error}")

    def _ask(self, request: PrewarmRequest) -> Any:
        self.start()
        try:
            return self._worker.run(request)
        except WorkerLostError:
            raise
        except DejavuError as error:
            raise PrewarmError(str(error)) from None

    def close(self) -> None:
        """End the process if one runs."""
        self._worker.close()


def compile_all(
    spec: PrewarmSpec,
    first: Compiler,
    needed: Sequence[CompileJob],
    fallbacks: Sequence[CompileJob],
    processes: int,
    on_progress: OnProgress,
) -> dict[CompileJob, CompileResult]:
    """Run jobs in several processes, and return their results.

    Args:
        spec: the options of the prewarming.
        first: a compiler that runs already; it is closed like the others.
        needed: jobs that must succeed.
        fallbacks: jobs that may fail.
        processes: maximum number of processes.
        on_progress: called after each job.

    Raises:
        PrewarmError: a process cannot be started, or one of the needed jobs fails, which ends
            the others.
    """
    jobs = sorted([*needed, *fallbacks], key=lambda job: job.arch)
    results: dict[CompileJob, CompileResult] = {}
    failures: list[str] = []
    lock = ForkLock()

    def attempt(compiler: Compiler, job: CompileJob) -> bool:
        result = compiler.compile(job)
        if result.error and job in needed:
            failures.append(f"{job} could not be made, and nothing was written: {result.error}")
            pool.stop()
        with lock:
            results[job] = result
            on_progress(len(results), len(jobs))
        return True

    count = max(1, min(processes, len(jobs) // JOBS_PER_PROCESS))
    compilers = [first, *(Compiler(spec) for _ in range(count - 1))]
    pool = WorkerPool(compilers, jobs, attempt)
    try:
        pool.run()
    finally:  # after an interrupt, wait for the running jobs, so that nothing is written later
        pool.join()
        for compiler in compilers:
            compiler.close()
    if failures:
        raise PrewarmError(failures[0])
    if pool.errors:
        raise pool.errors[0]
    return results
