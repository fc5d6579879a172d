"""Build a prewarmed folder by processes that compile; on failure, an earlier one stays as it was.

The processes run `prewarm.worker`; the messages that they exchange with this one are here.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from ..errors import DejavuError, PrewarmError
from ..model.record import RecordedLaunch
from ..model.scenario import Config, FrozenModel
from ..stores.manifest import (
    BINARIES,
    MANIFEST,
    RECORDS,
    Manifest,
    describe_file,
    files_of,
    find_differences,
    is_prewarmed,
    read_manifest,
)
from ..system.notices import Progress, counted
from ..system.workers import Worker, WorkerLostError, WorkerPool

__all__ = [
    "BuildPlan",
    "CompileJob",
    "CompileResult",
    "Compiler",
    "PrewarmRequest",
    "PrewarmResult",
    "PrewarmSpec",
    "compile_all",
    "prewarm",
]

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
        self._spec = spec
        self._worker = self._make_worker()
        self._arch: str | None = None

    def _make_worker(self) -> Worker:
        environment = {
            name: value for name, value in os.environ.items() if name not in DROPPED_VARIABLES
        }
        environment |= {
            "CUDA_VISIBLE_DEVICES": "",  # a builder that has a GPU must not use its driver either
            "HIP_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        return Worker("dejavu_cache.prewarm.worker", self._spec, environment, grace=GRACE)

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

    def run(self, job: CompileJob) -> CompileResult:
        """Run a job.

        A process compiles for one architecture only, since Triton keeps converting float8 as the
        first architecture of its process needed it.

        Raises:
            PrewarmError: no process can be started.
        """
        if self._arch not in (None, job.arch):
            self.close()
            self._worker = self._make_worker()
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
    compilers: Sequence[Compiler], needed: Sequence[CompileJob], fallbacks: Sequence[CompileJob]
) -> dict[CompileJob, CompileResult]:
    """Run jobs in several processes, and return their results.

    Args:
        compilers: have a process each; the caller closes them.
        needed: jobs that must succeed.
        fallbacks: jobs that may fail.

    Raises:
        PrewarmError: a process cannot be started, or one of the needed jobs fails, which ends
            the others.
    """
    jobs = sorted([*needed, *fallbacks], key=lambda job: job.arch)
    results: dict[CompileJob, CompileResult] = {}
    progress = Progress("prewarm")
    pool: WorkerPool[CompileJob] = WorkerPool(compilers)
    try:
        for job, result in pool.run(jobs):
            if result.error and job in needed:
                raise PrewarmError(
                    f"{job} could not be made, and nothing was written: {result.error}"
                )
            results[job] = result
            progress.show(f"{len(results)} of {counted(len(jobs), 'binary', 'binaries')}")
    finally:  # after an interrupt, wait for the running jobs, so that nothing is written later
        pool.close()
    if pool.errors:
        raise pool.errors[0]
    return results


class PrewarmResult(NamedTuple):
    """The result of a prewarming.

    Attributes:
        compiled: number of kernels that were compiled; 0 if all were there already.
        notes: remarks for the user, one sentence each.
    """

    manifest: Manifest
    compiled: int
    notes: tuple[str, ...]


def prewarm(spec: PrewarmSpec, out: Path, *, processes: int | None = None) -> PrewarmResult:
    """Build a prewarmed folder without a GPU.

    Args:
        spec: what is prewarmed, and for which devices.
        out: the folder. Binaries of an earlier prewarming that are still needed are kept.
        processes: number of processes that compile at once; None is one per CPU.

    Raises:
        PrewarmError: the folder cannot be built or written; an earlier one is as it was.
    """
    with _new_folder(out) as work:
        notes = _copy_earlier_binaries(out, work)
        spec = spec.model_copy(update={"folder": str(work)})
        with ExitStack() as compilers:
            first = compilers.enter_context(closing(Compiler(spec)))
            plan = first.plan()
            count = len([*plan.jobs, *plan.fallbacks]) // JOBS_PER_PROCESS
            others = [
                compilers.enter_context(closing(Compiler(spec)))
                for _ in range(min(processes or _cpu_count(), count) - 1)
            ]
            results = compile_all([first, *others], plan.jobs, plan.fallbacks)
        notes += [
            f"{job} could not be compiled and is left out: {result.error}"
            for job, result in results.items()
            if result.error
        ]
        notes += dict.fromkeys(result.note for result in results.values() if result.note)
        _remove_unneeded(work, {key for result in results.values() for key in result.keys})
        manifest = _complete_manifest(plan.manifest, results, work)
        (work / MANIFEST).write_text(manifest.text, encoding="utf-8")
        for path in (work, *work.rglob("*")):  # another user may run the program
            path.chmod(0o755 if path.is_dir() else 0o644)
    compiled = _count_binaries(result for result in results.values() if result.is_fresh)
    return PrewarmResult(manifest, compiled, (*plan.notes, *notes))


def _cpu_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Make a working folder, which takes the place of `out` at the end, unless an error is raised.

    Raises:
        PrewarmError: something else is there already, it cannot be written, or another process
            makes it.
    """
    out = Path(os.path.realpath(out))  # what a link names is replaced, and not the link
    work, old, lock = (out.with_name(f".{out.name}.{kind}") for kind in ("making", "old", "lock"))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock, timeout=0):
            try:
                _restore(out, old)  # where a killed process has left it
                _check_place(out)
                for folder in (work, old):
                    shutil.rmtree(folder, ignore_errors=True)
                work.mkdir()  # fails where somebody put a link
                yield work
                if out.exists():
                    out.rename(old)
                work.rename(out)
            finally:
                _restore(out, old)
                for folder in (work, old):
                    shutil.rmtree(folder, ignore_errors=True)
                with suppress(OSError):
                    lock.unlink()
    except Timeout:
        raise PrewarmError(f"another process is making {out}: wait for it") from None
    except OSError as error:
        raise PrewarmError(
            f"{out} cannot be written: {error.strerror or error}; "
            "nothing was left there but what was there before"
        ) from error


def _restore(out: Path, old: Path) -> None:
    if old.exists() and not out.exists():
        old.rename(out)


def _check_place(out: Path) -> None:
    if out.exists() and not is_prewarmed(out) and any(out.iterdir()):
        raise PrewarmError(f"{out} is there already, and is no prewarmed folder")
    if out.is_mount():
        raise PrewarmError(f"{out} is a mount point, which cannot be replaced: name a folder in it")


def _copy_earlier_binaries(out: Path, work: Path) -> list[str]:
    """Copy an earlier prewarming's binaries, which Triton then finds by their keys.

    The new manifest will vouch for them, so nothing is kept of a folder that is not as its own
    manifest says.

    Returns:
        A note, if nothing is kept.
    """
    if not is_prewarmed(out):
        (work / BINARIES).mkdir()
        return []
    try:
        problem = next(find_differences(out, read_manifest(out)), None)
    except PrewarmError as error:
        problem = str(error)
    if problem is None:
        shutil.copytree(out / BINARIES, work / BINARIES)
        return []
    (work / BINARIES).mkdir()
    return [f"{out} was changed since it was made, so all is compiled again: {problem}"]


def _remove_unneeded(work: Path, wanted: set[str]) -> None:
    """Remove working files, and binaries that only the earlier prewarming needed."""
    for folder in (work / BINARIES).iterdir():
        if folder.name not in wanted:
            shutil.rmtree(folder)
    for name in ("tools", f"{RECORDS}/.locks"):
        shutil.rmtree(work / name, ignore_errors=True)


def _count_binaries(results: Iterable[CompileResult]) -> int:
    """Return the number of different binaries."""
    return len({result.binary for result in results if result.binary})


def _complete_manifest(
    planned: Manifest, results: Mapping[CompileJob, CompileResult], work: Path
) -> Manifest:
    """Return the planned manifest with what is in the folder."""
    kernels = []
    for kernel in planned.kernels:
        own = (result for job, result in results.items() if job.kernel == kernel.name)
        kernels.append(kernel.model_copy(update={"binaries": _count_binaries(own)}))
    files = {inside: describe_file(path) for inside, path in files_of(work).items()}
    return Manifest.model_validate({**planned.model_dump(), "kernels": kernels, "files": files})
