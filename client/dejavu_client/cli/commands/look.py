"""`ls`, `show` and `explain`: what a store holds, and why."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Annotated, Any, NamedTuple

import typer

from dejavu_cache.model.buckets import Bucket
from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Config, Context
from dejavu_cache.model.selection import evidence_lines, value_distance

from ..chosen_store import open_existing_store, worklist
from ..errors import NothingFoundError
from ..options import (
    DeviceOption,
    JsonOption,
    KernelArgument,
    OptionalKernelArgument,
    ScenarioOption,
    StoreOption,
    TritonOption,
    WhereOption,
    parse_assignments,
)
from ..output import note, say, say_indented, show_json, show_json_items
from ..queries import (
    context_matches,
    contexts_of,
    describe_filters,
    last_measured,
    matching_records,
    require_arguments,
    winning_measurement,
)
from ..tables import (
    ordered_values,
    say_context,
    scenario_rows,
    select_misses,
    settings_text,
    show_kernels,
    show_misses,
    show_scenarios,
    summarize_context,
)

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("ls")(list_kernels)
    app.command()(show)
    app.command()(explain)


def list_kernels(
    kernel: OptionalKernelArgument = "",
    device: DeviceOption = "",
    triton: TritonOption = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the kernels, where each is tuned, and how long that took."""
    with open_existing_store(store) as source:
        contexts = contexts_of(source, kernel) if kernel else list(source.contexts())
        rows = [
            summarize_context(source, context)
            for context in contexts
            if context_matches(context, "", device, triton)
        ]
    if as_json:
        show_json(rows)
    elif not rows:
        wanted = describe_filters(device, triton)
        say(f"{source.url} holds no records{f' of {wanted}' if wanted else ''}")
    else:
        show_kernels(rows)


def show(
    kernel: OptionalKernelArgument = "",
    where: WhereOption = None,
    device: DeviceOption = "",
    triton: TritonOption = "",
    misses: Annotated[
        bool,
        typer.Option("--misses", help="Show what programs asked a server for and nobody tuned."),
    ] = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show scenarios: the winner, its time and the runner-up.

    What is the same in all scenarios stands above them. --json has all measurements. --misses
    lists at most 1000 scenarios, those that were missed most often first.
    """
    if misses:
        answers = worklist(store, kernel)
        chosen = select_misses(answers, where or (), device, triton)
        if as_json:
            show_json([miss.answer for miss in chosen])
        elif not chosen:
            say("nothing was missed" if not answers else "nothing that was missed fits")
        else:
            show_misses(chosen)
        return
    with open_existing_store(store) as source:
        matches = matching_records(source, kernel, where or (), device, triton)
        tables = [
            (context, scenario_rows((record for _, record in group), context.problem.keys))
            for context, group in groupby(matches, key=itemgetter(0))
        ]
    if not as_json:
        for context, rows in tables:
            say_context(context)
            show_scenarios(rows)
        return
    show_json_items(
        {"context": context.model_dump(mode="json"), "record": json.loads(row.json)}
        for context, rows in tables
        for row in rows
    )


class Explained(NamedTuple):
    """A scenario with a record, and why that names its config.

    Attributes:
        context: The kernel, the GPU and the toolchain.
        record: The record.
        distance: How many powers of two away it is from the scenario that was asked for.
        config: The config that readers get, or None if none has run.
        evidence: What the measurements say, in lines.
    """

    context: Context
    record: Record
    distance: float
    config: Config | None
    evidence: list[str]

    @property
    def not_compared(self) -> list[str]:
        """Return which results of the config were not compared, and why."""
        chosen = None if self.record.pinned else self.config
        return self.record.reasons_not_compared(chosen) if chosen else []

    @property
    def json(self) -> dict[str, Any]:
        """Return the explanation as JSON values."""
        return {
            "context": self.context.model_dump(mode="json"),
            "scenario": self.record.scenario.model_dump(mode="json"),
            "distance": self.distance,
            "config": self.config.model_dump(mode="json") if self.config else None,
            "not_compared": self.not_compared,
            "evidence": self.evidence,
        }


def explain(
    kernel: KernelArgument,
    scenario: ScenarioOption = None,
    device: DeviceOption = "",
    triton: TritonOption = "",
    limit: Annotated[
        int, typer.Option("--limit", metavar="NUMBER", min=0, help="Records at most; 0 is all.")
    ] = 5,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say why records name their configs.

    That is their time, the runner-up, their age and author. Without a record of the values that
    --scenario names, the nearest ones are explained: a launch takes one of them. The version of the
    kernel's code that was tuned last comes first. `kernel.explain(*args)` in a program also knows
    which configs the kernel declares today.
    """
    wanted = parse_assignments(scenario, "--scenario")
    with open_existing_store(store) as source:
        tuned = [
            (context, list(source.records(context)))
            for context in contexts_of(source, kernel, device, triton)
        ]
    tuned.sort(key=lambda item: last_measured(item[1]), reverse=True)
    explained = [item for group in tuned for item in _nearest(*group, wanted)]
    explained.sort(key=lambda item: item.distance)
    if not explained:
        asked = settings_text(wanted) or "such a GPU or Triton"
        raise NothingFoundError(f"{source.url} has no scenario of {kernel} with {asked}")
    shown = explained[:limit] if limit else explained
    if as_json:
        show_json([item.json for item in shown])
    else:
        for context, items in groupby(shown, key=attrgetter("context")):
            say_context(context)
            for item in items:
                _say(item, wanted)
    if len(shown) < len(explained):
        note(f"{len(explained) - len(shown)} more: name values with --scenario, or raise --limit")


def _nearest(context: Context, records: list[Record], wanted: Mapping[str, str]) -> list[Explained]:
    """Return the records at the smallest distance from some values, in the scenarios' order."""
    require_arguments(wanted, (record.scenario for record in records))
    buckets = context.problem.buckets
    asked = {name: _bucket_value(text, buckets.get(name)) for name, text in wanted.items()}
    gaps = [(_gap(record.scenario.values, asked), record) for record in records]
    smallest = min((gap for gap, _ in gaps), default=math.inf)
    if math.isinf(smallest):
        return []
    return [_explain(context, record, gap) for gap, record in gaps if gap == smallest]


def _bucket_value(text: str, bucket: Bucket | None) -> str:
    """Return the text of the value that stands for a number's bucket, as a launch computes it."""
    try:
        return text if bucket is None else str(bucket(int(text)))
    except ValueError:
        return text


def _gap(values: Mapping[str, Any], wanted: Mapping[str, str]) -> float:
    """Return the powers of two between values and what was asked for; infinite between others."""
    total = 0.0
    for name, text in wanted.items():
        value = values.get(name)
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if str(value) == text:
            continue
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(number)
        ):
            return math.inf
        total += value_distance(float(value), number)
    return total


def _explain(context: Context, record: Record, gap: float) -> Explained:
    best = winning_measurement(record)
    config = best.config if best else record.pinned
    lines = [] if config is None else evidence_lines(record, config, record.by_config)
    return Explained(context, record, gap, config, lines)


def _say(item: Explained, wanted: Mapping[str, str]) -> None:
    values = settings_text(ordered_values(item.record.scenario, item.context.problem.keys))
    far = "" if not item.distance else f" (no record of {settings_text(wanted)}; the nearest, "
    say_indented(values + (f"{far}{item.distance:.2g} powers of two away)" if far else ""))
    if item.config is None:
        say_indented("no config is recorded to have run", indent=4)
        return
    if item.record.is_unfinished:
        say_indented(
            "has no winner, so a launch that compares results takes a fallback; the fastest is "
            f"{item.config}",
            indent=4,
        )
    else:
        chosen = "pinned" if item.record.pinned else "recorded winner"
        say_indented(f"{chosen}: {item.config}", indent=4)
    if not item.record.is_unfinished:
        for reason in item.not_compared:
            say_indented(f"not compared: {reason}", indent=4)
    for line in item.evidence:
        say_indented(line, indent=4)
