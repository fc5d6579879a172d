"""Differences of two namespaces, context by context, counted by the database."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, and_, case, func, select

from .tables import contexts, summaries

__all__ = ["ContextDifference", "compare_namespaces"]

_ours, _theirs = summaries.alias("ours"), summaries.alias("theirs")
_there = contexts.alias("there")


class ContextDifference(NamedTuple):
    """A context of a namespace, compared with the same one of another namespace.

    Attributes:
        digest: The digest of the context.
        text: The context as JSON.
        records: The number of its records in the first namespace.
        absent: How many of them the other namespace lacks.
        differing: How many of them have another config there.
        pinned: How many of those that differ are pinned there.
        theirs: The number of its records in the other namespace.
    """

    digest: str
    text: str
    records: int
    absent: int
    differing: int
    pinned: int
    theirs: int


def compare_namespaces(
    connection: Connection, namespace: str, other: str, kernel: str | None = None
) -> list[ContextDifference]:
    """Compare what readers get in two namespaces, for the contexts with records in the first."""
    differs = and_(_theirs.c.scenario.is_not(None), _theirs.c.chosen != _ours.c.chosen)
    # Only contexts that both have are counted record by record.
    shared = (
        select(
            contexts.c.id,
            func.sum(case((_theirs.c.scenario.is_(None), 1), else_=0)).label("absent"),
            func.sum(case((differs, 1), else_=0)).label("differing"),
            func.sum(case((and_(differs, _theirs.c.pinned), 1), else_=0)).label("pinned"),
        )
        .join(_there, and_(_there.c.namespace == other, _there.c.digest == contexts.c.digest))
        .join(_ours, _ours.c.context_id == contexts.c.id)
        .outerjoin(
            _theirs,
            and_(_theirs.c.context_id == _there.c.id, _theirs.c.scenario == _ours.c.scenario),
        )
        .where(contexts.c.namespace == namespace)
        .group_by(contexts.c.id)
        .subquery()
    )
    query = (
        select(
            contexts.c.digest,
            contexts.c.text,
            contexts.c.records,
            func.coalesce(shared.c.absent, contexts.c.records),
            func.coalesce(shared.c.differing, 0),
            func.coalesce(shared.c.pinned, 0),
            func.coalesce(_there.c.records, 0),
        )
        .outerjoin(shared, shared.c.id == contexts.c.id)
        .outerjoin(_there, and_(_there.c.namespace == other, _there.c.digest == contexts.c.digest))
        .where(contexts.c.namespace == namespace, contexts.c.records > 0)
        .order_by(contexts.c.kernel, contexts.c.digest)
    )
    if kernel is not None:
        query = query.where(contexts.c.kernel == kernel)
    return [ContextDifference(*row) for row in connection.execute(query)]
