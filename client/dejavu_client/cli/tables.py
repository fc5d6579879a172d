"""Tables of kernels, of scenarios and their winners, and of misses.

What is the same in all rows stands above a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.buckets import Bucket
from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Config, Context, Scenario
from dejavu_cache.stores import Store
from dejavu_cache.system.notices import counted

from .output import note, say, say_indented, show_table
from .queries import (
    NEVER,
    Condition,
    context_matches,
    has_settings,
    last_measured,
    winning_measurement,
)

__all__ = [
    "MissedLaunch",
    "ScenarioLine",
    "ordered_values",
    "parse_misses",
    "say_context",
    "scenario_rows",
    "select_misses",
    "settings_text",
    "show_kernels",
    "show_misses",
    "show_scenarios",
    "sort_kernels",
    "summarize_context",
]

_Row = TypeVar("_Row")


def ordered_values(scenario: Scenario, keys: Sequence[str]) -> dict[str, Any]:
    """Return a scenario's arguments and dtypes by name, the named keys first."""
    values = scenario.values
    return {key: values[key] for key in dict.fromkeys([*keys, *values]) if key in values}


def split_columns(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], dict[str, Any]]:
    """Return the names whose values differ between rows, and the values of the others."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    values = {name: [row.get(name) for row in rows] for name in names}
    varying = [name for name in names if any(value != values[name][0] for value in values[name])]
    return varying, {name: values[name][0] for name in names if name not in varying}


def say_constants(title: str, constants: Mapping[str, Any]) -> None:
    """Print what is the same in all rows of a table, above it."""
    if constants:
        say_indented(f"{title}: {settings_text(constants)}")


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings as `NAME=VALUE, …`."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def sort_rows(
    rows: Iterable[_Row],
    values_of: Callable[[_Row], Mapping[str, Any]],
    columns: Sequence[str],
    sort: str,
) -> list[_Row]:
    """Return rows in the order of a column; numbers by their value, before texts.

    Args:
        rows: the rows, which keep their order where the column's values are equal.
        values_of: returns a row's values by column.
        columns: the columns that there are.
        sort: the column; with `-` before it, the largest value first. Empty: no order.

    Raises:
        SettingsError: there is no such column.
    """
    name = sort.removeprefix("-")
    if not name:
        return list(rows)
    if name not in columns:
        raise SettingsError(f"--sort {name!r}: no such column; there are {', '.join(columns)}")

    def order(row: _Row) -> tuple[int, float, str]:
        return _order(values_of(row).get(name))

    return sorted(rows, key=order, reverse=sort.startswith("-"))


def sort_by_values(
    rows: Iterable[_Row], values_of: Callable[[_Row], Mapping[str, Any]]
) -> list[_Row]:
    """Return rows in the order of all their values, from the first column on."""
    return sorted(rows, key=lambda row: [_order(value) for value in values_of(row).values()])


def _order(value: Any) -> tuple[int, float, str]:
    """Return a key that sorts numbers by their value, before texts."""
    try:
        return 0, float(str(value).removesuffix("x")), ""
    except ValueError:
        return 1, 0.0, str(value)


def say_context(context: Context) -> None:
    """Print a context's kernel, GPU, toolchain and buckets."""
    environment = context.environment
    say_indented(f"{context.kernel.name} (source {context.kernel.source[:8]})", indent=0)
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


KERNEL_COLUMNS = (
    "kernel",
    "source",
    "device",
    "triton",
    "method",
    "scenarios",
    "configs",
    "tuning_seconds",
    "last_tuned",
)

OPTIONAL_COLUMNS = ("source", "method", "configs", "tuning_seconds", "last_tuned")
"""Columns that a narrow terminal does without, the least important one first."""


def summarize_context(store: Store, context: Context) -> dict[str, Any]:
    """Return what a line about a context tells; `tuning_seconds` is what its measurements took."""
    scenarios, seconds = 0, 0.0
    configs: set[Config] = set()
    last = NEVER
    for record in store.records(context):  # a large context has gigabytes of them
        scenarios += 1
        seconds += sum(measurement.seconds for measurement in record.measurements)
        configs.update(record.by_config)
        last = max(last, last_measured([record]))
    return {
        "kernel": context.kernel.name,
        "source": context.kernel.source[:8],
        "device": context.environment.device.name,
        "triton": context.environment.triton,
        "method": context.problem.method,
        "scenarios": scenarios,
        "configs": len(configs),
        "tuning_seconds": round(seconds, 1),
        "last_tuned": last.isoformat(timespec="seconds") if last > NEVER else None,
        "context": context.digest,
    }


def sort_kernels(rows: Sequence[dict[str, Any]], sort: str) -> list[dict[str, Any]]:
    """Return lines in the order of a column, as `sort_rows` does."""
    return sort_rows(rows, lambda row: row, KERNEL_COLUMNS, sort)


def show_kernels(rows: Sequence[dict[str, Any]], limit: int) -> None:
    """Print a table of contexts, or of the first ones; 0 is all.

    On a terminal, what is the same for all kernels stands above the table.
    """
    shown = rows[:limit] if limit else rows
    cells = [[row[column] for column in KERNEL_COLUMNS] for row in shown]
    show_table(
        KERNEL_COLUMNS,
        cells,
        optional=OPTIONAL_COLUMNS,
        shorter={"last_tuned": _minutes},
        constant=["source", "device", "triton", "method"],
    )
    if len(shown) < len(rows):
        note(f"{len(rows) - len(shown)} more: raise --limit to see them")


def _minutes(moments: Sequence[str]) -> list[str]:
    """Return moments to the minute, in UTC."""
    return [
        datetime.fromisoformat(moment).strftime("%Y-%m-%d %H:%M") if moment else ""
        for moment in moments
    ]


TIMES = ("ms", "cases", "slower", "error", "cost", "failed", "unfinished", "uncompared", "pinned")
"""Columns after those of the scenario and the winner."""


class ScenarioLine(NamedTuple):
    """A record's scenario, its winner and the fastest other config."""

    json: str
    """The record as JSON text, which takes a tenth of the record's memory."""
    scenario: dict[str, Any]
    winner: dict[str, Any]
    times: dict[str, Any]
    runner_up: dict[str, Any]
    is_priced: bool
    """Whether a measured config has the values whose cost was asked for."""

    @property
    def values(self) -> dict[str, Any]:
        """Values by column."""
        return {**self.scenario, **self.winner, **self.times}


def scenario_rows(
    records: Iterable[Record], keys: Sequence[str], sort: str, cost: Mapping[str, str]
) -> list[ScenarioLine]:
    """Return a row for each scenario of a context.

    Args:
        records: the records of the scenarios.
        keys: the arguments that come first, in order.
        sort: the column to sort by, descending if it begins with `-`; empty: by the scenario.
        cost: values of the config whose cost is a column; empty: no such column.
    """
    rows = [_row(record, keys, cost) for record in records]
    rows = sort_by_values(rows, lambda row: row.scenario)
    names = dict.fromkeys(name for row in rows for name in row.values)
    return sort_rows(rows, lambda row: row.values, [*names, *TIMES], sort)


def show_scenarios(rows: Sequence[ScenarioLine], limit: int) -> None:
    """Print a line for each scenario of a context, or for the first ones.

    Args:
        rows: the scenarios.
        limit: how many lines at most; 0 is all.
    """
    scenario, same_scenario = split_columns([row.scenario for row in rows])
    winner, same_winner = split_columns([row.winner for row in rows if row.winner])
    times = [name for name in TIMES if any(name in row.times for row in rows)]
    say_constants("all scenarios", same_scenario)
    say_constants("all winners", same_winner)
    if not (scenario or winner or times):
        say(f"  {counted(len(rows), 'scenario')} without a measurement")
        return
    shown = rows[:limit] if limit else rows
    cells = [
        [
            *(row.scenario.get(name) for name in scenario),
            *(row.winner.get(name, "-") for name in winner),
            *(row.times.get(name, "-") for name in times),
            _runner_up_text(row),
        ]
        for row in shown
    ]
    show_table([*scenario, *winner, *times, "runner-up"], cells, optional=["runner-up"])
    if len(shown) < len(rows):
        note(f"{counted(len(rows) - len(shown), 'more scenario')}: raise --limit to see them")


def _row(record: Record, keys: Sequence[str], cost: Mapping[str, str]) -> ScenarioLine:
    timed = [item for item in record.measurements if item.median is not None]
    timed.sort(key=lambda measurement: measurement.median or 0)
    failures = len(record.measurements) - len(timed)
    best = winning_measurement(record)
    config = best.config if best else record.pinned
    second = next((item for item in timed if best and item.config != best.config), None)
    times: dict[str, Any] = {}
    if best and best.median is not None:
        times["ms"] = f"{best.median:.4g}"
    if best and best.case_count:
        times["cases"] = best.case_count
    if second and best and best.median:
        times["slower"] = f"{(second.median or 0) / best.median:.2f}x"
        if best.confidence and second.confidence:
            times["error"] = f"{max(best.confidence.error, second.confidence.error):.1%}"
    chosen = (item for item in timed if cost and has_settings(item.config, cost))
    priced = next(chosen, None)
    if priced and timed[0].median:
        times["cost"] = f"{(priced.median or 0) / timed[0].median:.2f}x"
    if failures:
        times["failed"] = failures
    if record.pinned:
        times["pinned"] = "yes"
    elif record.is_unfinished:
        times["unfinished"] = "yes"
    elif record.winner and not record.winner.is_compared:
        times["uncompared"] = "yes"
    return ScenarioLine(
        json=record.model_dump_json(),
        scenario=ordered_values(record.scenario, keys),
        winner=_settings(config),
        times=times,
        runner_up=_settings(second.config if second else None),
        is_priced=any(has_settings(item.config, cost) for item in record.measurements),
    )


def _settings(config: Config | None) -> dict[str, Any]:
    return {**config.params, **config.options} if config else {}


def _runner_up_text(row: ScenarioLine) -> str:
    """Return the settings in which the runner-up differs from the winner."""
    different = {
        name: value for name, value in row.runner_up.items() if row.winner.get(name) != value
    }
    return settings_text(different) or "-"


COUNTS = ("count", "last_seen")
"""Columns before those of the scenario."""


class MissedLaunch(NamedTuple):
    """A miss, and its form in the protocol."""

    context: Context
    scenario: Scenario
    answer: dict[str, Any]

    @property
    def values(self) -> dict[str, Any]:
        """Values by column."""
        seen = str(self.answer.get("last_seen", ""))
        counts = {"count": self.answer["count"], "last_seen": _minute(seen)}
        return {**counts, **ordered_values(self.scenario, self.context.problem.keys)}


def parse_misses(answers: Sequence[dict[str, Any]]) -> list[MissedLaunch]:
    """Return a server's misses, whose order stays."""
    return [
        MissedLaunch(
            Context.model_validate(answer["context"]),
            Scenario.model_validate(answer["scenario"]),
            answer,
        )
        for answer in answers
    ]


def select_misses(
    misses: Sequence[MissedLaunch],
    conditions: Sequence[Condition],
    device: str,
    triton: str,
    sort: str,
) -> list[MissedLaunch]:
    """Return the misses of a GPU and Triton that satisfy all conditions, in a column's order.

    Args:
        misses: the misses, the most frequent first.
        conditions: of the scenario's arguments.
        device: part of the GPU's name, in any case.
        triton: the version of Triton; empty for all.
        sort: the column; with `-` before it, the largest value first. Empty: no order.
    """
    chosen = [
        miss
        for miss in misses
        if context_matches(miss.context, "", device, triton)
        and all(condition.matches(miss.scenario) for condition in conditions)
    ]
    columns = dict.fromkeys(name for miss in chosen for name in miss.values)
    return sort_rows(chosen, lambda miss: miss.values, [*COUNTS, *columns], sort)


def show_misses(misses: Sequence[MissedLaunch], limit: int) -> None:
    """Print a table for each context with misses, or with the first ones; 0 is all."""
    shown = misses[:limit] if limit else misses
    by_context: dict[Context, list[MissedLaunch]] = {}
    for miss in shown:
        by_context.setdefault(miss.context, []).append(miss)
    for context, launches in by_context.items():
        say_context(context)
        values = [miss.values for miss in launches]
        varying, constants = split_columns(
            [{name: row[name] for name in row if name not in COUNTS} for row in values]
        )
        say_constants("all scenarios", constants)
        columns = [*COUNTS, *varying]
        cells = [[row.get(name) for name in columns] for row in values]
        show_table(columns, cells, optional=["last_seen"])
    if len(shown) < len(misses):
        more = counted(len(misses) - len(shown), "more miss", "more misses")
        note(f"{more}: raise --limit to see them")


def _minute(moment: str) -> str:
    try:
        return datetime.fromisoformat(moment.replace("Z", "+00:00")).strftime("%Y-%m-%d %H:%M")
    except ValueError:  # a server of another version may write none
        return moment
