"""`ls`, `show` and `diff`: contents of one store, and differences between two."""

from __future__ import annotations

import json
from itertools import groupby
from operator import itemgetter
from typing import Annotated

import typer

from dejavu_cache.errors import SettingsError
from dejavu_cache.stores import Store

from ..chosen_store import open_complete_store, open_existing_store
from ..completion import complete_devices
from ..context_heading import say_context
from ..errors import NothingFoundError
from ..kernel_table import show_kernels, sort_kernels, summarize_context
from ..options import (
    DeviceOption,
    JsonOption,
    KernelArgument,
    KernelOption,
    LimitOption,
    OptionalKernelArgument,
    ScenarioOption,
    SortOption,
    StoreOption,
    TritonOption,
    WhereOption,
    parse_assignments,
)
from ..output import say, show_json, show_json_items, show_table
from ..record_queries import (
    context_matches,
    contexts_of,
    describe_filters,
    matching_records,
)
from ..scenario_table import scenario_rows, show_scenarios
from ..store_differences import ComparedSide, differences, environment_differences

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
        wanted = describe_filters(device, triton)
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
        tables = [
            (context, scenario_rows((record for _, record in group), keys, sort, priced))
            for context, group in groupby(matches, key=itemgetter(0))
            for keys in [context.problem.keys]
        ]
    if priced and not any(row.is_priced for _, rows in tables for row in rows):
        texts = " ".join(cost or ())
        raise NothingFoundError(f"--cost {texts}: no measured config has these values")
    if not as_json:
        for context, rows in tables:
            say_context(context)
            show_scenarios(rows, limit)
        return
    show_json_items(
        {"context": context.model_dump(mode="json"), "record": json.loads(row.json)}
        for context, rows in tables
        for row in (rows[:limit] if limit else rows)
    )


def diff(
    left_url: Annotated[str, typer.Argument(metavar="A", help="A store's URL or folder.")],
    right_url: Annotated[str, typer.Argument(metavar="B", help="Another store's; else A.")] = "",
    kernel: KernelOption = "",
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            metavar="TEXT",
            help="Give it twice: a GPU of A, and the one of B to compare it with.",
            autocompletion=complete_devices,
        ),
    ] = None,
    triton: Annotated[
        list[str] | None,
        typer.Option("--triton", metavar="VERSION", help="Give it twice, as --device."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two stores, two GPUs or two versions of Triton; exits 1 if they differ.

    For scenarios in both, `cost` is what B's winner costs by A's measurements, as a multiple of
    A's winner. GPUs and Tritons are compared by their winners, not by their timings.
    """
    devices, tritons = _two_values(device, "--device"), _two_values(triton, "--triton")
    if not (right_url or device or triton):
        raise SettingsError("name another store to compare with, or two GPUs or Tritons")
    with (
        open_complete_store(left_url) as left,
        open_complete_store(right_url or left_url) as right,
    ):
        if not any(next(store.contexts(), None) for store in (left, right)):
            raise NothingFoundError(f"neither {left.url} nor {right.url} holds records")
        if device or triton:
            left_side = _compared_side(left, devices[0], tritons[0], kernel)
            right_side = _compared_side(right, devices[1], tritons[1], kernel)
            rows = list(environment_differences(left_side, right_side, kernel))
        else:
            rows = list(differences(left, right, kernel))
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


def _compared_side(store: Store, device: str, triton: str, kernel: str) -> ComparedSide:
    side = ComparedSide(store, device, triton)
    if not side.contexts(kernel):
        wanted = describe_filters(device, triton)
        raise NothingFoundError(f"{store.url} has no such records of {wanted}")
    return side


def _two_values(values: list[str] | None, option: str) -> tuple[str, str]:
    """Return the value of either side; none is empty."""
    if not values:
        return "", ""
    if len(values) != 2:
        raise SettingsError(f"{option}: give it twice, for A and for B")
    return values[0], values[1]
