"""Table of a context's scenarios and winners: what is the same in all rows stands above it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Config

from .conditions import scenario_values
from .output import note, say, say_indented, show_table
from .record_queries import winning_measurement

__all__ = ["show_scenarios"]

TIMES = ("ms", "slower", "failed", "pinned")
"""Columns after those of the scenario and the winner."""


class Row(NamedTuple):
    """A scenario, its winner and the fastest other config."""

    scenario: dict[str, Any]
    winner: dict[str, Any]
    times: dict[str, Any]
    runner_up: dict[str, Any]


def show_scenarios(records: Iterable[Record], keys: Sequence[str], sort: str, limit: int) -> None:
    """Print a line for each scenario of a context.

    Args:
        records: the records of the scenarios.
        keys: the arguments that come first, in order.
        sort: the column to sort by, descending if it begins with `-`; empty: by the scenario.
        limit: how many lines at most; 0 is all.
    """
    rows = [_row(record, keys) for record in records]
    scenario, same_scenario = _split_columns([row.scenario for row in rows])
    tuned = [row.winner for row in rows if row.winner]
    winner, same_winner = _split_columns(tuned)
    times = [name for name in TIMES if any(name in row.times for row in rows)]
    for title, constants in (("all scenarios", same_scenario), ("all winners", same_winner)):
        if constants:
            say_indented(f"{title}: {_settings_text(constants)}")
    if not (scenario or winner or times):
        say(f"  {len(rows)} scenarios without a measurement")
        return
    rows = _sort(rows, [*scenario, *winner, *times], sort)
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
        note(f"{len(rows) - len(shown)} more scenarios: raise --limit to see them")


def _row(record: Record, keys: Sequence[str]) -> Row:
    timed = [item for item in record.measurements if item.median is not None]
    timed.sort(key=lambda measurement: measurement.median or 0)
    failures = len(record.measurements) - len(timed)
    best = winning_measurement(record)
    config = best.config if best else record.pinned
    second = next((item for item in timed if best and item.config != best.config), None)
    values = scenario_values(record.scenario)
    times: dict[str, Any] = {}
    if best and best.median is not None:
        times["ms"] = f"{best.median:.4g}"
    if second and best and best.median:
        times["slower"] = f"{(second.median or 0) / best.median:.2f}x"
    if failures:
        times["failed"] = failures
    if record.pinned:
        times["pinned"] = "yes"
    return Row(
        scenario={key: values[key] for key in dict.fromkeys([*keys, *values]) if key in values},
        winner=_settings(config),
        times=times,
        runner_up=_settings(second.config if second else None),
    )


def _settings(config: Config | None) -> dict[str, Any]:
    return {**config.params, **config.options} if config else {}


def _split_columns(rows: Sequence[dict[str, Any]]) -> tuple[list[str], dict[str, Any]]:
    """Return the names whose values differ between rows, and the values of the others."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    values = {name: [row.get(name) for row in rows] for name in names}
    varying = [name for name in names if any(value != values[name][0] for value in values[name])]
    return varying, {name: values[name][0] for name in names if name not in varying}


def _sort(rows: list[Row], columns: list[str], sort: str) -> list[Row]:
    name = sort.removeprefix("-")
    if name and name not in (*columns, *TIMES):
        raise SettingsError(f"--sort {name!r}: no such column; there are {', '.join(columns)}")
    rows = sorted(rows, key=lambda row: [_order(value) for value in row.scenario.values()])
    if not name:
        return rows

    def order(row: Row) -> tuple[int, float, str]:
        return _order({**row.scenario, **row.winner, **row.times}.get(name))

    return sorted(rows, key=order, reverse=sort.startswith("-"))


def _order(value: Any) -> tuple[int, float, str]:
    """Return a key that sorts numbers by their value, before texts."""
    try:
        return 0, float(str(value).removesuffix("x")), ""
    except ValueError:
        return 1, 0.0, str(value)


def _runner_up_text(row: Row) -> str:
    """Return the settings in which the runner-up differs from the winner."""
    different = {
        name: value for name, value in row.runner_up.items() if row.winner.get(name) != value
    }
    return _settings_text(different) or "-"


def _settings_text(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
