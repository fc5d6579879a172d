"""Records as the JSON texts that readers get, and the append-only measurements behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Connection, Select, and_, case, delete, func, select, update

from dejavu_cache.model.record import Measurement, Record, Winner
from dejavu_cache.model.scenario import canonical_json

from . import summaries
from .chunks import chunks
from .sql_functions import byte_length, epoch
from .tables import contexts, measurements, records, winner_arrival
from .upserts import insert

__all__ = [
    "WINNER",
    "Claim",
    "StoredRecordSet",
    "add_claims",
    "count_bytes",
    "delete_records",
    "list_sizes",
    "load",
    "load_displaced",
    "load_pinned",
    "load_record_set",
    "load_scenario_texts",
    "load_sizes",
    "load_text",
    "load_texts",
    "replace_standing",
    "save",
    "save_displaced",
]

WINNER = '"winner": {'
"""Part of the JSON texts of records with a winner: quotes within a text are escaped, and no other
dictionary of a record has dictionaries as values, except a winner's verdicts."""
_WINNERS = TypeAdapter(list[Winner])


class StoredRecordSet(NamedTuple):
    """All records of a context at one revision, with their scenarios, as JSON texts."""

    context: str
    revision: str
    records: list[str]
    scenarios: list[str]


class Claim(NamedTuple):
    """A measurement that a client sent.

    Attributes:
        scenario: The digest of the measurement's scenario.
        measurement: The measurement.
        text: The measurement as canonical JSON.
        digest: The digest of that text.
        stands: Whether readers get it; one that contradicts an earlier one is only stored.
    """

    scenario: str
    measurement: Measurement
    text: str
    digest: str
    stands: bool


def _select_of(namespace: str, digest: str, *columns: ColumnElement[Any]) -> Select[Any]:
    """Return a query for columns of the records of a context and of itself."""
    return (
        select(*columns)
        .join_from(records, contexts, contexts.c.id == records.c.context_id)
        .where(contexts.c.namespace == namespace, contexts.c.digest == digest)
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


def load(connection: Connection, context_id: int, scenarios: Sequence[str]) -> dict[str, Record]:
    """Load records by their scenario's digest, without those that do not exist."""
    return {
        scenario: Record.model_validate_json(text)
        for chunk in chunks(scenarios)
        for scenario, text in connection.execute(
            select(records.c.scenario, records.c.text).where(
                records.c.context_id == context_id, records.c.scenario.in_(chunk)
            )
        )
    }


def load_pinned(
    connection: Connection, context_id: int, scenarios: Sequence[str] | None
) -> dict[str, Record]:
    """Load the pinned records of a context by their scenario's digest, all or some."""
    query = select(records.c.scenario, records.c.text).where(
        records.c.context_id == context_id, records.c.pinned
    )
    return {
        scenario: Record.model_validate_json(text)
        for scenario, text in connection.execute(query)
        if scenarios is None or scenario in scenarios
    }


def save(
    connection: Connection,
    context_id: int,
    changed: Iterable[Record],
    *,
    promoted: bool = False,
    winner_senders: Mapping[str, str] | None = None,
) -> dict[str, int]:
    """Insert or replace records.

    Args:
        connection: A write transaction.
        context_id: The context.
        changed: The records.
        promoted: Whether they are promoted; a record that was promoted once stays marked so.
        winner_senders: Who sent the winners that are new, by the digest of their scenario.

    Returns:
        The characters of each record's JSON text, by the digest of its scenario.
    """
    changed = list(changed)
    rows = [
        {
            "context_id": context_id,
            "scenario": record.scenario.digest,
            "scenario_text": record.scenario.text,
            "text": canonical_json(record),
            "pinned": record.pinned is not None,
            "promoted": promoted,
            "winner_sender": (winner_senders or {}).get(record.scenario.digest),
        }
        for record in changed
    ]
    if not rows:
        return {}
    statement = insert(connection, records).values(updated_at=epoch(), winner_received_at=epoch())
    new = statement.excluded
    is_new_winner = new.winner_sender.is_not(None)
    statement = statement.on_conflict_do_update(
        index_elements=[records.c.context_id, records.c.scenario],
        set_={
            "text": new.text,
            "pinned": new.pinned,
            "promoted": records.c.promoted | new.promoted if promoted else records.c.promoted,
            "updated_at": epoch(),
            "winner_sender": func.coalesce(new.winner_sender, records.c.winner_sender),
            "winner_received_at": case((is_new_winner, epoch()), else_=winner_arrival),
        },
    )
    connection.execute(statement, rows)
    summaries.save(connection, context_id, map(summaries.summarize, changed))
    return {str(row["scenario"]): len(str(row["text"])) for row in rows}


def load_displaced(
    connection: Connection, context_id: int, scenarios: Sequence[str]
) -> dict[str, list[Winner]]:
    """Load the displaced winners of those records that have any, by their scenario's digest."""
    query = select(records.c.scenario, records.c.displaced_winners).where(
        records.c.context_id == context_id, records.c.displaced_winners.is_not(None)
    )
    return {
        scenario: _WINNERS.validate_json(text)
        for chunk in chunks(scenarios)
        for scenario, text in connection.execute(query.where(records.c.scenario.in_(chunk)))
    }


def save_displaced(
    connection: Connection, context_id: int, displaced: Mapping[str, Sequence[Winner]]
) -> None:
    """Replace the displaced winners of records, given by their scenario's digest."""
    for scenario, winners in displaced.items():
        connection.execute(
            update(records)
            .where(records.c.context_id == context_id, records.c.scenario == scenario)
            .values(displaced_winners=_WINNERS.dump_json(list(winners)).decode())
        )


def add_claims(
    connection: Connection, context_id: int, claims: Iterable[Claim], sender: str
) -> tuple[int, int]:
    """Insert the measurements that are not stored yet.

    Returns:
        The numbers of inserted measurements that stand and that do not.
    """
    rows = [
        {
            "context_id": context_id,
            "scenario": claim.scenario,
            "config": claim.measurement.config.digest,
            "digest": claim.digest,
            "text": claim.text,
            "stands": claim.stands,
            "sender": sender,
        }
        for claim in claims
    ]
    if not rows:
        return 0, 0
    statement = (
        insert(connection, measurements).values(received_at=epoch()).on_conflict_do_nothing()
    )
    added = connection.execute(statement.returning(measurements.c.stands), rows).scalars().all()
    return sum(added), len(added) - sum(added)


def replace_standing(
    connection: Connection, context_id: int, scenario: str, standing: Iterable[tuple[str, str]]
) -> None:
    """Replace the measurements of a scenario that stand.

    Args:
        connection: A write transaction.
        context_id: The context.
        scenario: The digest of the scenario.
        standing: Digests of a config and of the measurement that shall stand for it; all other
            measurements of that config stop standing.
    """
    for config, digest in standing:
        connection.execute(
            update(measurements)
            .where(
                measurements.c.context_id == context_id,
                measurements.c.scenario == scenario,
                measurements.c.config == config,
            )
            .values(stands=measurements.c.digest == digest)
        )


def delete_records(connection: Connection, context_id: int, scenarios: Sequence[str] | None) -> int:
    """Delete records with their measurements, all if `scenarios` is None; return their number."""
    statement = delete(records).where(records.c.context_id == context_id)
    if scenarios is None:
        return connection.execute(statement).rowcount
    return sum(
        connection.execute(statement.where(records.c.scenario.in_(chunk))).rowcount
        for chunk in chunks(scenarios)
    )
