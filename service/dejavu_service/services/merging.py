"""How a record takes in what somebody sends: the first claim stands, and a person's choice goes over it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from dejavu_cache.model.merge import merge_launches
from dejavu_cache.model.record import Measurement, Pin, Record, Winner
from dejavu_cache.model.scenario import Config, canonical_json, now

from ..storage.records import Claim

__all__ = ["Merge", "add", "override", "pin"]


class Merge(NamedTuple):
    """A record as it will be, and the measurements to keep that were not in it."""

    record: Record
    claims: list[Claim]


def add(known: Record | None, sent: Record, *, pins: bool) -> Merge:
    """Takes in what is new; what is known stands, and what contradicts it is only kept.

    What one machine had no memory for is no claim about a config.

    Args:
        pins: whether a pin in `sent` counts.
    """
    held = known.by_config if known else {}
    new = [each for each in sent.measurements if not each.skipped and held.get(each.config) != each]
    claims = [_claim(sent, each, stands=each.config not in held) for each in new]
    measured = {**{each.config: each for each in new}, **held}
    given = sent.pin if pins else None
    record = Record(
        scenario=sent.scenario,
        winner=(known and known.winner) or sent.winner,
        pin=_later([known.pin if known else None, given]),
        launches=merge_launches(known, sent),
        measurements=tuple(measured.values()),
    )
    return Merge(record, claims)


def override(known: Record | None, source: Record) -> Merge:
    """Puts what was measured in another namespace, and its winner, over what is known here; the pin stays."""
    held = known.by_config if known else {}
    new = [each for each in source.measurements if held.get(each.config) != each]
    measured = {**held, **{each.config: each for each in new}}
    record = Record(
        scenario=source.scenario,
        winner=_promoted(known.winner if known else None, source.winner),
        pin=known.pin if known else None,
        launches=merge_launches(known, source),
        measurements=tuple(measured.values()),
    )
    return Merge(record, [_claim(source, each, stands=True) for each in new])


def pin(record: Record, config: Config | None, by: str) -> Record:
    """The record with a config chosen, or the choice taken back."""
    at = now()
    if record.pin and record.pin.at >= at:
        at = record.pin.at + timedelta(microseconds=1)
    return record.model_copy(update={"pin": Pin(config=config, at=at, by=by)})


def _promoted(ours: Winner | None, theirs: Winner | None) -> Winner | None:
    if ours is None or theirs is None or theirs.config == ours.config:
        return ours or theirs
    # Local stores keep the later of two winners: the one that was promoted must be it.
    return theirs if theirs.at > ours.at else Winner(config=theirs.config, at=now())


def _later(pins: Iterable[Pin | None]) -> Pin | None:
    held = [each for each in pins if each is not None]
    return max(held, key=lambda each: (each.at, canonical_json(each)), default=None)


def _claim(record: Record, measurement: Measurement, *, stands: bool) -> Claim:
    digest = hashlib.sha256(canonical_json(measurement).encode()).hexdigest()
    return Claim(record.scenario.digest, measurement, digest, stands)
