"""`diff`: what sets two stores, GPUs, versions of Triton or runs of a program apart."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import Context
from dejavu_cache.stores import Store
from dejavu_cache.system.notices import counted

from ..application import app
from ..chosen_store import open_complete_store
from ..errors import NothingFoundError
from ..options import JsonOption, KernelOption, text_argument
from ..output import say, show_json, show_table
from ..queries import context_matches, describe_filters, last_measured, winning_measurement


@app.command()
def diff(
    a: Annotated[
        str, text_argument("A", "A folder or a URL; else DEJAVU_CACHE_URL, else your own cache.")
    ] = "",
    b: Annotated[str, text_argument("B", "Another one; else A.")] = "",
    kernel: KernelOption = "",
    device: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Only GPUs whose name contains this; given twice, those of A and those of B.",
        ),
    ] = None,
    triton: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VERSION",
            help="Only this version of Triton; given twice, that of A and that of B.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two stores, GPUs, versions of Triton, or runs.

    Exits with 1 if they differ. For scenarios in both, `cost` is what B's winner costs by A's
    measurements, as a multiple of A's winner. GPUs and Tritons are compared by their winners, not
    by their timings. Runs are two folders that DEJAVU_CACHE_REPORT named: which config each
    scenario ran, and how it was found.
    """
    if any(path and any(Path(path).glob("*.jsonl")) for path in (a, b)):
        if device or triton or kernel:
            raise SettingsError("runs are compared as a whole: leave --kernel, --device, --triton")
        _diff_runs(a, b, as_json)
        return
    devices, tritons = _both_sides(device, "--device"), _both_sides(triton, "--triton")
    by_environment = devices[0] != devices[1] or tritons[0] != tritons[1]
    if not (b or by_environment):
        raise SettingsError("name another store to compare with, or two GPUs or Tritons")
    with open_complete_store(a) as left, open_complete_store(b or a) as right:
        sides = [
            ComparedSide(store, *wanted, kernel)
            for store, wanted in zip((left, right), zip(devices, tritons, strict=True), strict=True)
        ]
        if not any(side.contexts() for side in sides):
            why = f"neither {left.url} nor {right.url} holds such records, or a run's report"
            raise NothingFoundError(f"{why} (a folder that DEJAVU_CACHE_REPORT named)")
        differences = _environment_differences if by_environment else _differences
        rows = list(differences(*sides))
    if as_json:
        show_json(rows)
    elif rows:
        show_table(
            ["kernel", "device", "scenario", "what", "A", "B", "cost"],
            [list(row.values()) for row in rows],
            optional=["device"],
            constant=["kernel", "device"],
        )
    else:
        say("no differences")
    if rows:
        raise typer.Exit(1)


def _both_sides(values: list[str] | None, option: str) -> tuple[str, str]:
    """Return the value of either side; none is empty, and a single one is for both."""
    if not values:
        return "", ""
    if len(values) > 2 or "" in values:
        raise SettingsError(f"{option}: give it once, or twice, for A and for B")
    return values[0], values[-1]


def _diff_runs(a: str, b: str, as_json: bool) -> None:
    """Print a line for each kernel and scenario that two runs ran differently."""
    left, right = _read_run(a), _read_run(b)
    rows = [
        {"subject": subject, "a": left.get(subject, "not run"), "b": right.get(subject, "not run")}
        for subject in sorted({*left, *right})
        if left.get(subject) != right.get(subject)
    ]
    if as_json:
        show_json(rows)
    for row in () if as_json else rows:
        say(f"{row['subject']}: {row['a']} | {row['b']}")
    if rows:
        raise typer.Exit(1)
    if not as_json:
        say(f"no differences in {counted(len(left), 'scenario')}")


def _read_run(path: str) -> dict[str, str]:
    """Return what processes ran of each kernel and scenario, in words."""
    from dejavu_cache.runtime.run_files import read_events

    runs: dict[str, set[str]] = {}
    for event in read_events(Path(path)) if path else ():
        if event.what in ("hit", "missed", "benchmarked"):
            runs.setdefault(event.about, set()).add(event.detail)
    if not runs:
        raise NothingFoundError(
            f"{path or 'B'} has no report to compare with a run's: run the program with "
            f"DEJAVU_CACHE_REPORT={path or 'FOLDER'}"
        )
    return {subject: " and ".join(sorted(details)) for subject, details in runs.items()}


class ComparedSide(NamedTuple):
    """One side of a comparison: a store, and the GPU, Triton and kernel that count there."""

    store: Store
    device: str
    triton: str
    kernel: str

    def contexts(self) -> list[Context]:
        """Return the contexts that count."""
        filters = self.kernel, self.device, self.triton
        return [context for context in self.store.contexts() if context_matches(context, *filters)]

    def newest(self) -> dict[tuple[str, str, str], Context]:
        """Return by kernel, source and problem the context that was tuned last.

        Raises:
            NothingFoundError: none counts.
        """
        by_date = sorted(self.contexts(), key=lambda own: last_measured(self.store.records(own)))
        newest = {
            (context.kernel.name, context.kernel.source, context.problem.model_dump_json()): context
            for context in by_date
        }
        if not newest:
            wanted = describe_filters(self.device, self.triton)
            raise NothingFoundError(f"{self.store.url} has no such records of {wanted}")
        return newest


def _environment_differences(left: ComparedSide, right: ComparedSide) -> Iterator[dict[str, Any]]:
    """Yield the scenarios whose winners differ between two GPUs or Tritons, or that one lacks."""
    left_contexts, right_contexts = left.newest(), right.newest()
    for key in sorted({*left_contexts, *right_contexts}):
        contexts = left_contexts.get(key), right_contexts.get(key)
        named = [
            f"{context.environment.device.name}, Triton {context.environment.triton}"
            if context
            else "nothing"
            for context in contexts
        ]
        for row in _scenario_differences(left, right, *contexts):
            if row["what"] == "winner" or row["what"].startswith("only in"):
                yield {**row, "device": " | ".join(named)}


def _differences(left: ComparedSide, right: ComparedSide) -> Iterator[dict[str, Any]]:
    """Yield what differs between two stores, by scenario."""
    for context in sorted({*left.contexts(), *right.contexts()}, key=lambda context: context.text):
        yield from _scenario_differences(left, right, context, context)


def _scenario_differences(
    left: ComparedSide, right: ComparedSide, a: Context | None, b: Context | None
) -> Iterator[dict[str, Any]]:
    """Yield what differs between two contexts, of which one may be missing, by scenario."""
    context = a or b
    assert context is not None
    sides = [
        {record.scenario: record for record in side.store.records(own)} if own else {}
        for side, own in ((left, a), (right, b))
    ]
    for scenario in sorted({*sides[0], *sides[1]}, key=lambda scenario: scenario.text):
        row = _difference(context, sides[0].get(scenario), sides[1].get(scenario))
        if row:
            yield row


def _difference(
    context: Context, left: Record | None, right: Record | None
) -> dict[str, Any] | None:
    if left == right:
        return None
    left_winner = winning_measurement(left) if left else None
    right_winner, cost = winning_measurement(right) if right else None, None
    if left is None or right is None:
        what = "only in A" if left else "only in B"
    elif left_winner and right_winner and left_winner.config != right_winner.config:
        what, cost = "winner", _cost(left, left_winner, right_winner)
    elif left.by_config.keys() != right.by_config.keys():
        what = "configs measured"
    elif left.by_config != right.by_config:
        what = "timings"
    else:
        what = "pin" if left.pin != right.pin else "winner's date, verdicts or launches"
    return {
        "kernel": context.kernel.name,
        "device": context.environment.device.name,
        "scenario": str((left or right).scenario),  # type: ignore[union-attr]
        "what": what,
        "a": str(left_winner.config) if left_winner else None,
        "b": str(right_winner.config) if right_winner else None,
        "cost": cost,
    }


def _cost(left: Record, left_winner: Measurement, right_winner: Measurement) -> float | None:
    """Return the time of B's winner by A's measurements, as a multiple of A's winner's time."""
    measured = left.by_config.get(right_winner.config)
    if measured is None or measured.median is None or not left_winner.median:
        return None
    return round(measured.median / left_winner.median, 3)
