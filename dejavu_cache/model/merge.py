"""Merging records, and naming the fields in which two of them differ.

A merge is a union: nothing that was measured is lost, and the order of merges does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from ..errors import MergeConflictError
from .record import MOST_LAUNCHES, Measurement, Record, RecordedLaunch
from .scenario import Scenario, canonical_json

__all__ = [
    "Difference",
    "OnConflict",
    "differences",
    "merge_into",
    "merge_launches",
    "merge_records",
]

OnConflict = Literal["newest", "fastest", "fail"]


def merge_records(one: Record, two: Record, on_conflict: OnConflict = "newest") -> Record:
    """The union of two records of one scenario.

    The order does not matter and a repeated merge changes nothing. Where both measured one config,
    `on_conflict` decides; the later winner and the later pin stand.

    Raises:
        MergeConflictError: `on_conflict="fail"`, and two timings of one config differ.
    """
    if one.scenario != two.scenario:
        raise ValueError(f"these are different scenarios: {one.scenario} and {two.scenario}")
    if one == two:
        return one
    measured = one.by_config
    for config, theirs in two.by_config.items():
        ours = measured.get(config)
        measured[config] = theirs if ours is None else _settle(ours, theirs, on_conflict)
    return Record(
        scenario=one.scenario,
        winner=_later(one.winner, two.winner),
        pin=_later(one.pin, two.pin),
        launches=merge_launches(one, two),
        measurements=tuple(measured.values()),
    )


def merge_launches(*records: Record | None) -> tuple[RecordedLaunch, ...] | None:
    """The launches of all, up to as many as a record holds: always the same ones, whatever the order."""
    union = {launch for record in records if record for launch in record.launches or ()}
    return tuple(sorted(union, key=lambda launch: launch.text)[:MOST_LAUNCHES]) or None


def _settle(ours: Measurement, theirs: Measurement, on_conflict: OnConflict) -> Measurement:
    if ours == theirs:
        return ours
    if ours.skipped != theirs.skipped:
        return theirs if ours.skipped else ours
    if on_conflict == "fail":
        raise MergeConflictError(
            f"two measurements of ({ours.config}): {ours.median} ms at {ours.at} and {theirs.median} ms at {theirs.at}"
        )
    if on_conflict == "fastest":
        return min(ours, theirs, key=lambda measurement: measurement._slowness)
    return max(ours, theirs, key=lambda measurement: measurement._age)


def _later(one: Any, two: Any) -> Any:
    held = [each for each in (one, two) if each is not None]
    return max(held, key=lambda each: (each.at, canonical_json(each)), default=None)


class Difference(NamedTuple):
    """One field in which what was wanted and what was found are not equal."""

    field: str
    wanted: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.field}: {self.found!r} recorded, {self.wanted!r} wanted"


def differences(
    wanted: Mapping[str, Any], found: Mapping[str, Any], prefix: str = ""
) -> list[Difference]:
    """The leaves in which two nested mappings differ, in order."""
    result: list[Difference] = []
    for name in dict.fromkeys([*wanted, *found]):
        one, two = wanted.get(name), found.get(name)
        if isinstance(one, Mapping) and isinstance(two, Mapping):
            result += differences(one, two, f"{prefix}{name}.")
        elif one != two or type(one) is not type(two):
            result.append(Difference(prefix + name, one, two))
    return result


def merge_into(
    known: Mapping[Scenario, Record], records: Iterable[Record], on_conflict: OnConflict = "newest"
) -> dict[Scenario, Record]:
    """What is known with `records` merged in, as a new dictionary."""
    merged = dict(known)
    for record in records:
        before = merged.get(record.scenario)
        merged[record.scenario] = (
            record if before is None else merge_records(before, record, on_conflict)
        )
    return merged
