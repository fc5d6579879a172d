"""Differences of two namespaces, counted by the database context by context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, and_, case, func, select

from .tables import contexts, summaries

__all__ = ["DifferenceCounts", "count_differences"]

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
