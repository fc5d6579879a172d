"""Table of a context's scenarios and winners: what is the same in all rows stands above it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Config
from dejavu_cache.system.notices import counted

from .columns import (
    ordered_values,
    say_constants,
    settings_text,
    sort_by_values,
    sort_rows,
    split_columns,
)
from .output import note, say, show_table
from .record_queries import has_settings, winning_measurement

__all__ = ["ScenarioLine", "scenario_rows", "show_scenarios"]

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
