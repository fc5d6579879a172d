"""Deletion of unused records, except those that a person pinned or promoted."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection

from ..storage import contexts, leases, misses, records, summaries, tokens
from ..storage.database import Database

__all__ = ["TOKENS_DAYS", "Pruned", "prune"]

_DAY = 86400.0
TOKENS_DAYS = 30.0
"""Days for which expired tokens are still listed."""
_COUNTS_DAYS = 400.0
"""Days for which is kept what programs missed and reused on them."""


class Pruned(NamedTuple):
    """Numbers of deleted rows."""

    records: int
    contexts: int
    misses: int


def prune(database: Database, unused_days: float, misses_days: float) -> Pruned:
    """Delete records of unused contexts, old misses, and contexts that are empty after that.

    Use is recorded for a context as a whole, at most once a day, since readers fetch all records of
    a context in one request.

    Args:
        database: The server's database.
        unused_days: Days since a context was last read or written.
        misses_days: Days since a scenario was last missed, or an empty context last used.
    """
    with database.read() as connection:
        stale = contexts.list_unused(connection, unused_days * _DAY)
    deleted = 0
    for namespace, digest in stale:
        with database.write() as connection:
            deleted += _prune_context(connection, namespace, digest, unused_days * _DAY)
    # Who reports misses locks contexts first: a transaction that deletes misses locks no context.
    with database.write() as connection:
        old = misses.drop_old(connection, misses_days * _DAY)
    with database.write() as connection:
        empty = contexts.delete_empty(connection, misses_days * _DAY)
    with database.write() as connection:
        leases.drop_expired(connection)
        tokens.drop_expired(connection, TOKENS_DAYS * _DAY)
        summaries.drop_old_days(connection, _COUNTS_DAYS * _DAY)
    return Pruned(deleted, empty, old)


def _prune_context(connection: Connection, namespace: str, digest: str, seconds: float) -> int:
    context_id = contexts.lock_existing(connection, namespace, digest)
    # The context may have been used since it was listed.
    if context_id is None or not contexts.is_unused(connection, context_id, seconds):
        return 0
    deleted = records.delete_unpinned(connection, context_id)
    if deleted:
        contexts.bump_revision(connection, context_id, added=-deleted, used=False)
    return deleted
