"""Records as the JSON texts that readers get, what is hidden of them, and what came when."""

from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, or_, select

from dejavu_cache.model.record import FORMAT

from ..errors import TooLargeError
from .sql import byte_length, chunks
from .tables import contexts, parts, records

MOST_BYTES = 256 * 2**20
"""Bytes of a context's records that are read at once, as clients read at most."""


def _is_context(namespace: str, digest: str) -> ColumnElement[bool]:
    """Return the condition that a row of `contexts` is that of a namespace and a digest."""
    return and_(contexts.c.namespace == namespace, contexts.c.digest == digest)


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
            _is_context(namespace, digest),
            or_(parts.c.hidden_by.is_not(None), and_(~parts.c.stands, is_replaced)),
        )
    )
    hidden: dict[str, set[str]] = defaultdict(set)
    for chunk in chunks(scenarios):
        for scenario, part in connection.execute(query.where(parts.c.scenario.in_(chunk))):
            hidden[scenario].add(part)
    return hidden


def list_arrivals(
    connection: Connection, namespace: str, context: str, scenario: str, limit: int
) -> Sequence[Row[Any, Any, Any, Any]]:
    """List the measurements of a scenario that nobody has hidden, the last to arrive first.

    Each has its JSON, who sent it when, and whether readers get it.
    """
    query = (
        select(parts.c.text, parts.c.stands, parts.c.sender, parts.c.received_at)
        .join(contexts, contexts.c.id == parts.c.context_id)
        .where(
            _is_context(namespace, context),
            parts.c.scenario == scenario,
            parts.c.kind == "measurement",
            parts.c.hidden_by.is_(None),
        )
        .order_by(parts.c.id.desc())
        .limit(limit)
    )
    return connection.execute(query).all()


def _select_of(namespace: str, digest: str, *columns: ColumnElement[Any]) -> Select[Any]:
    """Return a query for columns of the records of a context and of itself."""
    return (
        select(*columns)
        .join_from(records, contexts, contexts.c.id == records.c.context_id)
        .where(_is_context(namespace, digest), records.c.text.is_not(None))
    )


def _load(
    connection: Connection,
    namespace: str,
    digest: str,
    scenarios: Sequence[str] | None,
    *columns: ColumnElement[Any],
) -> list[Row[Any]]:
    """Load columns of records and their context, of all scenarios or of some.

    They are ordered by their scenario's text, in Python, because SQLite and Postgres collate it
    differently.
    """
    query = _select_of(namespace, digest, records.c.scenario_text, *columns)
    queries = [query]
    if scenarios is not None:
        queries = [query.where(records.c.scenario.in_(chunk)) for chunk in chunks(scenarios)]
    rows = [row for part in queries for row in connection.execute(part)]
    return sorted(rows, key=itemgetter(0))


def load_sizes(
    connection: Connection, namespace: str, digest: str, scenarios: Sequence[str] | None = None
) -> dict[str, int]:
    """Load the bytes of the JSON of the records that exist, by their scenario's digest."""
    columns = (records.c.scenario, byte_length(records.c.text).label("size"))
    rows = _load(connection, namespace, digest, scenarios, *columns)
    return {row.scenario: row.size for row in rows}


def load_texts(
    connection: Connection, namespace: str, digest: str, scenarios: Sequence[str]
) -> dict[str, str]:
    """Load the JSON texts of the records that exist, by their scenario's digest."""
    rows = _load(connection, namespace, digest, scenarios, records.c.scenario, records.c.text)
    return {row.scenario: row.text for row in rows}


def load_records(
    connection: Connection, namespace: str, digest: str, scenarios: Sequence[str] | None = None
) -> tuple[str, str] | None:
    """Load the revision and records of a context, all or some, as JSON; None if it has none.

    Raises:
        TooLargeError: All of them are asked for, and have more than `MOST_BYTES`.
    """
    if scenarios is None:
        _check_size(connection, namespace, digest, "text")
    # Asked for once: it may have 64 KiB, and would be repeated in each row.
    query = select(contexts.c.text).where(_is_context(namespace, digest))
    context = connection.execute(query).scalar()
    columns = (contexts.c.revision, records.c.text)
    rows = _load(connection, namespace, digest, scenarios, *columns)
    if context is None or not rows:
        return None
    texts = ", ".join(row.text for row in rows)
    return rows[0].revision, f'{{"context": {context}, "format": {FORMAT}, "records": [{texts}]}}'


def load_scenarios(connection: Connection, namespace: str, digest: str) -> tuple[str, str] | None:
    """Load the revision and the sorted scenarios of a context, as JSON; None if it has no records.

    Raises:
        TooLargeError: As for the records.
    """
    _check_size(connection, namespace, digest, "scenario_text")
    rows = _load(connection, namespace, digest, None, contexts.c.revision)
    if not rows:
        return None
    texts = ", ".join(row.scenario_text for row in rows)
    return rows[0].revision, f'{{"scenarios": [{texts}]}}'


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


def load_text(
    connection: Connection, namespace: str, digest: str, scenario: str
) -> tuple[str, str | None] | None:
    """Load a context's revision and the JSON text of one record; None if it has no records."""
    on = and_(records.c.context_id == contexts.c.id, records.c.scenario == scenario)
    query = select(contexts.c.revision, records.c.text).outerjoin_from(contexts, records, on)
    query = query.where(_is_context(namespace, digest), contexts.c.records > 0)
    row = connection.execute(query).one_or_none()
    return None if row is None else (row[0], row[1])
