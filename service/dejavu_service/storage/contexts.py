"""Contexts, the revision that changes with their records, and those that nobody uses.

A transaction that locks several contexts locks them by namespace and digest, in ascending order, so
that no two wait for each other.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, delete, func, select, update

from dejavu_cache.model.scenario import Context

from . import summaries
from .sql import chunks, epoch, insert
from .tables import contexts, misses, records
from .tables import summaries as summary_table

__all__ = [
    "ContextKey",
    "Revision",
    "add_fetches",
    "bump_revision",
    "count_empty",
    "count_records",
    "count_records_per_device",
    "date_back",
    "delete_empty",
    "ensure",
    "find",
    "is_unused",
    "iter_digests",
    "kernel_of",
    "list_contexts",
    "list_unused",
    "load_revisions",
    "load_text",
    "lock",
    "lock_existing",
    "touch",
]

ContextKey = tuple[str, str]
"""A namespace and the digest of a context."""

_DAY = 86400.0


class Revision(NamedTuple):
    """The current revision of a context, and the number of its records."""

    id: int
    revision: str
    records: int


def ensure(
    connection: Connection, namespace: str, wanted: Iterable[Context], *, hold: bool = False
) -> dict[str, int]:
    """Insert the contexts that do not exist yet, without records.

    Args:
        connection: A write transaction.
        namespace: The namespace of the contexts.
        wanted: The contexts.
        hold: Whether to lock the rows against deletion until the transaction ends.

    Returns:
        The ids of all `wanted` contexts by their digest.
    """
    by_digest = {context.digest: context for context in wanted}
    ids = _ids(connection, namespace, by_digest, hold)
    rows = [_row(namespace, by_digest[digest]) for digest in sorted(by_digest.keys() - ids.keys())]
    if not rows:
        return ids
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
        query = query.order_by(contexts.c.digest).with_for_update(read=True, key_share=True)
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
    """Lock a context, inserted if new, against other writers until the transaction ends.

    Returns:
        The context's id.
    """
    while True:
        # A concurrent prune may delete the row between the two statements.
        ensure(connection, namespace, [context])
        context_id = lock_existing(connection, namespace, context.digest)
        if context_id is not None:
            return context_id


def find(connection: Connection, namespace: str, digest: str) -> int | None:
    """Return the id of a context, or None if it does not exist."""
    query = select(contexts.c.id).where(
        contexts.c.namespace == namespace, contexts.c.digest == digest
    )
    return connection.execute(query).scalar()


def lock_existing(connection: Connection, namespace: str, digest: str) -> int | None:
    """Lock a context like `lock`, but return None if it does not exist."""
    query = select(contexts.c.id).where(
        contexts.c.namespace == namespace, contexts.c.digest == digest
    )
    return connection.execute(query.with_for_update()).scalar()


def load_revisions(
    connection: Connection, namespace: str, digests: Sequence[str]
) -> dict[str, str]:
    """Load the current revisions of those contexts that exist, by their digest."""
    revisions: dict[str, str] = {}
    query = select(contexts.c.digest, contexts.c.revision).where(contexts.c.namespace == namespace)
    for chunk in chunks(digests):
        for digest, revision in connection.execute(query.where(contexts.c.digest.in_(chunk))):
            revisions[digest] = revision
    return revisions


def load_text(connection: Connection, namespace: str, digest: str) -> str | None:
    """Load the JSON text of a context, or None."""
    query = select(contexts.c.text).where(
        contexts.c.namespace == namespace, contexts.c.digest == digest
    )
    return connection.execute(query).scalar()


def kernel_of(connection: Connection, context_id: int) -> str:
    """Return the full name of a context's kernel."""
    query = select(contexts.c.kernel).where(contexts.c.id == context_id)
    return str(connection.execute(query).scalar_one())


def bump_revision(
    connection: Connection,
    context_id: int,
    *,
    added: int = 0,
    used: bool = True,
    by: str | None = None,
) -> None:
    """Give a context a new random revision after its records changed.

    Args:
        connection: The transaction that changed the records.
        context_id: The context.
        added: The number of records added; negative if records were deleted.
        used: Whether the change counts as use of the context, which protects it from pruning.
        by: Who made the change; None if nobody did, as for a deletion by age.
    """
    values: dict[str, Any] = {
        "revision": secrets.token_hex(8),
        "records": contexts.c.records + added,
    }
    if used:
        values["used_at"] = epoch()
    if by is not None:
        values |= {"changed_at": epoch(), "changed_by": by}
    connection.execute(update(contexts).where(contexts.c.id == context_id).values(values))


def date_back(connection: Connection, namespace: str, context: Context, moment: float) -> None:
    """Date a context by its newest measurement, where its records were copied from elsewhere."""
    values = {"created_at": moment, "used_at": moment, "changed_at": moment, "changed_by": None}
    place = (contexts.c.namespace == namespace) & (contexts.c.digest == context.digest)
    connection.execute(update(contexts).where(place).values(values))
    own = summary_table.c.context_id.in_(select(contexts.c.id).where(place))
    connection.execute(update(summary_table).where(own).values(changed_at=moment))


def list_contexts(
    connection: Connection, namespace: str, kernel: str | None, after: str | None, limit: int
) -> list[tuple[str, str]]:
    """List digests and texts of the contexts that have records, ordered by digest."""
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


def iter_digests(
    connection: Connection, namespace: str, kernel: str | None, page_size: int = 500
) -> Iterator[str]:
    """Iterate over the digests of all contexts that have records, reading page by page."""
    after: str | None = None
    while page := list_contexts(connection, namespace, kernel, after, page_size):
        yield from (digest for digest, _ in page)
        after = page[-1][0]


def touch(connection: Connection, keys: Iterable[ContextKey]) -> None:
    """Record that contexts were read, at most once a day for each."""
    digests: dict[str, list[str]] = {}
    for namespace, digest in keys:
        digests.setdefault(namespace, []).append(digest)
    for namespace, named in sorted(digests.items()):
        for chunk in chunks(sorted(named)):
            _touch(connection, namespace, chunk)


def _touch(connection: Connection, namespace: str, digests: Sequence[str]) -> None:
    stale = and_(
        contexts.c.namespace == namespace,
        contexts.c.digest.in_(digests),
        contexts.c.used_at < epoch() - _DAY,
    )
    # An UPDATE alone would lock in whatever order it finds the rows.
    query = select(contexts.c.id).where(stale).order_by(contexts.c.digest)
    ids = connection.execute(query.with_for_update(key_share=True)).scalars().all()
    connection.execute(update(contexts).where(contexts.c.id.in_(ids)).values(used_at=epoch()))


def add_fetches(connection: Connection, counts: Mapping[int, int]) -> None:
    """Add to the number of fetches of contexts, which are keyed by their id."""
    query = select(contexts.c.namespace, contexts.c.digest, contexts.c.id)
    rows = [
        tuple(row)
        for chunk in chunks(list(counts))
        for row in connection.execute(query.where(contexts.c.id.in_(chunk)))
    ]
    reused: Counter[str] = Counter()
    for namespace, _, context_id in sorted(rows):
        reused[namespace] += counts[context_id]
        connection.execute(
            update(contexts)
            .where(contexts.c.id == context_id)
            .values(fetches=contexts.c.fetches + counts[context_id])
        )
    for namespace, number in reused.items():
        summaries.add_to_day(connection, namespace, reused=number)


def count_empty(connection: Connection) -> int:
    """Count the contexts of all namespaces that never had a record."""
    empty = ~select(records.c.scenario).where(records.c.context_id == contexts.c.id).exists()
    query = select(func.count()).select_from(contexts).where(empty)
    return connection.execute(query).scalar_one()


def count_records(connection: Connection) -> int:
    """Count the records of all namespaces."""
    return int(connection.execute(select(func.sum(contexts.c.records))).scalar() or 0)


def count_records_per_device(connection: Connection, limit: int) -> list[tuple[str, str, str, int]]:
    """Count the records of each namespace, kernel and device, of those that have the most."""
    total = func.sum(contexts.c.records)
    names = (contexts.c.namespace, contexts.c.kernel, contexts.c.device)
    query = (
        select(*names, total)
        .group_by(*names)
        .having(total > 0)
        .order_by(total.desc(), *names)
        .limit(limit)
    )
    return sorted(
        (namespace, kernel, device, int(count))
        for namespace, kernel, device, count in connection.execute(query)
    )


def list_unused(connection: Connection, seconds: float) -> list[ContextKey]:
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


def delete_empty(connection: Connection, seconds: float) -> int:
    """Delete contexts of which there is nothing and that were last used `seconds` ago or earlier.

    Contexts that others have locked are used just now, and are skipped. Those with hidden parts
    stay, which keep them from coming back.

    Returns:
        The number of contexts deleted.
    """
    empty = select(contexts.c.id).where(
        contexts.c.used_at < epoch() - seconds,
        ~select(misses.c.scenario).where(misses.c.context_id == contexts.c.id).exists(),
        ~select(records.c.scenario).where(records.c.context_id == contexts.c.id).exists(),
    )
    statement = delete(contexts).where(contexts.c.id.in_(empty.with_for_update(skip_locked=True)))
    return connection.execute(statement).rowcount
