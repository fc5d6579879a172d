"""A store as a dictionary: the contract of put, pin, delete and copy, without any storage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dejavu_cache.model.record import Measurement, Pin, Record, RecordedLaunch, Winner
from dejavu_cache.model.scenario import Config, Context, Scenario, canonical_json

__all__ = ["ExpectedRecord", "LocalModel", "ServerModel"]

Key = tuple[Context, Scenario]


@dataclass
class ExpectedRecord:
    """A record whose parts can be changed."""

    measurements: dict[Config, Measurement] = field(default_factory=dict)
    winner: Winner | None = None
    pin: Pin | None = None
    launches: set[RecordedLaunch] = field(default_factory=set)

    def freeze(self, scenario: Scenario) -> Record:
        return Record(
            scenario=scenario,
            measurements=tuple(self.measurements.values()),
            winner=self.winner,
            pin=self.pin,
            launches=tuple(self.launches) or None,
        )

    @property
    def is_chosen(self) -> bool:
        """Whether a tune or a person has chosen a config; without one, the record is a miss."""
        return self.winner is not None or (self.pin is not None and self.pin.config is not None)


class LocalModel:
    """The newest measurement of a config stands."""

    def __init__(self) -> None:
        self.records: dict[Key, ExpectedRecord] = {}

    def record(self, context: Context, scenario: Scenario) -> Record | None:
        expected = self.records.get((context, scenario))
        return expected.freeze(scenario) if expected else None

    def all_records(self, context: Context) -> list[Record]:
        records = [
            expected.freeze(scenario)
            for (home, scenario), expected in self.records.items()
            if home == context
        ]
        return sorted(records, key=lambda record: record.scenario.text)

    def contexts(self) -> list[Context]:
        return sorted({context for context, _ in self.records}, key=lambda context: context.text)

    def put(self, context: Context, record: Record) -> None:
        expected = self.records.setdefault((context, record.scenario), ExpectedRecord())
        for theirs in record.measurements:
            ours = expected.measurements.get(theirs.config, theirs)
            expected.measurements[theirs.config] = _choose(ours, theirs)
        expected.winner = _later(expected.winner, record.winner)
        expected.pin = _later(expected.pin, record.pin)
        expected.launches |= set(record.launches or ())

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None) -> int:
        doomed = [
            key
            for key in self.records
            if key[0] == context and (scenarios is None or key[1] in scenarios)
        ]
        for key in doomed:
            del self.records[key]
        return len(doomed)


class ServerModel(LocalModel):
    """The first measurement of a config stands; what was deleted does not come back."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted_at: dict[Key, datetime] = {}
        self.deleted_configs: dict[Key, set[Config]] = {}
        self.missed: set[Key] = set()

    def put(self, context: Context, record: Record) -> None:
        key = context, record.scenario
        deleted_at = self.deleted_at.get(key)
        sent = [measurement for measurement in record.measurements if not measurement.skipped]
        measurements = [item for item in sent if deleted_at is None or item.at > deleted_at]
        left_out = {item.config for item in sent} - {item.config for item in measurements}
        winner = record.winner
        if winner and (winner.config in left_out or (deleted_at and winner.at <= deleted_at)):
            winner = None
        may_show = key in self.records or deleted_at is None or measurements
        expected = self.records.get(key) or ExpectedRecord()
        for theirs in measurements:
            ours = expected.measurements.get(theirs.config)
            if ours is None or _overrules(theirs, ours):
                expected.measurements[theirs.config] = theirs
        winners = [entry for entry in (expected.winner, winner) if entry is not None]
        expected.winner = next(
            (entry for entry in winners if self._may_win(key, expected, entry)), None
        )
        expected.launches |= set(record.launches or ()) if may_show else set()
        if expected.measurements or expected.winner or expected.pin or expected.launches:
            self.records[key] = expected
        if expected.is_chosen:
            self.missed.discard(key)

    def _may_win(self, key: Key, expected: ExpectedRecord, winner: Winner) -> bool:
        """Return whether a winner's config has a timing, or was never measured."""
        measurement = expected.measurements.get(winner.config)
        if measurement is None:
            return winner.config not in self.deleted_configs.get(key, ())
        return measurement.failure is None

    def misses(self) -> set[Key]:
        """Return what was missed since a config was last chosen for it, and has none now."""
        chosen = {key for key, expected in self.records.items() if expected.is_chosen}
        return self.missed - chosen

    def forget(self, context: Context, scenarios: Iterable[Scenario] | None, at: datetime) -> int:
        """Delete records at a moment before which nothing of them is taken again."""
        before = dict(self.records)
        deleted = self.delete(context, scenarios)
        for key in before.keys() - self.records.keys():
            self.deleted_at[key] = at
            self.deleted_configs.setdefault(key, set()).update(before[key].measurements)
        return deleted

    def pin(self, context: Context, scenario: Scenario, pin: Pin) -> None:
        self.records[context, scenario].pin = pin


def _choose(ours: Measurement, theirs: Measurement) -> Measurement:
    if ours.skipped != theirs.skipped:
        return theirs if ours.skipped else ours
    if ours.is_wrong != theirs.is_wrong:
        return ours if ours.is_wrong else theirs
    if len(ours.cases or ()) != len(theirs.cases or ()):
        return max(ours, theirs, key=lambda measurement: len(measurement.cases or ()))
    return max(ours, theirs, key=lambda measurement: (measurement.at, canonical_json(measurement)))


def _overrules(theirs: Measurement, ours: Measurement) -> bool:
    """Return whether a server lets `theirs` stand instead of the first measurement."""
    if ours.is_wrong or theirs.is_wrong:
        return theirs.is_wrong and not ours.is_wrong
    if theirs.failure is not None:
        return False
    return ours.failure is not None or {*(theirs.cases or ())} > {*(ours.cases or ())}


def _later(ours: Any, theirs: Any) -> Any:
    present = [entry for entry in (ours, theirs) if entry is not None]
    return max(present, key=lambda entry: (entry.at, canonical_json(entry)), default=None)
