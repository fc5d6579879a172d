"""Summaries of records: the numbers that pages list, without the texts that they come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, delete, select

from .sql import chunks, epoch, insert
from .tables import summaries

__all__ = ["Summary", "drop", "load", "save"]


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


def drop(connection: Connection, context_id: int, scenarios: Sequence[str]) -> None:
    """Delete the summaries of scenarios that have no record any more."""
    for chunk in chunks(scenarios):
        gone = summaries.c.scenario.in_(chunk)
        connection.execute(delete(summaries).where(summaries.c.context_id == context_id, gone))


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
