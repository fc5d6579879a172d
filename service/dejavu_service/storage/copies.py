"""Copies of a context's records and measurements to another context, made by the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Text,
    and_,
    bindparam,
    case,
    delete,
    false,
    func,
    literal,
    null,
    select,
    true,
    update,
)

from dejavu_cache.model.record import Record

from . import summaries
from .records import WINNER, save
from .sql_functions import contains, epoch
from .tables import contexts, measurements, recalls, records, winner_arrival
from .upserts import insert

__all__ = [
    "Pair",
    "Route",
    "add_records",
    "count_records",
    "iter_shared",
    "list_senders",
    "replace_measurements",
    "replace_texts",
]

_PAGE = 500
"""Records that are merged at a time."""

_sent = measurements.alias("sent")
_source_records = records.alias("source_records")


class Route(NamedTuple):
    """The ids of the context to copy from and of the one to copy to, both locked."""

    source: int
    target: int


class Pair(NamedTuple):
    """The records of one scenario in both contexts, as JSON."""

    scenario: str
    current: str
    source: str


def list_senders(connection: Connection, namespace: str, digest: str) -> set[str]:
    """Return who sent a context's standing measurements and its winners; "" where nobody knows."""
    source = and_(contexts.c.namespace == namespace, contexts.c.digest == digest)
    measured = (
        select(measurements.c.sender)
        .join(contexts, contexts.c.id == measurements.c.context_id)
        .where(source, measurements.c.stands)
    )
    won = (
        select(func.coalesce(records.c.winner_sender, ""))
        .join(contexts, contexts.c.id == records.c.context_id)
        .where(source, contains(records.c.text, WINNER))
    )
    return set(connection.execute(measured.union(won)).scalars())


def iter_shared(connection: Connection, route: Route) -> Iterator[list[Pair]]:
    """Iterate, page by page, over the records of the scenarios that both contexts have."""
    query = (
        select(records.c.scenario, records.c.text, _source_records.c.text)
        .join(_source_records, _source_records.c.scenario == records.c.scenario)
        .where(records.c.context_id == route.target, _source_records.c.context_id == route.source)
        .order_by(records.c.scenario)
        .limit(_PAGE)
    )
    after = ""
    while rows := connection.execute(query.where(records.c.scenario > after)).all():
        yield [Pair(*row) for row in rows]
        after = rows[-1][0]


def replace_texts(
    connection: Connection,
    route: Route,
    texts: Mapping[str, str],
    winner_senders: Mapping[str, str],
) -> None:
    """Replace records of the target.

    Args:
        connection: A write transaction.
        route: The contexts.
        texts: The records as JSON, by the digest of their scenario.
        winner_senders: Who sent the winners that are new, by the digest of their scenario.
    """
    if not texts:
        return
    sender = bindparam("sender", type_=Text)
    statement = (
        update(records)
        .where(records.c.context_id == route.target, records.c.scenario == bindparam("digest"))
        .values(
            text=bindparam("replacement"),
            promoted=true(),
            updated_at=epoch(),
            winner_sender=func.coalesce(sender, records.c.winner_sender),
            winner_received_at=case((sender.is_not(None), epoch()), else_=winner_arrival),
        )
    )
    rows = [
        {"digest": scenario, "replacement": text, "sender": winner_senders.get(scenario)}
        for scenario, text in texts.items()
    ]
    connection.execute(statement, rows)
    summaries.save(connection, route.target, map(summaries.summarize_json, texts.values()))


def add_records(connection: Connection, route: Route, sender: str) -> int:
    """Add the records that the target does not have, without their pins; return their number."""
    present = (
        select(records.c.scenario)
        .where(
            records.c.context_id == route.target,
            records.c.scenario == _source_records.c.scenario,
        )
        .exists()
    )
    missing = and_(_source_records.c.context_id == route.source, ~present)
    has_pin = contains(_source_records.c.text, '"pin": {')
    pinned = connection.execute(select(_source_records.c.text).where(missing, has_pin)).scalars()
    unpinned = [
        Record.model_validate_json(text).model_copy(update={"pin": None}) for text in pinned
    ]
    senders = {record.scenario.digest: sender for record in unpinned if record.winner}
    save(connection, route.target, unpinned, promoted=True, winner_senders=senders)
    rows = select(
        literal(route.target),
        _source_records.c.scenario,
        _source_records.c.scenario_text,
        _source_records.c.text,
        false(),
        true(),
        epoch(),
        case((contains(_source_records.c.text, WINNER), sender)),
        epoch(),
        null(),
    ).where(missing)
    statement = insert(connection, records).from_select([*records.columns], rows)
    added = _count_inserted(connection, statement.on_conflict_do_nothing())
    summaries.copy_missing(connection, route.source, route.target)
    return len(unpinned) + added


def replace_measurements(connection: Connection, route: Route, sender: str) -> int:
    """Make the source's standing measurements stand in the target, and recall what they replace.

    The target must have the records of all measurements already.

    Returns:
        The number of measurements that changed in the target.
    """
    replacement = (
        select(_sent.c.id)
        .where(
            _sent.c.context_id == route.source,
            _sent.c.stands,
            _sent.c.scenario == measurements.c.scenario,
            _sent.c.config == measurements.c.config,
            _sent.c.digest != measurements.c.digest,
        )
        .exists()
    )
    replaced = and_(measurements.c.context_id == route.target, measurements.c.stands, replacement)
    _recall(connection, route, replaced)
    fallen = connection.execute(update(measurements).where(replaced).values(stands=false()))
    rows = select(
        literal(route.target),
        _sent.c.scenario,
        _sent.c.config,
        _sent.c.digest,
        _sent.c.text,
        true(),
        literal(sender),
        epoch(),
    ).where(_sent.c.context_id == route.source, _sent.c.stands)
    columns = [column for column in measurements.columns if column.name != "id"]
    statement = insert(connection, measurements).from_select(columns, rows)
    key = [measurements.c.context_id, measurements.c.scenario, measurements.c.digest]
    risen = _count_inserted(
        connection,
        statement.on_conflict_do_update(
            index_elements=key, set_={"stands": true()}, where=~measurements.c.stands
        ),
    )
    _lift(connection, route)
    return fallen.rowcount + risen


def _count_inserted(connection: Connection, statement: Any) -> int:
    """Insert rows and return their number, which SQLAlchemy keeps only on demand."""
    options = {"preserve_rowcount": True}
    return connection.execute(statement, execution_options=options).rowcount


def _recall(connection: Connection, route: Route, replaced: ColumnElement[bool]) -> None:
    rows = (
        select(
            contexts.c.namespace,
            contexts.c.digest,
            measurements.c.scenario,
            measurements.c.digest,
            epoch(),
        )
        .join(measurements, measurements.c.context_id == contexts.c.id)
        .where(contexts.c.id == route.target, replaced)
    )
    statement = insert(connection, recalls).from_select([*recalls.columns], rows)
    connection.execute(statement.on_conflict_do_nothing())


def _lift(connection: Connection, route: Route) -> None:
    """Forget the recalls of what stands in the target now."""
    standing = (
        select(measurements.c.id)
        .join(contexts, contexts.c.id == measurements.c.context_id)
        .where(
            contexts.c.id == route.target,
            measurements.c.stands,
            contexts.c.namespace == recalls.c.namespace,
            contexts.c.digest == recalls.c.context,
            measurements.c.scenario == recalls.c.scenario,
            measurements.c.digest == recalls.c.part,
        )
    )
    connection.execute(delete(recalls).where(standing.exists()))


def count_records(connection: Connection, context_id: int) -> int:
    """Count the records of a context."""
    query = select(func.count()).select_from(records).where(records.c.context_id == context_id)
    return connection.execute(query).scalar_one()
