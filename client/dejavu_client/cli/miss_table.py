"""Tables of scenarios that programs launched and nobody has tuned, one for each context."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.system.notices import counted

from .columns import ordered_values, say_constants, sort_rows, split_columns
from .conditions import Condition
from .context_heading import say_context
from .output import note, show_table

__all__ = ["MissedLaunch", "parse_misses", "select_misses", "show_misses"]

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
    misses: Sequence[MissedLaunch], conditions: Sequence[Condition], device: str, sort: str
) -> list[MissedLaunch]:
    """Return the misses of a GPU that satisfy all conditions, in the order of a column.

    Args:
        misses: the misses, the most frequent first.
        conditions: of the scenario's arguments.
        device: part of the GPU's name, in any case.
        sort: the column; with `-` before it, the largest value first. Empty: no order.
    """
    chosen = [
        miss
        for miss in misses
        if device.lower() in miss.context.environment.device.name.lower()
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
