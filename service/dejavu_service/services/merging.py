"""Append-only merging of records: the first measurement stands until promotion overrides it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

from dejavu_cache.model.merge import merge_launches
from dejavu_cache.model.record import Measurement, Pin, Record, Winner
from dejavu_cache.model.scenario import Config, canonical_json, now

from ..storage.records import Claim

__all__ = ["Merge", "add", "override", "pin"]


class Merge(NamedTuple):
    """The merged record, and the measurements to store that it did not have before."""

    record: Record
    claims: list[Claim]


def add(current: Record | None, sent: Record, *, pins: bool) -> Merge:
    """Merge a record that a client sent; measurements and the winner of `current` stand.

    Measurements of `sent` that contradict `current` become claims that do not stand, except that
    wrong results stand against any timing. A measurement that was skipped for want of memory says
    something about one machine only and is left out.

    Args:
        current: The stored record, if there is one.
        sent: The record that a client sent.
        pins: Whether a pin in `sent` counts, which only an admin's does.
    """
    standing = current.by_config if current else {}
    new = [
        measurement
        for measurement in sent.measurements
        if not measurement.skipped and standing.get(measurement.config) != measurement
    ]
    proven_wrong = {measurement.config for measurement in new if measurement.is_wrong}
    standing = {
        config: measurement
        for config, measurement in standing.items()
        if measurement.is_wrong or config not in proven_wrong
    }
    claims = [
        _claim(sent, measurement, stands=measurement.config not in standing) for measurement in new
    ]
    by_config = {**{measurement.config: measurement for measurement in new}, **standing}
    record = Record(
        scenario=sent.scenario,
        winner=_first_right([current.winner if current else None, sent.winner], by_config),
        pin=_latest_pin([current.pin if current else None, sent.pin if pins else None]),
        launches=merge_launches(current, sent),
        measurements=tuple(by_config.values()),
    )
    return Merge(record, claims)


def override(current: Record | None, source: Record) -> Merge:
    """Merge a promoted record, whose measurements and winner replace those of `current`.

    The pin of `current` stays.
    """
    replaced = current.by_config if current else {}
    new = [
        measurement
        for measurement in source.measurements
        if replaced.get(measurement.config) != measurement
    ]
    by_config = {**replaced, **{measurement.config: measurement for measurement in new}}
    record = Record(
        scenario=source.scenario,
        winner=_promoted_winner(current.winner if current else None, source.winner),
        pin=current.pin if current else None,
        launches=merge_launches(current, source),
        measurements=tuple(by_config.values()),
    )
    return Merge(record, [_claim(source, measurement, stands=True) for measurement in new])


def pin(record: Record, config: Config | None, by: str) -> Record:
    """Return the record with a config pinned, or with its pin removed if `config` is None."""
    at = now()
    if record.pin and record.pin.at >= at:
        # Of two pins the later one counts, also where the clocks of two servers differ.
        at = record.pin.at + timedelta(microseconds=1)
    return record.model_copy(update={"pin": Pin(config=config, at=at, by=by)})


def _first_right(
    winners: Iterable[Winner | None], measurements: Mapping[Config, Measurement]
) -> Winner | None:
    """Return the first winner whose results are not known to be wrong."""
    for winner in winners:
        if winner is None:
            continue
        measurement = measurements.get(winner.config)
        if measurement is None or not measurement.is_wrong:
            return winner
    return None


def _promoted_winner(current: Winner | None, source: Winner | None) -> Winner | None:
    if current is None or source is None or source.config == current.config:
        return current or source
    # Local stores keep the later of two winners: the promoted one must be the later one.
    return source if source.at > current.at else Winner(config=source.config, at=now())


def _latest_pin(pins: Iterable[Pin | None]) -> Pin | None:
    present = [pin for pin in pins if pin is not None]
    return max(present, key=lambda pin: (pin.at, canonical_json(pin)), default=None)


def _claim(record: Record, measurement: Measurement, *, stands: bool) -> Claim:
    digest = hashlib.sha256(canonical_json(measurement).encode()).hexdigest()
    return Claim(record.scenario.digest, measurement, digest, stands)
