"""Contexts, the revision that changes with their records, and those that nobody uses.

A transaction that locks several contexts locks them by namespace and digest, in ascending order, so
that no two wait for each other.
"""

import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, func, select, update

from dejavu_cache.model.scenario import Context

from . import summaries
from .sql import chunks, epoch, insert, to_datetime
from .tables import contexts, parts, records

ContextKey = tuple[str, str]
"""A namespace and the digest of a context."""

_DAY = 86400.0


class Revision(NamedTuple):
    """The current revision of a context, and the number of its records."""

    id: int
    revision: str
    records: int


class LockedContext(NamedTuple):
    """A context that a transaction has locked against other writers until it ends.

    Attributes:
        present: The time at which it was asked for, by the database's clock.
    """

    id: int
    namespace: str
    digest: str
    kernel: str
    present: datetime


def ensure(
    connection: Connection, namespace: str, wanted: Collection[Context], *, hold: bool = False
) -> dict[str, int]:
    """Insert the contexts that do not exist yet, without records; return the ids of all by digest.

    With `hold`, their rows are locked against deletion until the transaction ends.
    """
    by_digest = dict(zip(map(attrgetter("digest"), wanted), wanted, strict=True))
    query = select(contexts.c.digest, contexts.c.id).where(
        contexts.c.namespace == namespace, contexts.c.digest.in_(list(by_digest))
    )
    if hold:
        query = query.order_by(contexts.c.digest).with_for_update(read=True, key_share=True)
    ids = dict(connection.execute(query).all())
    rows: list[dict[str, Any]] = []
    for digest in sorted(by_digest.keys() - ids.keys()):
        context = by_digest[digest]
        row = {"namespace": namespace, "digest": digest, "kernel": context.kernel.name}
        row |= {"device": context.environment.device.name, "text": context.text}
        rows.append(row | {"revision": secrets.token_hex(8), "records": 0})
    if not rows:
        return ids
    statement = insert(connection, contexts).values(created_at=epoch(), used_at=epoch())
    connection.execute(statement.on_conflict_do_nothing(), rows)
    return dict(connection.execute(query).all())


def lock(
    connection: Connection, namespace: str, digest: str, new: Context | None = None
) -> LockedContext | None:
    """Lock a context against other writers until the transaction ends.

    Where there is none, `new` is inserted; without it, the answer is None.
    """
    columns = (contexts.c.id, contexts.c.kernel, epoch())
    query = select(*columns).where(contexts.c.namespace == namespace, contexts.c.digest == digest)
    while (row := connection.execute(query.with_for_update()).one_or_none()) is None:
        if new is None:
            return None
        ensure(connection, namespace, [new])
    return LockedContext(row[0], namespace, digest, row[1], to_datetime(row[2]))


def bump_revision(
    connection: Connection, context_id: int, *, added: int = 0, by: str | None = None
) -> None:
    """Give a context a new random revision after its records changed.

    Args:
        connection: The transaction that changed the records.
        context_id: The context.
        added: The number of records added; negative if records were deleted.
        by: Who made the change, which counts as use of the context and protects it from pruning;
            None if nobody did, as for a deletion by age.
    """
    values: dict[str, Any] = {
        "revision": secrets.token_hex(8),
        "records": contexts.c.records + added,
    }
    if by is not None:
        values |= {"used_at": epoch(), "changed_at": epoch(), "changed_by": by}
    connection.execute(update(contexts).where(contexts.c.id == context_id).values(values))


def date_back(connection: Connection, namespace: str, context: Context, moment: float) -> None:
    """Date a context by its newest measurement, where its records were copied from elsewhere."""
    values = {"created_at": moment, "used_at": moment, "changed_at": moment, "changed_by": None}
    is_context = (contexts.c.namespace == namespace) & (contexts.c.digest == context.digest)
    connection.execute(update(contexts).where(is_context).values(values))
    ids = select(contexts.c.id).where(is_context)
    for column in (records.c.changed_at, parts.c.received_at):
        own = update(column.table).where(column.table.c.context_id.in_(ids))
        connection.execute(own.values({column: moment}))


def select_with_records(
    namespace: str, kernel: str | None, *columns: ColumnElement[Any]
) -> Select[Any]:
    """Return a query for the contexts that have records, of one kernel or all, by their digest."""
    query = select(*columns).where(contexts.c.namespace == namespace, contexts.c.records > 0)
    if kernel is not None:
        query = query.where(contexts.c.kernel == kernel)
    return query.order_by(contexts.c.digest)


def touch(connection: Connection, keys: Iterable[ContextKey]) -> None:
    """Record that contexts were read, at most once a day for each."""
    for namespace, group in groupby(sorted(keys), itemgetter(0)):
        for chunk in chunks([digest for _, digest in group]):
            stale = and_(
                contexts.c.namespace == namespace,
                contexts.c.digest.in_(chunk),
                contexts.c.used_at < epoch() - _DAY,
            )
            # An UPDATE alone would lock in whatever order it finds the rows.
            query = select(contexts.c.id).where(stale).order_by(contexts.c.digest)
            ids = connection.execute(query.with_for_update(key_share=True)).scalars().all()
            is_stale = contexts.c.id.in_(ids)
            connection.execute(update(contexts).where(is_stale).values(used_at=epoch()))


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
