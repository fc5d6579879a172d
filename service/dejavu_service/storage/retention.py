"""What may be dropped: records of contexts that nobody reads, except those that a person chose."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select

from .tables import contexts, epoch, misses, records

__all__ = ["drop_empty", "drop_unpinned", "is_unused", "unused"]


def unused(connection: Connection, seconds: float) -> list[tuple[int, str, str]]:
    """Contexts with records that were last read or written longer ago: id, namespace and digest."""
    query = select(contexts.c.id, contexts.c.namespace, contexts.c.digest).where(
        contexts.c.used_at < epoch() - seconds, contexts.c.records > 0
    )
    return [
        (identity, namespace, digest) for identity, namespace, digest in connection.execute(query)
    ]


def is_unused(connection: Connection, context_id: int, seconds: float) -> bool:
    """Whether a context is still unused."""
    query = select(contexts.c.id).where(
        contexts.c.id == context_id, contexts.c.used_at < epoch() - seconds
    )
    return connection.execute(query).first() is not None


def drop_unpinned(connection: Connection, context_id: int) -> int:
    """Drops a context's records that are neither pinned nor promoted."""
    chosen = records.c.pinned | records.c.promoted
    return connection.execute(
        delete(records).where(records.c.context_id == context_id, ~chosen)
    ).rowcount


def drop_empty(connection: Connection, seconds: float) -> int:
    """Drops contexts that have neither records nor misses and were not used for a time."""
    query = delete(contexts).where(
        contexts.c.records == 0,
        contexts.c.used_at < epoch() - seconds,
        ~select(misses.c.scenario).where(misses.c.context_id == contexts.c.id).exists(),
        ~select(records.c.scenario).where(records.c.context_id == contexts.c.id).exists(),
    )
    return connection.execute(query).rowcount
