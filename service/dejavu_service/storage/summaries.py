"""Summaries of records: the numbers that pages list, without the texts that they come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, and_, case, delete, func, select

from .sql import chunks, epoch, excluded, insert
from .tables import contexts, summaries

__all__ = ["DifferenceCounts", "Summary", "count_differences", "drop", "load", "save"]


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
    replaced = {name: excluded(name) for name in Summary._fields if name != "scenario"}
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


_ours, _theirs = summaries.alias("ours"), summaries.alias("theirs")
_there = contexts.alias("there")


class DifferenceCounts(NamedTuple):
    """Numbers of a context's records that differ from those of another namespace.

    Attributes:
        absent: How many the other namespace lacks.
        differing: How many have another config there.
        pinned: How many of those that differ are pinned there.
    """

    absent: int
    differing: int
    pinned: int


def count_differences(
    connection: Connection, ids: Sequence[int], other: str
) -> dict[int, DifferenceCounts]:
    """Compare contexts with the same ones of another namespace; those that it lacks are left out.

    Args:
        connection: A transaction.
        ids: The ids of some contexts of one namespace.
        other: The other namespace.
    """
    differs = and_(_theirs.c.scenario.is_not(None), _theirs.c.chosen != _ours.c.chosen)
    query = (
        select(
            contexts.c.id,
            func.sum(case((_theirs.c.scenario.is_(None), 1), else_=0)),
            func.sum(case((differs, 1), else_=0)),
            func.sum(case((and_(differs, _theirs.c.pinned), 1), else_=0)),
        )
        .join(_there, and_(_there.c.namespace == other, _there.c.digest == contexts.c.digest))
        .join(_ours, _ours.c.context_id == contexts.c.id)
        .outerjoin(
            _theirs,
            and_(_theirs.c.context_id == _there.c.id, _theirs.c.scenario == _ours.c.scenario),
        )
        .where(contexts.c.id.in_(ids))
        .group_by(contexts.c.id)
    )
    return {identity: DifferenceCounts(*counts) for identity, *counts in connection.execute(query)}
