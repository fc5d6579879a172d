"""`compare`: what sets two runs of a program apart, in one line per difference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from dejavu_cache.system.notices import counted

from ..errors import NoSuchStoreError, NothingFoundError
from ..options import JsonOption
from ..output import say, show_json

if TYPE_CHECKING:
    from dejavu_cache.runtime.run_files import ConfigRun, RunFingerprint

__all__ = ["register"]

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A folder that DEJAVU_CACHE_FINGERPRINT named.")
]


class RunDifference(NamedTuple):
    """A subject in which two runs differ, and what either did."""

    subject: str
    what: str
    a: str
    b: str


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(compare)


def compare(a: RunArgument, b: RunArgument, as_json: JsonOption = False) -> None:
    """Tell two runs apart: a line for each kernel and scenario that ran another config.

    Exits 1 if they differ. Another record that gave the same config is a difference too, and so is
    another mode, store, or version of Python or of this package.
    """
    left, right = _read(a), _read(b)
    differences = [*_settings_differences(left, right), *_run_differences(left, right)]
    if as_json:
        show_json([difference._asdict() for difference in differences])
    else:
        for difference in differences:
            say(f"{difference.subject}: {difference.what}: {difference.a} | {difference.b}")
    if differences:
        raise typer.Exit(1)
    if not as_json:
        say(f"no differences in {counted(len(_last_runs(left)), 'scenario')}")


def _read(path: Path) -> RunFingerprint:
    from dejavu_cache.runtime.run_files import read_fingerprint

    if not path.exists():
        raise NoSuchStoreError(f"there is no fingerprint in {path}: no such file or folder")
    fingerprint = read_fingerprint(path)
    if not fingerprint.processes and not fingerprint.runs:
        raise NothingFoundError(
            f"{path} has no fingerprint: run the program with DEJAVU_CACHE_FINGERPRINT={path}"
        )
    return fingerprint


def _settings_differences(left: RunFingerprint, right: RunFingerprint) -> Iterator[RunDifference]:
    for name in ("package", "python", "mode", "url"):
        a, b = (
            sorted({str(getattr(process, name)) for process in run.processes})
            for run in (left, right)
        )
        if a != b:
            yield RunDifference("all processes", name, ", ".join(a), ", ".join(b))


def _run_differences(left: RunFingerprint, right: RunFingerprint) -> Iterator[RunDifference]:
    a, b = _last_runs(left), _last_runs(right)
    for subject in sorted({*a, *b}):
        kernel, scenario = subject
        for what in ("device", "triton", "source", "config", "record"):
            texts = [_text(runs.get(subject), what) for runs in (a, b)]
            if texts[0] != texts[1]:
                yield RunDifference(f"{kernel}{scenario}", what, *texts)
                break  # what follows from it is no difference of its own


def _last_runs(run: RunFingerprint) -> dict[tuple[str, str], list[ConfigRun]]:
    """Return by kernel and scenario the different configs that processes ran, the last of each."""
    runs: dict[tuple[str, str], dict[str, ConfigRun]] = {}
    for choice in run.runs:
        runs.setdefault((choice.kernel, choice.scenario), {})[choice.config] = choice
    return {
        subject: [configs[text] for text in sorted(configs)] for subject, configs in runs.items()
    }


def _text(runs: list[ConfigRun] | None, what: str) -> str:
    """Return what processes ran a scenario with; several values if they differ among themselves."""
    if runs is None:
        return "not run"
    if what == "config":
        return " and ".join(f"({run.config}) {run.how}" for run in runs)
    if what == "record":
        records = (
            f"{run.how} in {run.store or 'no store'}{f', {run.record}' if run.record else ''}"
            f"{f', measured {run.measured_at} by {run.measured_by}' if run.measured_at else ''}"
            for run in runs
        )
        return " and ".join(sorted({*records}))
    return " and ".join(sorted({str(getattr(run, what)) for run in runs}))
