"""Append-only merging of records: the first measurement stands until promotion overrides it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from dejavu_cache.model.merge import merge_launches
from dejavu_cache.model.record import (
    MOST_LAUNCHES,
    MOST_MEASUREMENTS,
    Measurement,
    Pin,
    Record,
    RecordedLaunch,
    Winner,
)
from dejavu_cache.model.scenario import (
    Config,
    Scenario,
    canonical_json,
    is_from_future,
    moment_after,
)
from dejavu_cache.model.selection import is_credible

from ..errors import TooLargeError
from ..storage.records import Claim

__all__ = ["MOST_RECORD_CHARACTERS", "Merge", "Override", "add", "check_growth", "override", "pin"]

MOST_RECORD_CHARACTERS = 32 * 2**20
"""Characters to which a record's JSON may grow: as many as one request brings, and half of what a
client reads in an answer if each takes four bytes."""


class Merge(NamedTuple):
    """The merged record, and the measurements to store that it did not have before.

    Attributes:
        record: The record that readers get.
        claims: The new measurements.
        replacing: Those of `claims` that stand instead of another one.
        refused: The number of measurements that are not stored, except those that were skipped.
    """

    record: Record
    claims: list[Claim]
    replacing: list[Claim]
    refused: int = 0


def add(current: Record | None, sent: Record, *, pins: bool, present: datetime) -> Merge:
    """Merge a record that a client sent; measurements and the winner of `current` stand.

    A winner whose results were not compared gives way to one whose results were.

    A measurement in `sent` of the same config becomes a claim that does not stand. It replaces the
    one in `current` only if it found wrong results; if it is a timing and the other a failure,
    which may be one machine's; or if it is a timing over more cases. Left out are measurements that
    were skipped for want of memory, that no launch can have, that are dated ahead, and those of new
    configs for which a record has no room.

    Args:
        current: The stored record, if there is one.
        sent: The record that a client sent.
        pins: Whether a pin in `sent` counts, which only an admin's does.
        present: The present time, by a clock that all replicas share: each would otherwise take
            back what it holds to be dated ahead, and others do not.
    """
    standing = current.by_config if current else {}
    new = [
        measurement
        for measurement in sent.measurements
        if _is_welcome(measurement, present) and standing.get(measurement.config) != measurement
    ]
    overruling = {
        measurement.config
        for measurement in new
        if measurement.config in standing and _overrules(measurement, standing[measurement.config])
    }
    standing = {
        config: measurement for config, measurement in standing.items() if config not in overruling
    }
    fitting = _fit_into(new, standing)
    claims = [
        _claim(sent, measurement, stands=measurement.config not in standing)
        for measurement in fitting
    ]
    by_config = {**{measurement.config: measurement for measurement in fitting}, **standing}
    unwelcome = [
        measurement
        for measurement in sent.measurements
        if not (measurement.skipped or _is_welcome(measurement, present))
    ]
    record = Record(
        scenario=sent.scenario,
        winner=_first_right([current.winner if current else None, sent.winner], by_config, present),
        pin=_latest_pin([current.pin if current else None, sent.pin if pins else None], present),
        launches=_add_launches(current, sent),
        measurements=tuple(by_config.values()),
    )
    replacing = [claim for claim in claims if claim.measurement.config in overruling]
    return Merge(record, claims, replacing, len(unwelcome) + len(new) - len(fitting))


def check_growth(scenario: object, before: int, after: int) -> None:
    """Check that a record does not outgrow what clients read.

    One that an earlier version let grow further may still change, and shrink.

    Args:
        scenario: The record's scenario, for the message.
        before: The characters of the stored record's JSON; 0 without one.
        after: The characters with what is to be merged.

    Raises:
        TooLargeError: It is too large, and grows.
    """
    if after > max(MOST_RECORD_CHARACTERS, before):
        raise TooLargeError(
            f"the record of {scenario} would have {after} characters, and may have "
            f"{MOST_RECORD_CHARACTERS}: leave out configs or cases"
        )


def _is_welcome(measurement: Measurement, present: datetime) -> bool:
    """Return whether a measurement can be true of any machine."""
    is_possible = measurement.failure is not None or is_credible(measurement)
    is_ahead = is_from_future(measurement.at, present)
    return is_possible and not measurement.skipped and not is_ahead


def _overrules(measurement: Measurement, standing: Measurement) -> bool:
    """Return whether a measurement replaces the one that stands, which came first."""
    if measurement.is_wrong or standing.is_wrong:
        return measurement.is_wrong and not standing.is_wrong
    return is_credible(measurement) and (
        not is_credible(standing) or _extends(measurement, standing)
    )


def _extends(measurement: Measurement, standing: Measurement) -> bool:
    """Return whether a timing is over all cases of another one, and over more."""
    return set(measurement.cases or ()) > set(standing.cases or ())


def _fit_into(
    new: Sequence[Measurement], standing: Mapping[Config, Measurement]
) -> list[Measurement]:
    """Return the measurements of configs that stand already, and of as many more as there is room.

    What stands is never displaced, so that nobody can empty a record by filling it.
    """
    room = max(MOST_MEASUREMENTS - len(standing), 0)
    more = [measurement for measurement in new if measurement.config not in standing]
    excess = {measurement.config for measurement in more[room:]}
    return [measurement for measurement in new if measurement.config not in excess]


def _add_launches(current: Record | None, sent: Record) -> tuple[RecordedLaunch, ...] | None:
    """Return the recorded launches, and of the sent ones as many as there is room for."""
    recorded = current.launches or () if current else ()
    if not recorded:
        return merge_launches(sent)
    new = [launch for launch in sent.launches or () if launch not in set(recorded)]
    return (*recorded, *new)[:MOST_LAUNCHES]


class Override(NamedTuple):
    """A record that another one was promoted to, as JSON, and whether its winner is another."""

    text: str
    has_new_winner: bool


def override(current: str, source: str, present: datetime) -> Override:
    """Merge a promoted record, whose measurements and winner replace those of `current`.

    The pin of `current` stays. Both are canonical JSON, as is the result: parsing them as models
    would take most of a promotion's time.

    Raises:
        TooLargeError: The record would have more characters, or measurements, than one may have.
    """
    if current == source:
        return Override(current, has_new_winner=False)
    target, promoted = json.loads(current), json.loads(source)
    scenario, before = Scenario.model_validate(target["scenario"]), len(target["measurements"])
    target["measurements"] = _replace(target["measurements"], promoted["measurements"])
    if len(target["measurements"]) > max(MOST_MEASUREMENTS, before):
        raise TooLargeError(
            f"the record of {scenario} would have {len(target['measurements'])} measurements, and "
            f"may have {MOST_MEASUREMENTS}: delete it in one of the namespaces"
        )
    launches = {
        canonical_json(launch): launch
        for launch in (*target.get("launches", ()), *promoted.get("launches", ()))
    }
    if launches:
        first = sorted(list(launches.items())[:MOST_LAUNCHES])
        target["launches"] = [launch for _, launch in first]
    standing = _winner(target)
    winner = _promoted_winner(standing, _winner(promoted), present)
    if winner is not None:
        target["winner"] = winner.model_dump(mode="json", exclude_none=True)
    text = canonical_json(target)
    check_growth(scenario, len(current), len(text))
    return Override(text, has_new_winner=winner != standing)


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


def pin(record: Record, config: Config | None, by: str, present: datetime) -> Record:
    """Return the record with a config pinned, or with its pin removed if `config` is None."""
    return record.model_copy(update={"pin": Pin.after(record.pin, config, by, present)})


def _first_right(
    winners: Iterable[Winner | None],
    measurements: Mapping[Config, Measurement],
    present: datetime,
) -> Winner | None:
    """Return the first winner that was compared, or else the first.

    Those dated ahead or known to compute wrong results do not count.
    """
    right = [
        winner
        for winner in winners
        if winner is not None
        and not is_from_future(winner.at, present)
        and not ((timing := measurements.get(winner.config)) and timing.is_wrong)
    ]
    return next((winner for winner in right if winner.is_compared), right[0] if right else None)


def _promoted_winner(
    current: Winner | None, source: Winner | None, present: datetime
) -> Winner | None:
    if current is None or source is None:
        return current or source
    if current.is_compared != source.is_compared:  # all stores prefer the one that was compared
        return source if source.is_compared else current
    if source.config == current.config:
        return current
    # Local stores keep the later of two winners: the promoted one must be the later one.
    if source.at > current.at:
        return source
    return source.model_copy(update={"at": moment_after(current.at, present)})


def _latest_pin(pins: Iterable[Pin | None], present: datetime) -> Pin | None:
    return max(
        [pin for pin in pins if pin is not None],
        key=lambda pin: (not is_from_future(pin.at, present), pin.at, canonical_json(pin)),
        default=None,
    )


def _claim(record: Record, measurement: Measurement, *, stands: bool) -> Claim:
    text = canonical_json(measurement)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Claim(record.scenario.digest, measurement, text, digest, stands)
