"""Tables of kernels, of scenarios and their winners, and of misses.

What is the same in all rows stands above a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from dejavu_cache.model.buckets import Bucket
from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Config, Context, Scenario, divide_values
from dejavu_cache.stores import Store
from dejavu_cache.system.notices import counted, seconds_text

from . import queries
from .output import say, say_indented, show_table

if TYPE_CHECKING:
    from ..http.protocol_client import MissedLaunch


def ordered_values(scenario: Scenario, keys: Sequence[str]) -> dict[str, Any]:
    """Return a scenario's arguments and dtypes by name, the named keys first."""
    values = scenario.values
    return {key: values[key] for key in dict.fromkeys([*keys, *values]) if key in values}


def say_constants(title: str, constants: Mapping[str, Any]) -> None:
    """Print what is the same in all rows of a table, above it."""
    if constants:
        say_indented(f"{title}: {settings_text(constants)}")


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings as `NAME=VALUE, …`."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())


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


OPTIONAL_COLUMNS = ("source", "method", "configs", "tuning_seconds", "last_tuned")
"""Columns that a narrow terminal does without, the least important one first."""


def summarize_context(store: Store, context: Context) -> dict[str, Any]:
    """Return what a line about a context tells; `tuning_seconds` is what its measurements took."""
    scenarios, seconds = 0, 0.0
    configs: set[Config] = set()
    last = queries.NEVER
    for record in store.records(context):  # a large context has gigabytes of them
        scenarios += 1
        seconds += sum(measurement.seconds for measurement in record.measurements)
        configs.update(record.by_config)
        last = max(last, queries.last_measured([record]))
    return {
        "kernel": context.kernel.name,
        "source": context.kernel.source[:8],
        "device": context.environment.device.name,
        "triton": context.environment.triton,
        "method": context.problem.method,
        "scenarios": scenarios,
        "configs": len(configs),
        "tuning_seconds": round(seconds, 1),
        "last_tuned": last.isoformat(timespec="seconds") if last > queries.NEVER else None,
        "context": context.digest,
    }


def show_kernels(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table of contexts; on a terminal, what is the same in all stands above it."""
    names = [name for name in rows[0] if name != "context"]
    rows = [{**row, "last_tuned": _minute(row["last_tuned"] or "")} for row in rows]
    cells = [[row[name] for name in names] for row in rows]
    constant = ["source", "device", "triton", "method"]
    show_table(names, cells, optional=OPTIONAL_COLUMNS, constant=constant)


TIMES = ("ms", "cases", "slower", "error", "failed", "unfinished", "uncompared", "pinned")
"""Columns after those of the scenario and the winner."""


class ScenarioLine(NamedTuple):
    """A record's scenario, its winner and the fastest other config."""

    json: str
    """The record as JSON text, which takes a tenth of the record's memory."""
    scenario: dict[str, Any]
    winner: dict[str, Any]
    times: dict[str, Any]
    runner_up: dict[str, Any]


def scenario_rows(records: Iterable[Record], keys: Sequence[str]) -> list[ScenarioLine]:
    """Return a row for each record, in the order of the scenarios' values, those of keys first."""
    rows = [_row(record, keys) for record in records]
    return sorted(rows, key=lambda row: [_order(value) for value in row.scenario.values()])


def show_scenarios(rows: Sequence[ScenarioLine]) -> None:
    """Print a line for each scenario of a context."""
    same_scenario, scenario = divide_values([row.scenario for row in rows])
    same_winner, winner = divide_values([row.winner for row in rows if row.winner])
    times = [name for name in TIMES if any(name in row.times for row in rows)]
    say_constants("all scenarios", same_scenario)
    say_constants("all winners", same_winner)
    if not (scenario or winner or times):
        say(f"  {counted(len(rows), 'scenario')} without a measurement")
        return
    cells = [
        [
            *(row.scenario.get(name) for name in scenario),
            *(row.winner.get(name, "-") for name in winner),
            *(row.times.get(name, "-") for name in times),
            settings_text({k: v for k, v in row.runner_up.items() if row.winner.get(k) != v})
            or "-",
        ]
        for row in rows
    ]
    show_table([*scenario, *winner, *times, "runner-up"], cells, optional=["runner-up"])


def _row(record: Record, keys: Sequence[str]) -> ScenarioLine:
    timed = [item for item in record.measurements if item.median is not None]
    timed.sort(key=lambda measurement: measurement.median or 0)
    failures = len(record.measurements) - len(timed)
    best = queries.winning_measurement(record)
    config = queries.chosen_config(record)
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
        winner=config.values if config else {},
        times=times,
        runner_up=second.config.values if second else {},
    )


def select_misses(
    misses: Iterable[MissedLaunch], where: Sequence[str], device: str, triton: str
) -> list[MissedLaunch]:
    """Return the misses that pass the filters and satisfy all conditions, in their order."""
    misses = list(misses)
    conditions = queries.parse_conditions(where, (miss.scenario for miss in misses))
    return [
        miss
        for miss in misses
        if queries.context_matches(miss.context, "", device, triton)
        and all(condition.matches(miss.scenario) for condition in conditions)
    ]


def show_misses(misses: Sequence[MissedLaunch]) -> None:
    """Print a table for each context with misses."""
    by_context: dict[Context, list[MissedLaunch]] = {}
    for miss in misses:
        by_context.setdefault(miss.context, []).append(miss)
    for context, launches in by_context.items():
        say_context(context)
        values = [ordered_values(miss.scenario, context.problem.keys) for miss in launches]
        constants, varying = divide_values(values)
        say_constants("all scenarios", constants)
        cells = [
            [miss.count, *_worth_texts(miss), _minute(miss.last_seen), *map(row.get, varying)]
            for miss, row in zip(launches, values, strict=True)
        ]
        names = ["count", "saves", "tune", "said_by", "last_seen", *varying]
        show_table(names, cells, optional=["said_by", "last_seen", "tune"])


def _worth_texts(miss: MissedLaunch) -> tuple[str, str | None, str | None]:
    """Return what a tune would have saved, with its bound, what it takes, and who says so."""
    worth = miss.worth
    if worth.saves is None:
        return "unknown", None, None
    saves = f"{seconds_text(worth.saves)} (>= {seconds_text(worth.at_least)})"
    doubt = "" if worth.pays else ", not worth it"
    return f"{saves}{doubt}", seconds_text(worth.takes), miss.said_by


def _minute(moment: str) -> str:
    """Return a moment to the minute, in UTC."""
    try:
        return datetime.fromisoformat(moment.replace("Z", "+00:00")).strftime("%Y-%m-%d %H:%M")
    except ValueError:  # a server of another version may write none
        return moment
