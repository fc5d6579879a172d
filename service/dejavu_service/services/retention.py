"""Dropping what nobody uses, except what a person pinned or promoted."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection

from ..storage import contexts, leases, misses, retention
from ..storage.database import Database

__all__ = ["Pruned", "prune"]

_DAY = 86400.0


class Pruned(NamedTuple):
    """How much went."""

    records: int
    contexts: int
    misses: int


def prune(database: Database, unused_days: float, misses_days: float) -> Pruned:
    """Drops the records of contexts unused for so many days, misses as old, and contexts left empty.

    Use is noted for a context as a whole and once a day, since readers take a context's records in one request.
    """
    with database.read() as connection:
        stale = retention.unused(connection, unused_days * _DAY)
    gone = 0
    for _, namespace, digest in stale:
        with database.write() as connection:
            gone += _prune_one(connection, namespace, digest, unused_days * _DAY)
    with database.write() as connection:
        old = misses.drop_old(connection, misses_days * _DAY)
        empty = retention.drop_empty(connection, misses_days * _DAY)
        leases.drop_expired(connection)
    return Pruned(gone, empty, old)


def _prune_one(connection: Connection, namespace: str, digest: str, seconds: float) -> int:
    context_id = contexts.lock_known(connection, namespace, digest)
    # Somebody may have come to use it since it was listed.
    if context_id is None or not retention.is_unused(connection, context_id, seconds):
        return 0
    gone = retention.drop_unpinned(connection, context_id)
    if gone:
        contexts.dropped(connection, context_id, gone)
    return gone
