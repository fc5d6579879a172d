"""Misses: scenarios that somebody wanted and nobody has tuned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, delete, select

from dejavu_cache.model.scenario import Scenario

from .tables import contexts, epoch, misses, records
from .upserts import insert

__all__ = ["Wanted", "count", "drop_old", "drop_tuned", "listed"]

_CHUNK = 500


class Wanted(NamedTuple):
    """One line of the worklist."""

    context: str
    scenario: str
    times: int
    first_seen: float
    last_seen: float


def count(connection: Connection, wanted: Mapping[tuple[int, Scenario], int]) -> None:
    """Adds to the counts of scenarios by context id."""
    # In one order for everybody: two writers of the same rows cannot wait for each other.
    rows = [
        {
            "context_id": context_id,
            "scenario": scenario.digest,
            "scenario_text": scenario.text,
            "count": times,
        }
        for (context_id, scenario), times in sorted(
            wanted.items(), key=lambda item: (item[0][0], item[0][1].digest)
        )
    ]
    if not rows:
        return
    statement = insert(connection, misses).values(first_seen=epoch(), last_seen=epoch())
    statement = statement.on_conflict_do_update(
        index_elements=[misses.c.context_id, misses.c.scenario],
        set_={"count": misses.c.count + statement.excluded.count, "last_seen": epoch()},
    )
    connection.execute(statement, rows)


def drop_tuned(connection: Connection, context_id: int, scenarios: Sequence[str]) -> None:
    """Strikes scenarios off the worklist: they have a record now."""
    for start in range(0, len(scenarios), _CHUNK):
        chunk = scenarios[start : start + _CHUNK]
        connection.execute(
            delete(misses).where(misses.c.context_id == context_id, misses.c.scenario.in_(chunk))
        )


def drop_old(connection: Connection, seconds: float) -> int:
    """Forgets what nobody has wanted for a time."""
    return connection.execute(delete(misses).where(misses.c.last_seen < epoch() - seconds)).rowcount


def listed(
    connection: Connection, namespace: str, kernel: str | None, limit: int
) -> Iterable[Wanted]:
    """The worklist, most wanted first."""
    tuned = (
        select(records.c.scenario)
        .where(records.c.context_id == misses.c.context_id, records.c.scenario == misses.c.scenario)
        .exists()
    )
    query = (
        select(
            contexts.c.text,
            misses.c.scenario_text,
            misses.c.count,
            misses.c.first_seen,
            misses.c.last_seen,
        )
        .join(contexts, contexts.c.id == misses.c.context_id)
        .where(contexts.c.namespace == namespace, ~tuned)
        .order_by(misses.c.count.desc(), misses.c.last_seen.desc(), misses.c.scenario)
        .limit(limit)
    )
    if kernel is not None:
        query = query.where(contexts.c.kernel == kernel)
    return [Wanted(*row) for row in connection.execute(query)]
