"""Summaries of records: the numbers that pages list, without the texts that they come from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from dejavu_cache.model.record import OutputVerdict, Record, are_compared
from dejavu_cache.model.scenario import Scenario, canonical_json

from .chunks import chunks
from .sql_functions import epoch
from .tables import records, summaries
from .upserts import insert

__all__ = ["Summary", "copy_missing", "load", "save", "summarize", "summarize_json"]


class Summary(NamedTuple):
    """A record in numbers; times in milliseconds, None where nothing ran.

    Attributes:
        scenario: The digest of the scenario.
        chosen: The config that readers get, as JSON.
        median: The median of the chosen config.
        best: The smallest median.
        slowest: The largest median.
        configs: The number of measured configs.
        failed: The number of configs that failed.
        seconds: The cost of all measurements.
        pinned: Whether a person chose the config.
        compared: Whether the winner's results were compared; None where they were not.
    """

    scenario: str
    chosen: str | None
    median: float | None
    best: float | None
    slowest: float | None
    configs: int
    failed: int
    seconds: float
    pinned: bool
    compared: bool | None = None

    @property
    def is_uncompared(self) -> bool:
        """Return whether readers get a winner whose results nobody has compared."""
        return self.chosen is not None and not (self.pinned or self.compared)


def summarize(record: Record) -> Summary:
    """Summarize a record."""
    chosen = record.pinned or (record.winner.config if record.winner else None)
    timing = record.by_config.get(chosen) if chosen else None
    medians = [item.median for item in record.measurements if item.median is not None]
    return Summary(
        scenario=record.scenario.digest,
        chosen=chosen.text if chosen else None,
        median=timing.median if timing else None,
        best=min(medians, default=None),
        slowest=max(medians, default=None),
        configs=len(record.measurements),
        failed=len(record.measurements) - len(medians),
        seconds=sum(item.seconds for item in record.measurements),
        pinned=record.pinned is not None,
        compared=True if record.winner and record.winner.is_compared else None,
    )


def summarize_json(text: str) -> Summary:
    """Summarize a record that is canonical JSON: parsing a model would take ten times as long."""
    record: dict[str, Any] = json.loads(text)
    pinned = record.get("pin", {}).get("config")
    chosen = pinned or record.get("winner", {}).get("config")
    results = record.get("winner", {}).get("results", {})
    measured = record["measurements"]
    timings = [(item["config"], item["median"]) for item in measured if "median" in item]
    medians = [median for _, median in timings]
    return Summary(
        scenario=Scenario.model_construct(**record["scenario"]).digest,
        chosen=canonical_json(chosen) if chosen else None,
        median=next((median for config, median in timings if config == chosen), None),
        best=min(medians, default=None),
        slowest=max(medians, default=None),
        configs=len(measured),
        failed=len(measured) - len(medians),
        seconds=sum(item.get("seconds", 0.0) for item in measured),
        pinned=pinned is not None,
        compared=are_compared(
            {output: OutputVerdict.model_construct(**entry) for output, entry in results.items()}
        )
        or None,
    )


def save(connection: Connection, context_id: int, changed: Iterable[Summary]) -> None:
    """Insert or replace the summaries of a context's records, which must exist."""
    rows = [{"context_id": context_id, **summary._asdict()} for summary in changed]
    if not rows:
        return
    statement = insert(connection, summaries).values(changed_at=epoch())
    key = [summaries.c.context_id, summaries.c.scenario]
    replaced = {name: statement.excluded[name] for name in Summary._fields if name != "scenario"}
    statement = statement.on_conflict_do_update(
        index_elements=key, set_={**replaced, "changed_at": epoch()}
    )
    connection.execute(statement, rows)


def copy_missing(connection: Connection, source: int, target: int) -> None:
    """Copy the summaries of records that were copied from one context to another."""
    sent, present = summaries.alias("sent"), summaries.alias("present")
    copied = [
        summaries.c.context_id,
        *(summaries.c[name] for name in Summary._fields),
        summaries.c.changed_at,
    ]
    absent = (
        ~select(present.c.scenario)
        .where(present.c.context_id == target, present.c.scenario == sent.c.scenario)
        .exists()
    )
    rows = (
        select(
            records.c.context_id, *(sent.c[name] for name in Summary._fields), records.c.updated_at
        )
        .join(sent, sent.c.scenario == records.c.scenario)
        .where(records.c.context_id == target, sent.c.context_id == source, absent)
    )
    connection.execute(insert(connection, summaries).from_select(copied, rows))


def load(
    connection: Connection, context_id: int, scenarios: Sequence[str] | None = None
) -> dict[str, Summary]:
    """Load the summaries of a context by their scenario's digest, all or some."""
    query = select(*(summaries.c[name] for name in Summary._fields)).where(
        summaries.c.context_id == context_id
    )
    queries = [query]
    if scenarios is not None:
        queries = [query.where(summaries.c.scenario.in_(chunk)) for chunk in chunks(scenarios)]
    return {row.scenario: Summary(*row) for query in queries for row in connection.execute(query)}
