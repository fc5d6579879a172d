"""Append-only merging of records: the first measurement stands until promotion overrides it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from dejavu_cache.model.merge import merge_launches
from dejavu_cache.model.record import MOST_LAUNCHES, Measurement, Pin, Record, Winner
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


def override(current: str, source: str) -> str:
    """Merge a promoted record, whose measurements and winner replace those of `current`.

    The pin of `current` stays. Both are canonical JSON, as is the result: parsing them as models
    would take most of a promotion's time.
    """
    if current == source:
        return current
    target, promoted = json.loads(current), json.loads(source)
    target["measurements"] = _replace(target["measurements"], promoted["measurements"])
    launches = {
        canonical_json(launch): launch
        for launch in (*target.get("launches", ()), *promoted.get("launches", ()))
    }
    if launches:
        target["launches"] = [launch for _, launch in sorted(launches.items())][:MOST_LAUNCHES]
    winner = _promoted_winner(_winner(target), _winner(promoted))
    if winner is not None:
        target["winner"] = winner.model_dump(mode="json")
    return canonical_json(target)


def _replace(
    measurements: list[dict[str, Any]], replacements: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Replace the measurements of the same configs, and add the others; sorted by config."""
    if [item["config"] for item in measurements] == [item["config"] for item in replacements]:
        return replacements
    by_config = {canonical_json(item["config"]): item for item in (*measurements, *replacements)}
    return [measurement for _, measurement in sorted(by_config.items())]


def _winner(record: dict[str, Any]) -> Winner | None:
    return Winner.model_validate(record["winner"], strict=False) if "winner" in record else None


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
