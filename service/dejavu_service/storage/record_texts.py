"""Records as the JSON texts that readers get, what is hidden of them, and what came when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, func, select

from .sql import byte_length, chunks
from .tables import contexts, parts, records

__all__ = [
    "Arrival",
    "StoredRecordSet",
    "count_bytes",
    "iter_until",
    "list_arrivals",
    "list_sizes",
    "load_hidden",
    "load_record_set",
    "load_scenario_texts",
    "load_sizes",
    "load_text",
    "load_texts",
]

_PAGE = 500


def load_hidden(
    connection: Connection, namespace: str, digest: str, scenarios: Sequence[str]
) -> dict[str, set[str]]:
    """Load the digests of the parts that no copy may keep, by their scenario's digest."""
    query = (
        select(parts.c.scenario, parts.c.digest)
        .join(contexts, contexts.c.id == parts.c.context_id)
        .where(
            contexts.c.namespace == namespace,
            contexts.c.digest == digest,
            parts.c.hidden_by.is_not(None),
        )
    )
    hidden: dict[str, set[str]] = defaultdict(set)
    for chunk in chunks(scenarios):
        for scenario, part in connection.execute(query.where(parts.c.scenario.in_(chunk))):
            hidden[scenario].add(part)
    return hidden


class Arrival(NamedTuple):
    """A measurement as JSON, who sent it when, and whether readers get it."""

    text: str
    stands: bool
    sender: str
    received_at: float


def list_arrivals(
    connection: Connection, namespace: str, context: str, scenario: str, limit: int
) -> list[Arrival]:
    """List the measurements of a scenario that nobody has hidden, the last to arrive first."""
    columns = (getattr(parts.c, name) for name in Arrival._fields)
    query = (
        select(*columns)
        .join(contexts, contexts.c.id == parts.c.context_id)
        .where(
            contexts.c.namespace == namespace,
            contexts.c.digest == context,
            parts.c.scenario == scenario,
            *_VISIBLE_MEASUREMENTS,
        )
        .order_by(parts.c.id.desc())
        .limit(limit)
    )
    return [Arrival(*row) for row in connection.execute(query)]


def iter_until(connection: Connection, context_id: int, moment: float) -> Iterator[tuple[str, str]]:
    """Iterate over the measurements that arrived until a time, in seconds since 1970.

    Yields:
        Pairs of the scenario's digest and the measurement as JSON, a page of which is in memory.
    """
    query = select(parts.c.scenario, parts.c.text).where(
        parts.c.context_id == context_id, parts.c.received_at <= moment, *_VISIBLE_MEASUREMENTS
    )
    rows = connection.execute(query, execution_options={"yield_per": _PAGE})
    yield from ((scenario, text) for scenario, text in rows)


_VISIBLE_MEASUREMENTS = (parts.c.kind == "measurement", parts.c.hidden_by.is_(None))


class StoredRecordSet(NamedTuple):
    """All records of a context at one revision, with their scenarios, as JSON texts."""

    context: str
    revision: str
    records: list[str]
    scenarios: list[str]


def _select_of(namespace: str, digest: str, *columns: ColumnElement[Any]) -> Select[Any]:
    """Return a query for columns of the records of a context and of itself."""
    return (
        select(*columns)
        .join_from(records, contexts, contexts.c.id == records.c.context_id)
        .where(
            contexts.c.namespace == namespace,
            contexts.c.digest == digest,
            records.c.text.is_not(None),
        )
    )


def count_bytes(
    connection: Connection,
    namespace: str,
    digest: str,
    column: Literal["text", "scenario_text"] = "text",
) -> int:
    """Count the bytes of the JSON texts of a context's records, or of their scenarios."""
    query = _select_of(namespace, digest, func.sum(byte_length(records.c[column])))
    return int(connection.execute(query).scalar() or 0)


def load_sizes(
    connection: Connection, namespace: str, digest: str, scenarios: Sequence[str]
) -> dict[str, int]:
    """Load the bytes of the JSON of the records that exist, by their scenario's digest."""
    query = _select_of(namespace, digest, records.c.scenario, byte_length(records.c.text))
    return {
        scenario: size
        for chunk in chunks(scenarios)
        for scenario, size in connection.execute(query.where(records.c.scenario.in_(chunk)))
    }


def list_sizes(connection: Connection, namespace: str, digest: str) -> list[tuple[str, int]]:
    """List the scenarios of a context, by their digest, with the bytes of their record's JSON.

    They are ordered by their text, in Python, because SQLite and Postgres collate it differently.
    """
    columns = (records.c.scenario_text, records.c.scenario, byte_length(records.c.text))
    query = _select_of(namespace, digest, *columns)
    rows = sorted(connection.execute(query), key=lambda row: str(row[0]))
    return [(scenario, size) for _, scenario, size in rows]


def load_record_set(connection: Connection, namespace: str, digest: str) -> StoredRecordSet | None:
    """Load all records of a context, ordered by their scenario's text; None if it has none."""
    columns = (contexts.c.text, contexts.c.revision, records.c.scenario_text, records.c.text)
    query = _select_of(namespace, digest, *columns)
    rows = connection.execute(query).all()
    if not rows:
        return None
    # Sorted in Python, because SQLite and Postgres collate text differently.
    ordered = sorted((row[2], row[3]) for row in rows)
    scenarios, texts = [scenario for scenario, _ in ordered], [text for _, text in ordered]
    return StoredRecordSet(rows[0][0], rows[0][1], texts, scenarios)


def load_scenario_texts(
    connection: Connection, namespace: str, digest: str
) -> tuple[str, list[str]] | None:
    """Load the revision and the sorted scenarios of a context; None if it has no records."""
    query = _select_of(namespace, digest, contexts.c.revision, records.c.scenario_text)
    rows = connection.execute(query).all()
    return (rows[0][0], sorted(text for _, text in rows)) if rows else None


def load_text(
    connection: Connection, namespace: str, digest: str, scenario: str
) -> tuple[str, str | None] | None:
    """Load a context's revision and the JSON text of one record; None if it has no records."""
    on = and_(records.c.context_id == contexts.c.id, records.c.scenario == scenario)
    query = select(contexts.c.revision, records.c.text).outerjoin_from(contexts, records, on)
    row = connection.execute(
        query.where(
            contexts.c.namespace == namespace, contexts.c.digest == digest, contexts.c.records > 0
        )
    ).one_or_none()
    return None if row is None else (row[0], row[1])


def load_texts(
    connection: Connection, namespace: str, digest: str, scenarios: Sequence[str]
) -> dict[str, str]:
    """Load the JSON texts of the records that exist, by their scenario's digest."""
    query = _select_of(namespace, digest, records.c.scenario, records.c.text)
    return {
        scenario: text
        for chunk in chunks(scenarios)
        for scenario, text in connection.execute(query.where(records.c.scenario.in_(chunk)))
    }
