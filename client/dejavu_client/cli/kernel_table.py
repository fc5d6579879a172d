"""Table of kernels: where each is tuned, how well it is covered, and what its tuning cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from dejavu_cache.model.scenario import Config, Context
from dejavu_cache.stores import Store

from .columns import sort_rows
from .output import note, show_table
from .record_queries import NEVER, last_measured

__all__ = ["show_kernels", "sort_kernels", "summarize_context"]

COLUMNS = (
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

OPTIONAL = ("source", "method", "configs", "tuning_seconds", "last_tuned")
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
    return sort_rows(rows, lambda row: row, COLUMNS, sort)


def show_kernels(rows: Sequence[dict[str, Any]], limit: int) -> None:
    """Print a table of contexts, or of the first ones; 0 is all.

    On a terminal, what is the same for all kernels stands above the table.
    """
    shown = rows[:limit] if limit else rows
    cells = [[row[column] for column in COLUMNS] for row in shown]
    show_table(
        COLUMNS,
        cells,
        optional=OPTIONAL,
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
