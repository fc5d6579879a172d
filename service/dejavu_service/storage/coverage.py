"""Coverage of a namespace: what is tuned of each kernel, what that cost, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, func, or_, select, union

from ..errors import TooLargeError
from .sql import byte_length, chunks
from .tables import contexts, misses, records, summaries

__all__ = [
    "ContextRow",
    "TuningCost",
    "count_changed",
    "count_known",
    "count_misses",
    "list_namespaces",
    "load_contexts",
    "load_costs",
    "load_scenarios",
]


class ContextRow(NamedTuple):
    """A context with records or misses; times are seconds since 1970.

    Attributes:
        id: The id in the database.
        digest: The digest.
        text: The context as JSON.
        records: The number of its records.
        fetches: Answers with records to machines that had none of them.
        created_at: When it was first heard of.
        used_at: When it was last read or written, to a day.
        changed_at: When its records changed last; None if that was not noted.
        changed_by: Who changed them.
    """

    id: int
    digest: str
    text: str
    records: int
    fetches: int
    created_at: float
    used_at: float
    changed_at: float | None
    changed_by: str | None


class TuningCost(NamedTuple):
    """The seconds that a context's measurements took, and when its records changed last."""

    seconds: float
    changed_at: float


MOST_BYTES = 64 * 2**20
"""Bytes of contexts that are loaded at once; one has about 1000."""
MOST_SCENARIOS = 100_000
"""Scenarios of a context that are loaded at once."""

_CONTEXT = [contexts.c[name] for name in ContextRow._fields]


def load_contexts(
    connection: Connection, namespace: str, kernel: str | None = None, digest: str | None = None
) -> list[ContextRow]:
    """Load contexts of a namespace, all, a kernel's or a single one, ordered by kernel.

    Raises:
        TooLargeError: They have more than `MOST_BYTES`.
    """
    is_missed = select(misses.c.scenario).where(misses.c.context_id == contexts.c.id).exists()
    clauses = [contexts.c.namespace == namespace, or_(contexts.c.records > 0, is_missed)]
    if digest is not None:
        clauses.append(contexts.c.digest == digest)
    if kernel is not None:
        clauses.append(contexts.c.kernel == kernel)
    total = select(func.sum(byte_length(contexts.c.text))).where(*clauses)
    size = int(connection.execute(total).scalar() or 0)
    if size > MOST_BYTES:
        raise TooLargeError(
            f"the contexts of {kernel or 'all kernels'} in {namespace!r} have {size} bytes, and a "
            f"page loads at most {MOST_BYTES}: see by  dejavu-cache quarantine writers  who wrote "
            "so many, and prune those that nobody uses"
        )
    rows = connection.execute(
        select(*_CONTEXT).where(*clauses).order_by(contexts.c.kernel, contexts.c.digest)
    )
    return [ContextRow(*row) for row in rows]


def load_costs(
    connection: Connection, namespace: str, context_id: int | None = None
) -> dict[int, TuningCost]:
    """Load the tuning costs of a namespace's contexts by their id, of all or one."""
    query = (
        select(
            summaries.c.context_id, func.sum(summaries.c.seconds), func.max(summaries.c.changed_at)
        )
        .join(contexts, contexts.c.id == summaries.c.context_id)
        .where(contexts.c.namespace == namespace)
        .group_by(summaries.c.context_id)
    )
    if context_id is not None:
        query = query.where(contexts.c.id == context_id)
    return {identity: TuningCost(*cost) for identity, *cost in connection.execute(query)}


def count_misses(connection: Connection, namespace: str) -> dict[int, int]:
    """Count the scenarios that were missed and have no record, by their context's id."""
    query = (
        select(misses.c.context_id, func.count().label("counted"))
        .join(contexts, contexts.c.id == misses.c.context_id)
        .where(contexts.c.namespace == namespace)
        .group_by(misses.c.context_id)
    )
    return {row.context_id: row.counted for row in connection.execute(query)}


def count_known(connection: Connection, groups: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Count the different scenarios, tuned or missed, of groups of contexts.

    Args:
        connection: A transaction.
        groups: The ids of contexts by the name of their group.
    """
    counts: dict[str, int] = {}
    for name, ids in groups.items():
        known = union(
            *(
                select(table.c.scenario).where(table.c.context_id.in_(chunk))
                for table in (summaries, misses)
                for chunk in chunks(ids)
            )
        ).subquery()
        counts[name] = connection.execute(select(func.count()).select_from(known)).scalar_one()
    return counts


def load_scenarios(connection: Connection, context_id: int) -> dict[str, str]:
    """Load the texts of the scenarios that are tuned in a context, by their digest.

    Raises:
        TooLargeError: There are more than `MOST_SCENARIOS`.
    """
    count = select(contexts.c.records).where(contexts.c.id == context_id)
    tuned = int(connection.execute(count).scalar() or 0)
    if tuned > MOST_SCENARIOS:
        raise TooLargeError(
            f"this context has {tuned} records, and a page loads at most {MOST_SCENARIOS}: see by  "
            "dejavu-cache quarantine writers  who wrote so many"
        )
    query = select(records.c.scenario, records.c.scenario_text)
    is_tuned = (records.c.context_id == context_id, records.c.text.is_not(None))
    rows = connection.execute(query.where(*is_tuned))
    return {row.scenario: row.scenario_text for row in rows}


def count_changed(connection: Connection, namespace: str, since: float) -> dict[int, int]:
    """Count the records that changed since a time, in seconds since 1970, by context id."""
    query = (
        select(summaries.c.context_id, func.count().label("counted"))
        .join(contexts, contexts.c.id == summaries.c.context_id)
        .where(contexts.c.namespace == namespace, summaries.c.changed_at >= since)
        .group_by(summaries.c.context_id)
    )
    return {row.context_id: row.counted for row in connection.execute(query)}


def list_namespaces(connection: Connection) -> list[tuple[str, int, int, float | None]]:
    """List all namespaces with the numbers of their contexts and records, and the last change."""
    query = (
        select(
            contexts.c.namespace,
            func.count(),
            func.sum(contexts.c.records),
            func.max(contexts.c.changed_at),
        )
        .group_by(contexts.c.namespace)
        .order_by(contexts.c.namespace)
    )
    return [(name, count, int(total), at) for name, count, total, at in connection.execute(query)]
