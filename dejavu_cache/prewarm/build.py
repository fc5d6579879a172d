"""A prewarming from its beginning to its end: one folder that is whole, or the one that was there before."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from .. import __version__
from ..errors import DejavuError, PrewarmError
from ..stores import FileStore, Store
from ..stores.manifest import (
    BINARIES,
    MANIFEST,
    RECORDS,
    Manifest,
    described,
    files_of,
    is_prewarmed,
    read_manifest,
)
from ..triton_internals.compilation import target_of
from .host_modules import make_tools
from .messages import BuildPlan, CompileJob, CompileResult, PrewarmSpec
from .record_source import all_records, own_records
from .worker_pool import CompileProcess, compile_all

__all__ = ["PrewarmResult", "prewarm"]


class PrewarmResult(NamedTuple):
    """What a prewarming did.

    Attributes:
        compiled: kernels that were compiled; 0 where nothing had changed.
        notes: what a person should know, a sentence each.
    """

    manifest: Manifest
    compiled: int
    notes: tuple[str, ...]


def prewarm(
    modules: Sequence[str],
    store: str,
    devices: Sequence[str],
    out: Path,
    *,
    processes: int | None = None,
    progress: Callable[[int], Callable[[CompileJob, CompileResult], None]] = lambda total: (
        lambda job, built: None
    ),
    **options: Any,
) -> PrewarmResult:
    """Makes a prewarmed folder, without a GPU.

    Args:
        modules: the kernels' modules; a package stands for all in it.
        store: URL of where the records are.
        devices: names of GPUs, as records have them.
        out: the folder. If it is a prewarmed one, what has not changed is kept.
        processes: how many compile at once; all CPUs if None.
        progress: is told how many binaries there are to make; what it returns is told each that is made.
        options: `fallbacks`, `host_modules`, `allowed` of `PrewarmSpec`.

    Raises:
        PrewarmError: the folder cannot be made; what was there before is as it was.
    """
    out = out.absolute()
    _check_place(out)
    spec = PrewarmSpec(
        modules=tuple(modules), store=store, devices=tuple(dict.fromkeys(devices)), **options
    )
    known = _Unchanged(out, spec)
    before = known.look()
    if before is not None:
        return before
    work = out.with_name(f".{out.name}.prewarming")
    lock = FileLock(work.with_suffix(".lock"), timeout=0)
    try:
        with lock, _scratch(work):
            done = _prewarm(
                spec.model_copy(update={"binaries": str(work / BINARIES)}),
                out,
                work,
                processes,
                progress,
            )
            known.note(done)
            return done[0]
    except Timeout:
        raise PrewarmError(f"another process is prewarming {out}: wait for it") from None
    except OSError as error:
        raise _explained(error, out) from error


@contextmanager
def _scratch(work: Path) -> Iterator[None]:
    """A folder that is new, and gone afterwards."""
    shutil.rmtree(work, ignore_errors=True)
    (work / BINARIES).mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(work, ignore_errors=True)
        with suppress(OSError):
            work.with_suffix(".lock").unlink()


def _check_place(out: Path) -> None:
    if out.exists() and not is_prewarmed(out) and (not out.is_dir() or any(out.iterdir())):
        raise PrewarmError(
            f"{out} is there already and is no prewarmed folder: name a new one, or an empty one"
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _explained(error, out) from error
    if not os.access(out.parent, os.W_OK):
        raise PrewarmError(f"{out.parent} cannot be written: name a folder elsewhere with --out")


def _explained(error: OSError, out: Path) -> PrewarmError:
    return PrewarmError(
        f"{out} cannot be written: {error.strerror or error}; nothing was left there but what was there before"
    )


def _prewarm(
    spec: PrewarmSpec,
    out: Path,
    work: Path,
    processes: int | None,
    progress: Callable[[int], Callable[[CompileJob, CompileResult], None]],
) -> tuple[PrewarmResult, BuildPlan]:
    _take_over(out, work)
    if spec.host_modules:
        make_tools(work / "tools")
    with CompileProcess(spec) as first:
        plan = first.plan()
        cpus = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        done = compile_all(spec, first, plan.jobs, processes or cpus, progress(len(plan.jobs)))
    notes = _judge(plan, done)
    with own_records(spec.store) as own:
        _copy_records(plan, all_records(own), FileStore(work / RECORDS))
    _tidy(work, {key for built in done.values() for key in built.keys})
    manifest = _manifest(plan, done, work)
    (work / MANIFEST).write_text(manifest.text, encoding="utf-8")
    _open_to_all(work)
    _swap(work, out)
    compiled = _distinct(built for built in done.values() if built.fresh)
    return PrewarmResult(manifest, compiled, (*plan.notes, *notes)), plan


def _take_over(out: Path, work: Path) -> None:
    """What an earlier prewarming compiled is found by its key if it is still wanted, and dropped if not."""
    if is_prewarmed(out):
        shutil.copytree(out / BINARIES, work / BINARIES, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _judge(plan: BuildPlan, done: dict[CompileJob, CompileResult]) -> list[str]:
    """What went wrong: a winner that cannot be compiled is an error, a default is worth a note.

    Raises:
        PrewarmError: there is no use in going on.
    """
    failed = {job: built for job, built in done.items() if built.error}
    fatal = [f"{job}: {built.error}" for job, built in failed.items() if job.needed or built.fatal]
    if fatal:
        raise PrewarmError(
            f"{len(fatal)} binaries could not be made, and nothing was written:\n  "
            + "\n  ".join(fatal)
        )
    notes = [
        f"{job} could not be compiled and is left out: {built.error}"
        for job, built in failed.items()
    ]
    return list(dict.fromkeys([*notes, *(note for built in done.values() for note in built.notes)]))


def _copy_records(plan: BuildPlan, source: Store, target: FileStore) -> None:
    wanted = set(plan.contexts)
    for context in plan.contexts:
        target.put(context, source.records(context))
    for kernel in {context.kernel.name for context in plan.contexts}:
        for tree, _ in source.trees(kernel):
            devices = {context.environment.device for context in wanted}
            if tree.context.environment.device in devices:
                target.put_tree(tree)


def _tidy(work: Path, wanted: set[str]) -> None:
    """Removes what only the work needed, and what an earlier prewarming needed."""
    for folder in (work / BINARIES).iterdir():
        if folder.name not in wanted:
            shutil.rmtree(folder)
    for name in ("tools", f"{RECORDS}/.locks"):
        shutil.rmtree(work / name, ignore_errors=True)


def _distinct(made: Iterable[CompileResult]) -> int:
    """How many binaries there are."""
    return len({built.binary for built in made if built.binary})


def _manifest(plan: BuildPlan, done: Mapping[CompileJob, CompileResult], work: Path) -> Manifest:
    targets = {target_of(device) for device in plan.devices}
    return Manifest(
        made_by=__version__,
        triton=plan.triton,
        wheel=plan.wheel,
        abi=str(sysconfig.get_config_var("EXT_SUFFIX")),
        platform=sysconfig.get_platform(),
        host_key=plan.host_key,
        devices=tuple(sorted(plan.devices, key=lambda device: device.name)),
        targets=tuple(sorted(f"{target.backend}:{target.arch}" for target in targets)),
        codegen=plan.codegen,
        kernels=tuple(
            each.model_copy(
                update={
                    "binaries": _distinct(
                        built for job, built in done.items() if job.kernel == each.name
                    )
                }
            )
            for each in plan.kernels
        ),
        files={inside: described(path) for inside, path in files_of(work)},
    )


def _open_to_all(folder: Path) -> None:
    """Whoever runs the program may be another user: everybody may read, and nobody need write."""
    for root, _, names in os.walk(folder):
        Path(root).chmod(0o755)
        for name in names:
            path = Path(root, name)
            if path.stat().st_mode & 0o777 != 0o644:
                path.chmod(0o644)


def _swap(work: Path, out: Path) -> None:
    """Puts the new folder in the place of the old one, which is whole until it is gone."""
    old = out.with_name(f".{out.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    try:
        work.rename(out)
    except OSError:
        if old.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)


class _Unchanged:
    """What a prewarming was made from, kept beside this user's cache, so that the same again takes a moment."""

    def __init__(self, out: Path, spec: PrewarmSpec) -> None:
        from platformdirs import user_cache_dir

        name = hashlib.sha256(str(out).encode()).hexdigest()[:24]
        self._path = (
            Path(user_cache_dir("dejavu-cache", appauthor=False)) / "prewarm" / f"{name}.json"
        )
        self._out = out
        self._spec = spec

    def look(self) -> PrewarmResult | None:
        """What was done before, if doing it again would change nothing."""
        try:
            noted = json.loads(self._path.read_text(encoding="utf-8"))
            manifest = read_manifest(self._out)
            same = noted["manifest"] == manifest.digest and all(
                (inside.stat().st_size if inside.is_file() else -1) == file.size
                for inside, file in (
                    (self._out / name, file) for name, file in manifest.files.items()
                )
            )
            if same and noted["from"] == self._made_from(noted["files"], noted["kernels"]):
                return PrewarmResult(manifest, 0, tuple(noted["notes"]))
        except (OSError, ValueError, KeyError, TypeError, DejavuError):
            pass
        return None

    def note(self, made: tuple[PrewarmResult, BuildPlan]) -> None:
        """Keeps what a prewarming was made from."""
        done, plan = made
        files, kernels = (
            dict(plan.files),
            sorted({context.kernel.name for context in plan.contexts}),
        )
        noted = {
            "manifest": done.manifest.digest,
            "files": files,
            "kernels": kernels,
            "notes": done.notes,
            "from": self._made_from(files, kernels),
        }
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(noted), encoding="utf-8")

    def _made_from(self, files: dict[str, Any], kernels: Sequence[str]) -> dict[str, Any]:
        records = hashlib.sha256()
        with own_records(self._spec.store) as own:
            store = all_records(own)
            for kernel in kernels:
                for whole in store.record_sets(kernel):
                    records.update(whole.model_dump_json().encode())
                for tree, _ in store.trees(kernel):
                    records.update(tree.text.encode())
        now = {}
        for file in files:
            stat = Path(file).stat()
            now[file] = [stat.st_mtime_ns, stat.st_size]
        return {
            "spec": self._spec.model_dump(mode="json"),
            "records": records.hexdigest(),
            "files": now,
            "triton": [version("triton"), sysconfig.get_config_var("EXT_SUFFIX"), __version__],
            "variables": {
                name: value
                for name, value in sorted(os.environ.items())
                if name.startswith("TRITON_")
            },
        }
