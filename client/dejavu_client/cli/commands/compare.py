"""`compare`: what sets two runs of a program apart, in one line per difference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from dejavu_cache.system.notices import counted

from ..errors import NoSuchStoreError, NothingFoundError
from ..options import JsonOption
from ..output import say, show_json

__all__ = ["register"]

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A folder that DEJAVU_CACHE_REPORT named.")
]


class RunDifference(NamedTuple):
    """A kernel and scenario that two runs ran differently, and how."""

    subject: str
    a: str
    b: str


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(compare)


def compare(a: RunArgument, b: RunArgument, as_json: JsonOption = False) -> None:
    """Tell two runs apart: a line for each kernel and scenario that ran another config.

    Exits 1 if they differ. Another record that gave the same config is a difference too, and so is
    another GPU, Triton or code of the kernel.
    """
    left, right = _read(a), _read(b)
    differences = [
        RunDifference(subject, *texts)
        for subject in sorted({*left, *right})
        if len({*(texts := [run.get(subject, "not run") for run in (left, right)])}) > 1
    ]
    if as_json:
        show_json([difference._asdict() for difference in differences])
    else:
        for difference in differences:
            say(f"{difference.subject}: {difference.a} | {difference.b}")
    if differences:
        raise typer.Exit(1)
    if not as_json:
        say(f"no differences in {counted(len(left), 'scenario')}")


def _read(path: Path) -> dict[str, str]:
    """Return what processes ran of each kernel and scenario, in words."""
    from dejavu_cache.runtime.run_files import read_events

    if not path.exists():
        raise NoSuchStoreError(f"there is no report in {path}: no such folder")
    runs: dict[str, set[str]] = {}
    for event in read_events(path):
        if event.what in ("hit", "missed", "benchmarked"):
            runs.setdefault(event.about, set()).add(event.detail)
    if not runs:
        raise NothingFoundError(
            f"{path} has no report: run the program with DEJAVU_CACHE_REPORT={path}"
        )
    return {subject: " and ".join(sorted(details)) for subject, details in runs.items()}
