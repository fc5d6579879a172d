"""Recall of records: what was deleted or replaced goes from all copies, and none brings it back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from sqlalchemy import Connection

from dejavu_cache.model.merge import part_digest
from dejavu_cache.model.record import Record

from ..storage import recalls, records
from ..storage.recalls import Recall

__all__ = ["recall_records", "withhold"]


def recall_records(
    connection: Connection,
    namespace: str,
    context: str,
    context_id: int,
    scenarios: Sequence[str] | None,
) -> None:
    """Recall whole records before they are deleted.

    Args:
        connection: The write transaction, which has locked the context.
        namespace: The namespace of the records.
        context: The digest of their context.
        context_id: The id of their context.
        scenarios: The digests of their scenarios, or None for all of the context.
    """
    recalls.add_records(connection, context_id, scenarios)
    pinned = records.load_pinned(connection, context_id, scenarios)
    parts = {
        scenario: [part_digest(record.pin)] for scenario, record in pinned.items() if record.pin
    }
    recalls.add_parts(connection, namespace, context, parts)


def withhold(
    sent: Iterable[Record], recalled: Mapping[str, Recall], existing: Collection[str]
) -> tuple[list[Record], int]:
    """Leave out of sent records what is recalled or older than the deletion of its record.

    Args:
        sent: Records that a client sent.
        recalled: The recalls by the digest of their scenario.
        existing: The digests of the scenarios that have a record.

    Returns:
        The records of which something is left, and the number of measurements left out.
    """
    welcome, refused = [], 0
    for record in sent:
        scenario = record.scenario.digest
        remaining: Record | None = record
        if scenario in recalled:
            remaining = _without_recalled(record, recalled[scenario], scenario in existing)
        if remaining is not None:
            welcome.append(remaining)
        refused += len(record.measurements) - len(remaining.measurements if remaining else ())
    return welcome, refused


def _without_recalled(record: Record, recall: Recall, exists: bool) -> Record | None:
    deleted_at = float("-inf") if recall.deleted_at is None else recall.deleted_at
    measurements = tuple(
        measurement
        for measurement in record.measurements
        if measurement.at.timestamp() > deleted_at and part_digest(measurement) not in recall.parts
    )
    pin, winner = record.pin, record.winner
    if pin and (pin.at.timestamp() <= deleted_at or part_digest(pin) in recall.parts):
        pin = None
    remaining = {measurement.config for measurement in measurements}
    if winner and (
        winner.at.timestamp() <= deleted_at
        or part_digest(winner) in recall.parts
        or (winner.config in record.by_config and winner.config not in remaining)
    ):
        winner = None
    if not (exists or measurements or pin or winner):
        return None
    return record.model_copy(update={"measurements": measurements, "pin": pin, "winner": winner})
