"""Records as the JSON texts that readers get, what is hidden of them, and what came when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, func, or_, select

from dejavu_cache.model.record import FORMAT

from ..errors import TooLargeError
from .sql import byte_length, chunks, divide
from .tables import contexts, parts, records

__all__ = [
    "Arrival",
    "iter_texts",
    "list_arrivals",
    "list_sizes",
    "load_hidden",
    "load_records",
    "load_scenarios",
    "load_text",
    "load_texts",
    "render",
]

MOST_BYTES = 256 * 2**20
"""Bytes of a context's records that are read at once, as clients read at most."""
PART_BYTES = 4 * 2**20
"""Bytes of some records that are read at once."""


def load_hidden(
    connection: Connection, namespace: str, digest: str, scenarios: Sequence[str]
) -> dict[str, set[str]]:
    """Load the digests of the parts that no copy may keep, by their scenario's digest.

    They are hidden, or were replaced by a promotion or a later pin: copies, which keep the latest
    part, would not follow otherwise.
    """
    is_replaced = or_(parts.c.replaced_by.is_not(None), parts.c.kind == "pin")
    query = (
        select(parts.c.scenario, parts.c.digest)
        .join(contexts, contexts.c.id == parts.c.context_id)
        .where(
            contexts.c.namespace == namespace,
            contexts.c.digest == digest,
            or_(parts.c.hidden_by.is_not(None), and_(~parts.c.stands, is_replaced)),
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


_VISIBLE_MEASUREMENTS = (parts.c.kind == "measurement", parts.c.hidden_by.is_(None))


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


def _check_size(
    connection: Connection, namespace: str, digest: str, column: Literal["text", "scenario_text"]
) -> None:
    query = _select_of(namespace, digest, func.sum(byte_length(records.c[column])))
    size = int(connection.execute(query).scalar() or 0)
    if size > MOST_BYTES:
        raise TooLargeError(
            f"the records of this context in {namespace!r} have {size} bytes, more than the "
            f"{MOST_BYTES} that are read at once: read them one by one, and see by  "
            "dejavu-cache quarantine list --writers  who wrote so much"
        )


def _load_sizes(
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


def load_records(connection: Connection, namespace: str, digest: str) -> tuple[str, str] | None:
    """Load the revision and all records of a context, as JSON; None if it has none.

    They are ordered by their scenario's text, in Python, because SQLite and Postgres collate it
    differently.

    Raises:
        TooLargeError: They have more than `MOST_BYTES`.
    """
    _check_size(connection, namespace, digest, "text")
    columns = (contexts.c.text, contexts.c.revision, records.c.scenario_text, records.c.text)
    rows = list(connection.execute(_select_of(namespace, digest, *columns)))
    if not rows:
        return None
    rows.sort(key=itemgetter(2))
    return rows[0][1], render(rows[0][0], [text for *_, text in rows])


def render(context: str, texts: Iterable[str]) -> str:
    """Render a record set as one line of JSON by joining the stored texts of its records."""
    return f'{{"context": {context}, "format": {FORMAT}, "records": [{", ".join(texts)}]}}'


def load_scenarios(connection: Connection, namespace: str, digest: str) -> tuple[str, str] | None:
    """Load the revision and the sorted scenarios of a context, as JSON; None if it has no records.

    Raises:
        TooLargeError: As for the records.
    """
    _check_size(connection, namespace, digest, "scenario_text")
    query = _select_of(namespace, digest, contexts.c.revision, records.c.scenario_text)
    rows = connection.execute(query).all()
    if not rows:
        return None
    return rows[0][0], f'{{"scenarios": [{", ".join(sorted(text for _, text in rows))}]}}'


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


def iter_texts(
    connection: Connection, namespace: str, digest: str, scenarios: Sequence[str]
) -> Iterator[dict[str, str]]:
    """Iterate over what `load_texts` returns, as much at a time as may be in memory."""
    sizes = _load_sizes(connection, namespace, digest, scenarios)
    for part in divide(sizes, sizes.__getitem__, len(sizes), PART_BYTES):
        yield load_texts(connection, namespace, digest, part)
