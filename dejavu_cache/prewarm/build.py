"""Build a prewarmed folder; on failure, an earlier folder stays as it was."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from ..errors import PrewarmError
from ..stores.manifest import (
    BINARIES,
    MANIFEST,
    RECORDS,
    Manifest,
    describe_file,
    files_of,
    find_differences,
    read_manifest,
)
from .compilers import CompileJob, Compiler, CompileResult, OnProgress, PrewarmSpec, compile_all

__all__ = ["PrewarmResult", "prewarm"]


class PrewarmResult(NamedTuple):
    """The result of a prewarming.

    Attributes:
        compiled: number of kernels that were compiled; 0 if all were there already.
        notes: remarks for the user, one sentence each.
    """

    manifest: Manifest
    compiled: int
    notes: tuple[str, ...]


def prewarm(
    spec: PrewarmSpec,
    out: Path,
    *,
    processes: int | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> PrewarmResult:
    """Build a prewarmed folder without a GPU.

    Args:
        spec: what is prewarmed, and for which devices.
        out: the folder. Binaries of an earlier prewarming that are still needed are kept.
        processes: number of processes that compile at once; None is one per CPU.
        on_progress: told how many binaries there are, and when one is done.

    Raises:
        PrewarmError: the folder cannot be built or written; an earlier one is as it was.
    """
    with _new_folder(out) as work:
        notes = _copy_earlier_binaries(out, work)
        spec = spec.model_copy(update={"folder": str(work)})
        with closing(Compiler(spec)) as first:
            plan = first.plan()
            results = compile_all(
                spec, first, plan.jobs, plan.fallbacks, processes or _cpu_count(), on_progress
            )
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
    if out.exists() and not os.path.isfile(out / MANIFEST) and any(out.iterdir()):
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
    if not os.path.isfile(out / MANIFEST):
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
