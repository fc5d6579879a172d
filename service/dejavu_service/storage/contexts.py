"""Contexts: whose records there are, and the revision that changes with them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sqlalchemy import Connection, func, select, update

from dejavu_cache.model.scenario import Context

from .tables import contexts, epoch
from .upserts import insert

__all__ = [
    "Key",
    "Revision",
    "changed",
    "counted",
    "digests",
    "dropped",
    "ensure",
    "listed",
    "lock",
    "lock_known",
    "per_device",
    "touch",
]

Key = tuple[str, str]
"""A namespace and a context's digest."""

_DAY = 86400.0


class Revision(NamedTuple):
    """What is known of a context without reading its records."""

    id: int
    revision: str
    records: int


def ensure(
    connection: Connection, namespace: str, wanted: Iterable[Context], *, hold: bool = False
) -> dict[str, int]:
    """The ids of contexts by digest; those that are not there yet are made, without records.

    Args:
        hold: nobody can drop them until the transaction ends.
    """
    by_digest = {context.digest: context for context in wanted}
    known = _ids(connection, namespace, by_digest, hold)
    rows = [
        _row(namespace, by_digest[digest]) for digest in sorted(by_digest.keys() - known.keys())
    ]
    if not rows:
        return known
    statement = (
        insert(connection, contexts)
        .values(created_at=epoch(), used_at=epoch())
        .on_conflict_do_nothing()
    )
    connection.execute(statement, rows)
    return _ids(connection, namespace, by_digest, hold)


def _ids(
    connection: Connection, namespace: str, wanted: Iterable[str], hold: bool
) -> dict[str, int]:
    query = select(contexts.c.digest, contexts.c.id).where(
        contexts.c.namespace == namespace, contexts.c.digest.in_(list(wanted))
    )
    if hold:
        query = query.with_for_update(read=True, key_share=True)
    return {row.digest: row.id for row in connection.execute(query)}


def _row(namespace: str, context: Context) -> dict[str, object]:
    return {
        "namespace": namespace,
        "digest": context.digest,
        "kernel": context.kernel.name,
        "device": context.environment.device.name,
        "text": context.text,
        "revision": secrets.token_hex(8),
        "records": 0,
    }


def lock(connection: Connection, namespace: str, context: Context) -> int:
    """The id of a context, made if it is new, for whose records no other transaction can write until this one ends."""
    while True:
        # A prune may drop the row between the two statements.
        ensure(connection, namespace, [context])
        found = lock_known(connection, namespace, context.digest)
        if found is not None:
            return found


def lock_known(connection: Connection, namespace: str, digest: str) -> int | None:
    """As `lock`, for a context that is there, or None."""
    query = select(contexts.c.id).where(
        contexts.c.namespace == namespace, contexts.c.digest == digest
    )
    return connection.execute(query.with_for_update()).scalar()


def changed(connection: Connection, context_id: int, added: int) -> None:
    """Draws a new revision, and counts the records that came (or, below 0, went)."""
    connection.execute(
        update(contexts)
        .where(contexts.c.id == context_id)
        .values(revision=secrets.token_hex(8), records=contexts.c.records + added, used_at=epoch())
    )


def dropped(connection: Connection, context_id: int, gone: int) -> None:
    """As `changed`, for records that went because nobody used them: that is no use of the others."""
    connection.execute(
        update(contexts)
        .where(contexts.c.id == context_id)
        .values(revision=secrets.token_hex(8), records=contexts.c.records - gone)
    )


def listed(
    connection: Connection, namespace: str, kernel: str | None, after: str | None, limit: int
) -> list[tuple[str, str]]:
    """Digests and texts of the contexts that have records, in the order of their digests."""
    query = select(contexts.c.digest, contexts.c.text).where(
        contexts.c.namespace == namespace, contexts.c.records > 0
    )
    if kernel is not None:
        query = query.where(contexts.c.kernel == kernel)
    if after is not None:
        query = query.where(contexts.c.digest > after)
    return [
        (digest, text)
        for digest, text in connection.execute(query.order_by(contexts.c.digest).limit(limit))
    ]


def counted(connection: Connection, namespace: str, most: int) -> list[tuple[str, str, int]]:
    """Digest, text and number of records of the contexts that have any."""
    query = (
        select(contexts.c.digest, contexts.c.text, contexts.c.records)
        .where(contexts.c.namespace == namespace, contexts.c.records > 0)
        .order_by(contexts.c.kernel, contexts.c.digest)
        .limit(most)
    )
    return [(digest, text, count) for digest, text, count in connection.execute(query)]


def digests(
    connection: Connection, namespace: str, kernel: str | None, page: int = 500
) -> Iterator[str]:
    """The digests of all contexts that have records, read a page at a time."""
    after: str | None = None
    while found := listed(connection, namespace, kernel, after, page):
        yield from (digest for digest, _ in found)
        after = found[-1][0]


def touch(connection: Connection, ids: Iterable[int]) -> None:
    """Notes that contexts were read, at most once a day each."""
    stale = contexts.c.used_at < epoch() - _DAY
    connection.execute(
        update(contexts).where(contexts.c.id.in_(sorted(ids)), stale).values(used_at=epoch())
    )


def per_device(connection: Connection) -> list[tuple[str, str, str, int]]:
    """Namespace, kernel and device with the number of their records: what `/metrics` shows."""
    counted = func.sum(contexts.c.records)
    query = (
        select(contexts.c.namespace, contexts.c.kernel, contexts.c.device, counted)
        .group_by(contexts.c.namespace, contexts.c.kernel, contexts.c.device)
        .having(counted > 0)
        .order_by(contexts.c.namespace, contexts.c.kernel, contexts.c.device)
    )
    return [
        (namespace, kernel, device, int(count))
        for namespace, kernel, device, count in connection.execute(query)
    ]
