"""Misses: how often scenarios without a winner were looked up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, delete, func, select, tuple_, update

from dejavu_cache.model.scenario import Scenario

from .sql import chunks, epoch, insert
from .tables import contexts, misses, summaries

__all__ = [
    "CountedMiss",
    "add_counts",
    "claim",
    "count_all",
    "count_by_device",
    "dismiss",
    "drop_old",
    "drop_tuned",
    "find_known",
    "list_misses",
]


class CountedMiss(NamedTuple):
    """A line of the worklist; context and scenario are JSON texts, times seconds since 1970.

    Attributes:
        claimed_by: Who said that they would tune it; None if nobody did.
    """

    context: str
    scenario: str
    times: int
    first_seen: float
    last_seen: float
    claimed_by: str | None
    claimed_at: float | None


def add_counts(connection: Connection, counts: Mapping[tuple[int, Scenario], int]) -> None:
    """Add to the counts of scenarios, which are keyed by context id and scenario."""
    # All writers lock the rows in the same order, so that no two wait for each other.
    rows = [
        {
            "context_id": context_id,
            "scenario": scenario.digest,
            "scenario_text": scenario.text,
            "count": times,
        }
        for (context_id, scenario), times in sorted(
            counts.items(), key=lambda item: (item[0][0], item[0][1].digest)
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


def count_all(connection: Connection) -> int:
    """Count the misses of all namespaces."""
    return connection.execute(select(func.count()).select_from(misses)).scalar_one()


def find_known(
    connection: Connection, namespace: str, scenarios: Sequence[str]
) -> set[tuple[str, str]]:
    """Find those of some scenarios, by their digests, that are on a namespace's worklist.

    Returns:
        Pairs of the digests of a context and a scenario.
    """
    query = (
        select(contexts.c.digest, misses.c.scenario)
        .join(misses, misses.c.context_id == contexts.c.id)
        .where(contexts.c.namespace == namespace)
    )
    return {
        (context, scenario)
        for chunk in chunks(scenarios)
        for context, scenario in connection.execute(query.where(misses.c.scenario.in_(chunk)))
    }


def drop_tuned(connection: Connection, context_id: int, scenarios: Sequence[str]) -> None:
    """Delete scenarios that have a winner or a pin now from the worklist."""
    for chunk in chunks(scenarios):
        connection.execute(
            delete(misses).where(misses.c.context_id == context_id, misses.c.scenario.in_(chunk))
        )


def drop_old(connection: Connection, seconds: float) -> int:
    """Delete misses last seen more than `seconds` ago and return their number.

    What others have locked is missed just now, and is skipped.
    """
    key = (misses.c.context_id, misses.c.scenario)
    old = select(*key).where(misses.c.last_seen < epoch() - seconds)
    statement = delete(misses).where(tuple_(*key).in_(old.with_for_update(skip_locked=True)))
    return connection.execute(statement).rowcount


def claim(connection: Connection, context_id: int, scenario: str, by: str | None) -> bool:
    """Note who will tune a missed scenario, or nobody if None; return False if it is not missed."""
    values = {"claimed_by": by, "claimed_at": None if by is None else epoch()}
    statement = update(misses).where(_is_miss(context_id, scenario)).values(values)
    return connection.execute(statement).rowcount > 0


def dismiss(connection: Connection, context_id: int, scenario: str) -> bool:
    """Delete a missed scenario from the worklist; return False if it is not missed."""
    return connection.execute(delete(misses).where(_is_miss(context_id, scenario))).rowcount > 0


def _is_miss(context_id: int, scenario: str) -> ColumnElement[bool]:
    return (misses.c.context_id == context_id) & (misses.c.scenario == scenario)


_is_tuned = (
    select(summaries.c.scenario)
    .where(
        summaries.c.context_id == misses.c.context_id,
        summaries.c.scenario == misses.c.scenario,
        summaries.c.chosen.is_not(None),
    )
    .exists()
)


def list_misses(
    connection: Connection,
    namespace: str,
    kernel: str | None,
    limit: int,
    device: str | None = None,
    offset: int = 0,
) -> list[CountedMiss]:
    """List the scenarios without a winner or a pin, the most frequently missed first."""
    query = (
        select(
            contexts.c.text,
            misses.c.scenario_text,
            misses.c.count,
            misses.c.first_seen,
            misses.c.last_seen,
            misses.c.claimed_by,
            misses.c.claimed_at,
        )
        .join(contexts, contexts.c.id == misses.c.context_id)
        .where(contexts.c.namespace == namespace, ~_is_tuned)
        .order_by(
            misses.c.count.desc(), misses.c.last_seen.desc(), misses.c.scenario, contexts.c.digest
        )
        .limit(limit)
        .offset(offset)
    )
    if kernel is not None:
        query = query.where(contexts.c.kernel == kernel)
    if device is not None:
        query = query.where(contexts.c.device == device)
    return [CountedMiss(*row) for row in connection.execute(query)]


def count_by_device(
    connection: Connection, namespace: str, kernel: str | None
) -> list[tuple[str, int, int]]:
    """Count what `list_misses` lists of each GPU of a namespace, the most wanted first.

    Returns:
        Of each GPU the name, the number of scenarios, and how often they were asked for.
    """
    joined = [misses.c.context_id == contexts.c.id, ~_is_tuned]
    if kernel is not None:
        joined.append(contexts.c.kernel == kernel)
    times = func.coalesce(func.sum(misses.c.count), 0)
    query = (
        select(contexts.c.device, func.count(misses.c.scenario), times)
        .select_from(contexts.outerjoin(misses, and_(*joined)))
        .where(contexts.c.namespace == namespace)
        .group_by(contexts.c.device)
        .order_by(times.desc(), contexts.c.device)
    )
    return [(device, count, int(total)) for device, count, total in connection.execute(query)]
