"""Recall of what a server no longer serves: parts of records, named by the digest of their text."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from .record import Measurement, Pin, Record, Winner
from .scenario import canonical_json

__all__ = ["part_digest", "part_digests", "without_parts"]


def part_digest(part: Measurement | Pin | Winner) -> str:
    """Return the digest of a measurement, a pin or a winner, which is equal on all machines."""
    return hashlib.sha256(canonical_json(part).encode()).hexdigest()


def part_digests(record: Record) -> set[str]:
    """Return the digests of all of a record's parts."""
    parts = [*record.measurements, record.pin, record.winner]
    return {part_digest(part) for part in parts if part is not None}


def without_parts(record: Record, parts: Collection[str]) -> Record | None:
    """Return a record without some measurements, pins and winners; None if nothing is left.

    A winner whose timing is gone goes with it.

    Args:
        record: the record.
        parts: the digests of what is to go.
    """
    measurements = tuple(
        measurement for measurement in record.measurements if part_digest(measurement) not in parts
    )
    pin = None if record.pin and part_digest(record.pin) in parts else record.pin
    winner = record.winner if record.winner and part_digest(record.winner) not in parts else None
    unchanged = pin is record.pin and winner is record.winner
    if unchanged and len(measurements) == len(record.measurements):
        return record
    if not measurements and pin is None:
        return None
    configs = {measurement.config for measurement in measurements}
    winner = winner if winner and winner.config in configs else None
    return record.model_copy(update={"measurements": measurements, "pin": pin, "winner": winner})
