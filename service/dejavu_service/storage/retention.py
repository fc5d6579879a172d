"""Unused records and contexts, and their deletion."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select

from .sql_functions import epoch
from .tables import contexts, misses, quarantined, records

__all__ = ["delete_empty", "delete_unpinned", "is_unused", "list_unused"]


def list_unused(connection: Connection, seconds: float) -> list[tuple[str, str]]:
    """List the contexts with records that were last read or written more than `seconds` ago."""
    query = select(contexts.c.namespace, contexts.c.digest).where(
        contexts.c.used_at < epoch() - seconds, contexts.c.records > 0
    )
    return [(namespace, digest) for namespace, digest in connection.execute(query)]


def is_unused(connection: Connection, context_id: int, seconds: float) -> bool:
    """Return whether a context was last read or written more than `seconds` ago."""
    query = select(contexts.c.id).where(
        contexts.c.id == context_id, contexts.c.used_at < epoch() - seconds
    )
    return connection.execute(query).first() is not None


def delete_unpinned(connection: Connection, context_id: int) -> int:
    """Delete a context's records that are neither pinned nor promoted; return their number."""
    chosen = records.c.pinned | records.c.promoted
    return connection.execute(
        delete(records).where(records.c.context_id == context_id, ~chosen)
    ).rowcount


def delete_empty(connection: Connection, seconds: float) -> int:
    """Delete contexts of which there is nothing and that were last used `seconds` ago or earlier.

    Contexts that others have locked are used just now, and are skipped.

    Returns:
        The number of contexts deleted.
    """
    empty = select(contexts.c.id).where(
        contexts.c.records == 0,
        contexts.c.used_at < epoch() - seconds,
        ~select(misses.c.scenario).where(misses.c.context_id == contexts.c.id).exists(),
        ~select(quarantined.c.id).where(quarantined.c.context_id == contexts.c.id).exists(),
        ~select(records.c.scenario).where(records.c.context_id == contexts.c.id).exists(),
    )
    statement = delete(contexts).where(contexts.c.id.in_(empty.with_for_update(skip_locked=True)))
    return connection.execute(statement).rowcount
