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
    from dejavu_cache.runtime.run_files import ConfigRun

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

    Exits 1 if they differ. Another record that gave the same config is a difference too.
    """
    left, right = _read(a), _read(b)
    differences = list(_differences(left, right))
    if as_json:
        show_json([difference._asdict() for difference in differences])
    else:
        for difference in differences:
            say(f"{difference.subject}: {difference.what}: {difference.a} | {difference.b}")
    if differences:
        raise typer.Exit(1)
    if not as_json:
        say(f"no differences in {counted(len(left), 'scenario')}")


def _read(path: Path) -> dict[str, list[ConfigRun]]:
    """Return by kernel and scenario the different configs that processes ran, the last of each."""
    from dejavu_cache.runtime.run_files import read_fingerprint

    if not path.exists():
        raise NoSuchStoreError(f"there is no fingerprint in {path}: no such folder")
    runs: dict[str, dict[str, ConfigRun]] = {}
    for run in read_fingerprint(path):
        runs.setdefault(run.kernel + run.scenario, {})[run.config] = run
    if not runs:
        raise NothingFoundError(
            f"{path} has no fingerprint: run the program with DEJAVU_CACHE_FINGERPRINT={path}"
        )
    return {subject: [by[config] for config in sorted(by)] for subject, by in runs.items()}


def _differences(
    left: dict[str, list[ConfigRun]], right: dict[str, list[ConfigRun]]
) -> Iterator[RunDifference]:
    for subject in sorted({*left, *right}):
        for what in ("device", "triton", "source", "config", "record"):
            a, b = (_text(runs.get(subject), what) for runs in (left, right))
            if a != b:
                yield RunDifference(subject, what, a, b)
                break  # what follows from it is no difference of its own


def _text(runs: list[ConfigRun] | None, what: str) -> str:
    """Return what processes ran a scenario with; several values if they differ among themselves."""
    if runs is None:
        return "not run"
    if what == "config":
        return " and ".join(f"({run.config}) {run.how}" for run in runs)
    if what == "record":
        return " and ".join(sorted({f"{run.how} in {run.record or 'no store'}" for run in runs}))
    return " and ".join(sorted({str(getattr(run, what)) for run in runs}))
