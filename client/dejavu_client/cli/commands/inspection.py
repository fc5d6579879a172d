"""`ls`, `show` and `diff`: contents of one store, and differences between two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from dejavu_cache.model.buckets import Bucket
from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import Context
from dejavu_cache.stores import Store

from ..chosen_store import open_complete_store, open_existing_store
from ..errors import NothingFoundError
from ..options import (
    DeviceOption,
    JsonOption,
    KernelArgument,
    ScenarioOption,
    StoreOption,
    WhereOption,
)
from ..output import say, say_indented, show_json, show_table
from ..record_queries import (
    context_matches,
    last_measured,
    matching_records,
    winning_measurement,
)
from ..scenario_table import show_scenarios

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("ls")(list_kernels)
    app.command()(show)
    app.command()(diff)


def list_kernels(
    store: StoreOption = "", device: DeviceOption = "", as_json: JsonOption = False
) -> None:
    """List the kernels, and where each is tuned."""
    with open_existing_store(store) as source:
        contexts = [
            context for context in source.contexts() if context_matches(context, "", device, "")
        ]
        rows = [_summary(source, context) for context in contexts]
    if as_json:
        show_json(rows)
    elif not rows:
        say(f"{source.url} holds no records{f' of {device}' if device else ''}")
    else:
        columns = [
            "kernel",
            "source",
            "device",
            "triton",
            "method",
            "scenarios",
            "configs",
            "last_tuned",
        ]
        cells = [[row[column] for column in columns] for row in rows]
        show_table(columns, cells, optional=["source", "method", "configs", "last_tuned"])


def show(
    kernel: KernelArgument,
    scenario: ScenarioOption = None,
    where: WhereOption = None,
    device: DeviceOption = "",
    sort: Annotated[
        str, typer.Option("--sort", metavar="COLUMN", help="Sort by it; -COLUMN: descending.")
    ] = "",
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Lines for each GPU and Triton; 0 is all.")
    ] = 0,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show a kernel's scenarios: the winner, its time, and how much slower the runner-up is.

    What is the same in all scenarios stands above them. --json has all measurements.
    """
    conditions = [*(scenario or []), *(where or [])]
    with open_existing_store(store) as source:
        matches = matching_records(source, kernel, conditions, device)
    if as_json:
        show_json(
            [
                {
                    "context": context.model_dump(mode="json"),
                    "record": record.model_dump(mode="json"),
                }
                for context, record in matches
            ]
        )
        return
    records_by_context: dict[Context, list[Record]] = {}
    for context, record in matches:
        records_by_context.setdefault(context, []).append(record)
    for context, records in records_by_context.items():
        _say_context(context)
        show_scenarios(records, context.problem.keys, sort, limit)


def diff(
    left_url: Annotated[str, typer.Argument(metavar="A", help="A store's URL or folder.")],
    right_url: Annotated[str, typer.Argument(metavar="B", help="Another store's.")],
    as_json: JsonOption = False,
) -> None:
    """Compare two stores; exits 1 if they differ.

    For scenarios in both, `cost` is what B's winner costs by A's measurements, as a multiple of
    A's winner.
    """
    with open_complete_store(left_url) as left, open_complete_store(right_url) as right:
        if not any(next(store.contexts(), None) for store in (left, right)):
            raise NothingFoundError(f"neither {left.url} nor {right.url} holds records")
        rows = list(_differences(left, right))
    if as_json:
        show_json(rows)
    elif rows:
        show_table(
            ["kernel", "device", "scenario", "what", "A", "B", "cost"],
            [list(row.values()) for row in rows],
            optional=["device", "kernel"],
        )
    else:
        say("no differences")
    if rows:
        raise typer.Exit(1)


def _summary(store: Store, context: Context) -> dict[str, Any]:
    records = list(store.records(context))
    configs = {measurement.config for record in records for measurement in record.measurements}
    last = last_measured(records)
    return {
        "kernel": context.kernel.name,
        "source": context.kernel.source[:8],
        "device": context.environment.device.name,
        "triton": context.environment.triton,
        "method": context.problem.method,
        "scenarios": len(records),
        "configs": len(configs),
        "last_tuned": last.isoformat(timespec="seconds") if last else None,
        "context": context.digest,
    }


def _say_context(context: Context) -> None:
    environment = context.environment
    say(f"{context.kernel.name} (source {context.kernel.source[:8]})")
    device = f"{environment.device.name}, {environment.device.arch}"
    toolchain = f"Triton {environment.triton}, {environment.codegen}"
    say_indented(f"on {device}, {toolchain}, {context.problem.method}")
    buckets = [
        f"{name}: {_bucket_text(bucket)}" for name, bucket in context.problem.buckets.items()
    ]
    if buckets:
        say_indented(f"buckets: {'; '.join(buckets)}")


def _bucket_text(bucket: Bucket) -> str:
    values = vars(bucket).items()
    options = [f"{key}={value}" for key, value in values if key != "kind" and value is not None]
    name = type(bucket).__name__
    return f"{name}({', '.join(options)})" if options else name


def _differences(left: Store, right: Store) -> Iterator[dict[str, Any]]:
    for context in sorted({*left.contexts(), *right.contexts()}, key=lambda context: context.text):
        left_records = {record.scenario: record for record in left.records(context)}
        right_records = {record.scenario: record for record in right.records(context)}
        scenarios = {*left_records, *right_records}
        for scenario in sorted(scenarios, key=lambda scenario: scenario.text):
            row = _difference(context, left_records.get(scenario), right_records.get(scenario))
            if row:
                yield row


def _difference(
    context: Context, left: Record | None, right: Record | None
) -> dict[str, Any] | None:
    if left == right:
        return None
    left_winner = winning_measurement(left) if left else None
    right_winner = winning_measurement(right) if right else None
    if left is None or right is None:
        what = "only in A" if left else "only in B"
    elif left_winner and right_winner and left_winner.config != right_winner.config:
        what = "winner"
    elif left.by_config.keys() != right.by_config.keys():
        what = "configs measured"
    elif left.by_config != right.by_config:
        what = "timings"
    else:
        what = "pin" if left.pin != right.pin else "winner's date or launches"
    return {
        "kernel": context.kernel.name,
        "device": context.environment.device.name,
        "scenario": str((left or right).scenario),  # type: ignore[union-attr]
        "what": what,
        "a": str(left_winner.config) if left_winner else None,
        "b": str(right_winner.config) if right_winner else None,
        "cost": _cost(left, left_winner, right_winner) if what == "winner" else None,
    }


def _cost(
    left: Record | None, left_winner: Measurement | None, right_winner: Measurement | None
) -> float | None:
    """Return the time of B's winner by A's measurements, as a multiple of A's winner's time."""
    if left is None or left_winner is None or right_winner is None:
        return None
    measured = left.by_config.get(right_winner.config)
    if measured is None or measured.median is None or not left_winner.median:
        return None
    return round(measured.median / left_winner.median, 3)
