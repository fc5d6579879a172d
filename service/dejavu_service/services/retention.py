"""Deletion by age: of unused records, except those that a person pinned or promoted, and of rows.

What others have locked is used just now, and is skipped.
"""

from typing import NamedTuple

from sqlalchemy import Connection, delete, or_, select, tuple_

from ..storage import records as stored_records
from ..storage.database import Database
from ..storage.sql import day_of, epoch
from ..storage.tables import contexts, days, leases, misses, records, tokens

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
    a context in one request. An empty context goes as long after its last use as a miss.
    """
    is_unused = (contexts.c.used_at < epoch() - unused_days * _DAY, contexts.c.records > 0)
    with database.read() as connection:
        stale = connection.execute(select(contexts.c.id).where(*is_unused)).scalars().all()
    deleted = 0
    for context_id in stale:
        with database.write() as connection:
            # The context may have been used since it was listed.
            query = select(contexts.c.id).where(contexts.c.id == context_id, *is_unused)
            if connection.execute(query.with_for_update()).first() is not None:
                deleted += stored_records.delete_unpinned(connection, context_id)
    # Who reports misses locks contexts first: a transaction that deletes misses locks no context.
    with database.write() as connection:
        old = _drop_old_misses(connection, misses_days * _DAY)
    with database.write() as connection:
        empty = _drop_empty_contexts(connection, misses_days * _DAY)
    with database.write() as connection:
        connection.execute(delete(leases).where(leases.c.expires_at <= epoch()))
        _drop_expired_tokens(connection)
        is_old = days.c.day < day_of(epoch() - _COUNTS_DAYS * _DAY)
        connection.execute(delete(days).where(is_old))
    return Pruned(deleted, empty, old)


def _drop_old_misses(connection: Connection, seconds: float) -> int:
    key = (misses.c.context_id, misses.c.scenario)
    old = select(*key).where(misses.c.last_seen < epoch() - seconds)
    statement = delete(misses).where(tuple_(*key).in_(old.with_for_update(skip_locked=True)))
    return connection.execute(statement).rowcount


def _drop_empty_contexts(connection: Connection, seconds: float) -> int:
    """Delete contexts of which there is nothing; hidden parts of one keep them from coming back."""
    empty = select(contexts.c.id).where(
        contexts.c.used_at < epoch() - seconds,
        ~select(misses.c.scenario).where(misses.c.context_id == contexts.c.id).exists(),
        ~select(records.c.scenario).where(records.c.context_id == contexts.c.id).exists(),
    )
    statement = delete(contexts).where(contexts.c.id.in_(empty.with_for_update(skip_locked=True)))
    return connection.execute(statement).rowcount


def _drop_expired_tokens(connection: Connection) -> None:
    """Delete tokens that expired long ago, if others remain.

    A server whose last token is gone would answer without one.
    """
    limit = epoch() - TOKENS_DAYS * _DAY
    others = tokens.alias()
    remaining = select(others.c.id).where(
        or_(others.c.expires_at.is_(None), others.c.expires_at >= limit)
    )
    connection.execute(delete(tokens).where(tokens.c.expires_at < limit, remaining.exists()))
