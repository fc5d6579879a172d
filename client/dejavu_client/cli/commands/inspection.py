"""`ls`, `show` and `diff`: contents of one store, and differences between two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import Context
from dejavu_cache.stores import Store

from ..chosen_store import open_complete_store, open_existing_store
from ..context_heading import say_context
from ..errors import NothingFoundError
from ..kernel_table import show_kernels, sort_kernels, summarize_context
from ..options import (
    DeviceOption,
    JsonOption,
    KernelArgument,
    LimitOption,
    OptionalKernelArgument,
    ScenarioOption,
    SortOption,
    StoreOption,
    TritonOption,
    WhereOption,
    parse_assignments,
)
from ..output import say, show_json, show_table
from ..record_queries import (
    context_matches,
    contexts_of,
    has_settings,
    matching_records,
    winning_measurement,
)
from ..scenario_table import scenario_rows, show_scenarios

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("ls")(list_kernels)
    app.command()(show)
    app.command()(diff)


def list_kernels(
    kernel: OptionalKernelArgument = "",
    device: DeviceOption = "",
    triton: TritonOption = "",
    sort: SortOption = "",
    limit: LimitOption = 0,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the kernels, where each is tuned, and how many seconds of measuring that took."""
    with open_existing_store(store) as source:
        contexts = contexts_of(source, kernel) if kernel else list(source.contexts())
        rows = [
            summarize_context(source, context)
            for context in contexts
            if context_matches(context, "", device, triton)
        ]
    rows = sort_kernels(rows, sort)
    if as_json:
        show_json(rows[:limit] if limit else rows)
    elif not rows:
        filters = [device, triton and f"Triton {triton}"]
        wanted = " and ".join(filter(None, filters))
        say(f"{source.url} holds no records{f' of {wanted}' if wanted else ''}")
    else:
        show_kernels(rows, limit)


def show(
    kernel: KernelArgument,
    scenario: ScenarioOption = None,
    where: WhereOption = None,
    device: DeviceOption = "",
    triton: TritonOption = "",
    sort: SortOption = "",
    limit: LimitOption = 0,
    cost: Annotated[
        list[str] | None,
        typer.Option(
            "--cost",
            metavar="NAME=VALUE",
            help="Of a config: adds what it costs, as a multiple of the best; may repeat.",
        ),
    ] = None,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show a kernel's scenarios: the winner, its time, and how much slower the runner-up is.

    What is the same in all scenarios stands above them. --limit counts for each GPU and Triton.
    --json has all measurements.
    """
    conditions = [*(scenario or []), *(where or [])]
    priced = parse_assignments(cost, "--cost")
    with open_existing_store(store) as source:
        matches = matching_records(source, kernel, conditions, device, triton)
    configs = {config for _, record in matches for config in record.by_config}
    if priced and not any(has_settings(config, priced) for config in configs):
        texts = " ".join(cost or ())
        raise NothingFoundError(f"--cost {texts}: no measured config has these values")
    records_by_context: dict[Context, list[Record]] = {}
    for context, record in matches:
        records_by_context.setdefault(context, []).append(record)
    tables = [
        (context, scenario_rows(records, context.problem.keys, sort, priced))
        for context, records in records_by_context.items()
    ]
    if as_json:
        show_json(
            [
                {
                    "context": context.model_dump(mode="json"),
                    "record": row.record.model_dump(mode="json"),
                }
                for context, rows in tables
                for row in (rows[:limit] if limit else rows)
            ]
        )
        return
    for context, rows in tables:
        say_context(context)
        show_scenarios(rows, limit)


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
