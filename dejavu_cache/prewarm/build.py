"""Build a prewarmed folder by processes that compile; on failure, there is none.

The processes run `prewarm.worker`; the messages that they exchange with this one are here.
"""

import os
import secrets
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from pydantic import Field

from ..errors import PrewarmError
from ..model.record import RecordedLaunch
from ..model.scenario import Config, FrozenModel
from ..stores.manifest import BINARIES, MANIFEST, RECORDS, Manifest, describe_file, files_of
from ..system.notices import Progress, counted
from ..system.workers import Worker, WorkerLostError, WorkerPool

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
        folder: the folder to write to, as `stores.manifest` describes it; empty for Triton's own
            cache.
        recorded: names of modules whose kernels an engine was recorded to launch.
        engine: the engine whose options these are.
        options: the engine's; empty if records alone say what it launches.
    """

    modules: tuple[str, ...]
    store: str
    devices: tuple[str, ...]
    folder: str = ""
    recorded: tuple[str, ...] = ()
    engine: str = ""
    options: Mapping[str, str] = Field(default_factory=dict)


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
        fallbacks: those of configs that stand in for winners, and of launches of other sizes; one
            that does not compile is left out.
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
    """

    error: str = ""
    note: str = ""
    binary: str = ""


class Compiler:
    """Plans a prewarming and compiles for it, in a process that is replaced if that takes it down.

    Args:
        spec: the options of the prewarming.
        grace: seconds that a process has to end by itself when it is closed.
        patience: seconds to wait for a process before it is considered hung; None waits longer.
    """

    def __init__(
        self, spec: PrewarmSpec, grace: float = GRACE, patience: float | None = None
    ) -> None:
        """Start nothing yet."""
        self._spec = spec
        self._grace, self._patience = grace, patience
        self._worker = self._make_worker()
        self._arch: str | None = None

    def _make_worker(self) -> Worker:
        environment = {name: os.environ[name] for name in os.environ.keys() - DROPPED_VARIABLES} | {
            "CUDA_VISIBLE_DEVICES": "",  # a builder that has a GPU must not use its driver either
            "HIP_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        return Worker(
            "dejavu_cache.prewarm.worker", self._spec, environment, self._grace, self._patience
        )

    def start(self) -> None:
        """Start a process unless one runs.

        Raises:
            DejavuError: none can be started, or it cannot do what the options ask for.
        """
        try:
            self._worker.start()
        except (OSError, WorkerLostError) as error:
            raise PrewarmError(
                f"no process can be started that imports the kernels and compiles: {error}"
            ) from None

    def plan(self) -> BuildPlan:
        """Copy the records to the folder, and return what is to be compiled.

        Raises:
            DejavuError: nothing can be compiled as asked.
        """
        self.start()
        try:
            return BuildPlan.model_validate(self._worker.run(PrewarmRequest()))
        except WorkerLostError as error:
            raise PrewarmError(f"the process that plans was lost: {error}") from None

    def run(self, job: CompileJob) -> CompileResult:
        """Run a job.

        A process compiles for one architecture only, since Triton keeps converting float8 as the
        first architecture of its process needed it.

        Raises:
            DejavuError: no process can be started.
        """
        if self._arch not in (None, job.arch):
            self.close()
            self._worker = self._make_worker()
        self._arch = job.arch
        self.start()
        try:
            return CompileResult.model_validate(self._worker.run(PrewarmRequest(job=job)))
        except WorkerLostError as error:
            return CompileResult(error=f"the compiler was lost: {error}")

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
    # After an interrupt, running jobs are waited for, so that nothing is written later.
    with closing(WorkerPool[CompileJob](compilers)) as pool:
        for job, result in pool.run(jobs):
            if result.error and job in needed:
                raise PrewarmError(
                    f"{job} could not be made, and nothing was written: {result.error}"
                )
            results[job] = result
            progress.show(f"{len(results)} of {counted(len(jobs), 'binary', 'binaries')}")
    if pool.errors:
        raise pool.errors[0]
    return results


def prewarm(
    spec: PrewarmSpec, out: Path, *, processes: int | None = None
) -> tuple[Manifest, list[str]]:
    """Build a prewarmed folder without a GPU; return its manifest and remarks for the user.

    Nothing may be in `out` yet. By default, one process per CPU compiles.

    Raises:
        PrewarmError: the folder cannot be built or written; there is none then.
    """
    with _new_folder(out) as work:
        spec = spec.model_copy(update={"folder": str(work)})
        with ExitStack() as compilers:
            first = compilers.enter_context(closing(Compiler(spec)))
            plan = first.plan()
            count = len([*plan.jobs, *plan.fallbacks]) // JOBS_PER_PROCESS
            others = [
                compilers.enter_context(closing(Compiler(spec)))
                for _ in range(min(processes or len(os.sched_getaffinity(0)), count) - 1)
            ]
            results = compile_all([first, *others], plan.jobs, plan.fallbacks)
        notes = [
            f"{job} could not be compiled and is left out: {result.error}"
            for job, result in results.items()
            if result.error
        ]
        notes += dict.fromkeys(result.note for result in results.values() if result.note)
        for name in ("tools", f"{RECORDS}/.locks"):
            shutil.rmtree(work / name, ignore_errors=True)
        manifest = _complete_manifest(plan.manifest, results, work)
        (work / MANIFEST).write_text(manifest.text, encoding="utf-8")
        for path in (work, *work.rglob("*")):  # another user may run the program
            path.chmod(0o755 if path.is_dir() else 0o644)
    return manifest, [*plan.notes, *notes]


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Make a working folder, which becomes `out` at the end, unless an error is raised.

    An empty folder, which may be mounted or the working one, is filled, with the manifest last.

    Raises:
        PrewarmError: something is there already, or it cannot be written.
    """
    out = Path(os.path.realpath(out))
    # Named before it is made, so that it is removed whenever a signal ends this.
    work = (out if os.path.isdir(out) else out.parent) / f".{out.name}.{secrets.token_hex(4)}"
    try:
        if out.exists() and (out.is_file() or any(out.iterdir())):
            raise PrewarmError(f"{out} is there already: remove it, or name another folder")
        work.mkdir(0o700, parents=True)
        yield work
        if work.parent == out:
            with suppress(PermissionError):  # somebody else's
                out.chmod(0o755)
            for name in (RECORDS, BINARIES, MANIFEST):
                os.rename(work / name, out / name)
        else:
            os.rename(work, out)
    except OSError as error:
        raise PrewarmError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _complete_manifest(
    planned: Manifest, results: Mapping[CompileJob, CompileResult], work: Path
) -> Manifest:
    """Return the planned manifest with what is in the folder."""
    binaries = {(job.kernel, result.binary) for job, result in results.items() if result.binary}
    count = Counter(kernel for kernel, _ in binaries)
    kernels = [own.model_copy(update={"binaries": count[own.name]}) for own in planned.kernels]
    files = {inside: describe_file(path) for inside, path in files_of(work).items()}
    return Manifest.model_validate({**planned.model_dump(), "kernels": kernels, "files": files})
