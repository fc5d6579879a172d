"""Build a prewarmed folder; on failure, an earlier folder stays as it was."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..errors import BundleError, DejavuError, PrewarmError
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
    verify_folder,
)
from ..system.notices import counted
from ..system.safe_files import replace_file, user_folder
from ..triton_internals.environment import triton_version
from .compilers import (
    BuildPlan,
    CompileJob,
    Compiler,
    CompileResult,
    OnProgress,
    PrewarmSpec,
    all_records,
    compile_all,
    own_records,
)
from .new_folder import new_folder

__all__ = ["PrewarmResult", "ResultCache", "prewarm"]

_NAMED_DIFFERENCES = 5
"""Files that differ from an earlier manifest and that a note names."""

_KEYS = "callees first"
"""How binaries get their keys; a folder whose binaries have other keys is made again."""


class PrewarmResult(NamedTuple):
    """The result of a prewarming.

    Attributes:
        compiled: number of kernels that were compiled; 0 if nothing had changed.
        notes: remarks for the user, one sentence each.
        repaired: whether something of the earlier folder was not what its manifest says.
    """

    manifest: Manifest
    compiled: int
    notes: tuple[str, ...]
    repaired: bool = False


class ResultCache:
    """Inputs and result of the last prewarming of a folder, kept in the user's cache folder.

    A prewarming with the same inputs then returns at once.
    """

    def __init__(self, out: Path, spec: PrewarmSpec) -> None:
        """Name the file; nothing is read yet.

        Args:
            out: the prewarmed folder.
            spec: the options of the prewarming.
        """
        name = hashlib.sha256(str(out.absolute()).encode()).hexdigest()[:24]
        self._path = user_folder("prewarm") / f"{name}.json"
        self._out = out
        self._spec = spec

    def load(self) -> PrewarmResult | None:
        """Return the last result, or None if the inputs or any file of the folder have changed."""
        try:
            saved = json.loads(self._path.read_text(encoding="utf-8"))
            manifest = read_manifest(self._out)
            is_unchanged = (
                saved["manifest"] == manifest.digest
                and saved["from"] == self._inputs(saved["files"], saved["kernels"])
                and verify_folder(self._out) == manifest
            )
            return PrewarmResult(manifest, 0, tuple(saved["notes"])) if is_unchanged else None
        except (OSError, ValueError, KeyError, TypeError, DejavuError):
            return None

    def save(self, result: PrewarmResult, plan: BuildPlan) -> None:
        """Save a result with the inputs that it depends on."""
        kernels = [kernel.name for kernel in plan.manifest.kernels]
        content = {
            "manifest": result.manifest.digest,
            "files": plan.files,
            "kernels": kernels,
            "notes": result.notes,
            "from": self._inputs(plan.files, kernels),
        }
        with suppress(OSError):
            replace_file(self._path, json.dumps(content).encode())

    def _inputs(self, files: Iterable[str], kernels: Sequence[str]) -> dict[str, Any]:
        """Return everything that a prewarming's result depends on."""
        records = hashlib.sha256()
        with own_records(self._spec.store) as own:
            store = all_records(own)
            for kernel in kernels:
                for record_set in store.record_sets(kernel):
                    records.update(record_set.model_dump_json().encode())
                for tree, _ in store.trees(kernel):
                    records.update(tree.text.encode())
        stamps = {}
        for file in files:
            stat = Path(file).stat()
            stamps[file] = [stat.st_mtime_ns, stat.st_size]
        return {
            "keys": _KEYS,
            "spec": self._spec.model_dump(mode="json"),
            "records": records.hexdigest(),
            "files": stamps,
            "triton": [triton_version(), sysconfig.get_config_var("EXT_SUFFIX"), __version__],
            "variables": {
                name: value
                for name, value in sorted(os.environ.items())
                if name.startswith("TRITON_")
            },
        }


def prewarm(
    spec: PrewarmSpec,
    out: Path,
    *,
    processes: int | None = None,
    on_progress: OnProgress = lambda done, total, last: None,
) -> PrewarmResult:
    """Build a prewarmed folder without a GPU.

    Args:
        spec: what is prewarmed, for which devices, and how.
        out: the folder. Binaries of an earlier prewarming that are still valid, and what its
            manifest says, are kept.
        processes: number of processes that compile at once; None is one per CPU.
        on_progress: told how many binaries there are, and when one is done.

    Raises:
        PrewarmError: the folder cannot be built; an earlier one is as it was.
        BundleError: it cannot be written there; an earlier one is as it was.
    """
    cache = ResultCache(out, spec)
    cached = cache.load()
    if cached is not None:
        return cached
    with new_folder(out, replaces=True) as work:
        (work / BINARIES).mkdir()
        repairs = _link_earlier_binaries(out, work)
        in_work = spec.model_copy(update={"folder": str(work)})
        result, plan = _fill(work, in_work, processes, on_progress)
    cache.save(result, plan)
    return result._replace(notes=(*repairs, *result.notes), repaired=bool(repairs))


def _fill(
    work: Path, spec: PrewarmSpec, processes: int | None, on_progress: OnProgress
) -> tuple[PrewarmResult, BuildPlan]:
    """Put everything that belongs there into the working folder."""
    with closing(Compiler(spec)) as first:
        plan = first.plan()
        cpus = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        results = compile_all(spec, first, plan.jobs, processes or cpus, on_progress)
    notes = _check_results(results)
    _remove_unneeded(work, {key for result in results.values() for key in result.keys})
    manifest = _complete_manifest(plan.manifest, results, work)
    (work / MANIFEST).write_text(manifest.text, encoding="utf-8")
    _make_readable(work)
    compiled = _count_binaries(result for result in results.values() if result.fresh)
    return PrewarmResult(manifest, compiled, (*plan.notes, *notes)), plan


def _link_earlier_binaries(out: Path, work: Path) -> list[str]:
    """Link an earlier prewarming's binaries, which Triton then finds by their keys.

    Linked is only what the earlier manifest describes: the new one will vouch for it. Of a key with
    anything else in its folder, nothing is, so that Triton compiles and writes all of its files.

    Returns:
        A note, if something is not what the manifest says.
    """
    if not is_prewarmed(out):
        return []
    try:
        manifest = read_manifest(out)
    except BundleError as error:
        return [f"no earlier binary is kept, and all are compiled again: {error}"]
    differences = dict(find_differences(out, manifest))
    spoiled = {_binary_key(inside) for inside in differences}
    if not {MANIFEST, BINARIES} & differences.keys():
        for inside in manifest.files:
            key = _binary_key(inside)
            if key and key not in spoiled and inside != f"{BINARIES}/{key}":
                (work / inside).parent.mkdir(parents=True, exist_ok=True)
                _link(out / inside, work / inside)
    return _note_differences(out, differences)


def _binary_key(inside: str) -> str:
    """Return the key of a path among the binaries; an empty string for other paths."""
    folder, _, rest = inside.partition("/")
    return rest.partition("/")[0] if folder == BINARIES else ""


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target, follow_symlinks=False)


def _note_differences(out: Path, differences: Mapping[str, str]) -> list[str]:
    if not differences:
        return []
    shown = [
        f"{inside} {problem.partition(':')[0]}"
        for inside, problem in list(differences.items())[:_NAMED_DIFFERENCES]
    ]
    if len(differences) > len(shown):
        shown.append(f"and {len(differences) - len(shown)} more")
    return [
        f"{out} was changed since it was made ({', '.join(shown)}): what differs is made again, "
        "and what does not belong there is left out"
    ]


def _check_results(results: Mapping[CompileJob, CompileResult]) -> list[str]:
    """Return the results' notes, and one on each default that could not be compiled.

    Raises:
        PrewarmError: a winner could not be compiled, or an error was fatal.
    """
    failed = {job: result for job, result in results.items() if result.error}
    fatal = [
        f"{job}: {result.error}" for job, result in failed.items() if job.needed or result.fatal
    ]
    if fatal:
        raise PrewarmError(
            f"{counted(len(fatal), 'binary', 'binaries')} could not be made, and nothing was "
            "written:\n  " + "\n  ".join(fatal)
        )
    notes = [
        f"{job} could not be compiled and is left out: {result.error}"
        for job, result in failed.items()
    ]
    notes.extend(note for result in results.values() for note in result.notes)
    return list(dict.fromkeys(notes))


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
    files = {inside: describe_file(path) for inside, path in files_of(work)}
    return planned.model_copy(update={"kernels": tuple(kernels), "files": files})


def _make_readable(folder: Path) -> None:
    """Make a folder readable for all users, since another one may run the program."""
    for root, _, names in os.walk(folder):
        Path(root).chmod(0o755)
        for name in names:
            path = Path(root, name)
            if path.stat().st_mode & 0o777 != 0o644:
                path.chmod(0o644)
