"""Records as the texts readers get, and the measurements behind them, which are only ever added."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, and_, delete, select, update

from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import canonical_json

from .tables import contexts, epoch, measurements, records
from .upserts import insert

__all__ = [
    "Claim",
    "Whole",
    "add_claims",
    "digests",
    "drop",
    "load",
    "one",
    "save",
    "stand_aside",
    "whole",
]

_CHUNK = 500
"""Values in one IN list: databases and plans do not like them without end."""


class Whole(NamedTuple):
    """All of a context, as one reading saw it."""

    context: str
    revision: str
    records: list[str]


class Claim(NamedTuple):
    """A measurement that somebody sent."""

    scenario: str
    measurement: Measurement
    digest: str
    stands: bool


def whole(connection: Connection, namespace: str, digest: str) -> Whole | None:
    """A context's text, revision and records (in the order of their scenarios' text), or None without any."""
    query = (
        select(contexts.c.text, contexts.c.revision, records.c.scenario_text, records.c.text)
        .join(records, records.c.context_id == contexts.c.id)
        .where(contexts.c.namespace == namespace, contexts.c.digest == digest)
    )
    rows = connection.execute(query).all()
    if not rows:
        return None
    # Sorted here: databases collate text each in their own way.
    return Whole(
        rows[0][0], rows[0][1], [text for _, text in sorted((row[2], row[3]) for row in rows)]
    )


def one(connection: Connection, namespace: str, digest: str, scenario: str) -> str | None:
    """The text of one record, or None."""
    on = and_(records.c.context_id == contexts.c.id, records.c.scenario == scenario)
    query = select(records.c.text).join(contexts, on)
    return connection.execute(
        query.where(contexts.c.namespace == namespace, contexts.c.digest == digest)
    ).scalar()


def load(connection: Connection, context_id: int, scenarios: Sequence[str]) -> dict[str, Record]:
    """Records by their scenario's digest; those that are not there are absent."""
    return {
        scenario: Record.model_validate_json(text)
        for chunk in _chunks(scenarios)
        for scenario, text in connection.execute(
            select(records.c.scenario, records.c.text).where(
                records.c.context_id == context_id, records.c.scenario.in_(chunk)
            )
        )
    }


def digests(connection: Connection, context_id: int) -> list[str]:
    """The digests of all scenarios that a context has records of."""
    return list(
        connection.execute(
            select(records.c.scenario).where(records.c.context_id == context_id)
        ).scalars()
    )


def save(
    connection: Connection, context_id: int, changed: Iterable[Record], *, promoted: bool = False
) -> None:
    """Puts records in their place; what was promoted once stays so."""
    rows = [
        {
            "context_id": context_id,
            "scenario": record.scenario.digest,
            "scenario_text": record.scenario.text,
            "text": canonical_json(record),
            "pinned": record.pinned is not None,
            "promoted": promoted,
        }
        for record in changed
    ]
    if not rows:
        return
    statement = insert(connection, records).values(updated_at=epoch())
    new = statement.excluded
    statement = statement.on_conflict_do_update(
        index_elements=[records.c.context_id, records.c.scenario],
        set_={
            "text": new.text,
            "pinned": new.pinned,
            "promoted": records.c.promoted | new.promoted if promoted else records.c.promoted,
            "updated_at": epoch(),
        },
    )
    connection.execute(statement, rows)


def add_claims(
    connection: Connection, context_id: int, claims: Iterable[Claim], sender: str
) -> tuple[int, int]:
    """Adds measurements that are not known yet; says how many of them stand, and how many are kept beside."""
    rows = [
        {
            "context_id": context_id,
            "scenario": claim.scenario,
            "config": claim.measurement.config.digest,
            "digest": claim.digest,
            "text": canonical_json(claim.measurement),
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


def stand_aside(
    connection: Connection, context_id: int, scenario: str, claims: Iterable[tuple[str, str]]
) -> None:
    """Lets the claim with each (config, digest) stand, and every other about that config be beside it."""
    for config, digest in claims:
        connection.execute(
            update(measurements)
            .where(
                measurements.c.context_id == context_id,
                measurements.c.scenario == scenario,
                measurements.c.config == config,
            )
            .values(stands=measurements.c.digest == digest)
        )


def drop(connection: Connection, context_id: int, scenarios: Sequence[str] | None) -> int:
    """Drops records, some or all, with their measurements, and says how many there were."""
    ours = records.c.context_id == context_id
    if scenarios is None:
        return connection.execute(delete(records).where(ours)).rowcount
    return sum(
        connection.execute(delete(records).where(ours, records.c.scenario.in_(chunk))).rowcount
        for chunk in _chunks(scenarios)
    )


def _chunks(values: Sequence[str]) -> Iterator[Sequence[str]]:
    return (values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK))
