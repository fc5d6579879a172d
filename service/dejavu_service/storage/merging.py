"""Records as their append-only parts: what they take, and which parts stand, as readers get them.

What stands follows from the parts that nothing hides, in the order in which they came, whether a
client, an import or a promotion brought them, and whatever a quarantine took or gave back.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple

from dejavu_cache.model.record import (
    MOST_LAUNCHES,
    MOST_MEASUREMENTS,
    Measurement,
    Pin,
    Record,
    Winner,
)
from dejavu_cache.model.scenario import CLOCK_TOLERANCE, Scenario, canonical_json, moment_after
from dejavu_cache.model.selection import is_credible

from ..errors import TooLargeError

MOST_RECORD_CHARACTERS = 32 * 2**20
"""Characters to which a record's JSON may grow: as many as one request brings, and half of what a
client reads in an answer if each takes four bytes."""

_Kind = Literal["measurement", "winner", "pin"]
_MODELS: dict[_Kind, Any] = {"measurement": Measurement, "winner": Winner, "pin": Pin}
_KINDS: dict[Any, _Kind] = {model: kind for kind, model in _MODELS.items()}


class PartState(NamedTuple):
    """What may change of a part's row."""

    hidden_by: str | None
    replaced_by: str | None
    stands: bool
    text: str


@dataclass(eq=False)
class Part:
    """A measurement, a winner or a pin of one scenario.

    Attributes:
        kind: Which of them it is.
        config: The digest of its config; empty for a pin that was taken back.
        digest: The digest of its text.
        text: The part as canonical JSON; empty if it is hidden.
        sender: Who sent it.
        measured_by: Which user and host measured it.
        stands: Whether it is in the record that readers get.
        hidden_by: The id of the act that took it from readers, or None.
        replaced_by: The digest of the promoted part that replaced it, or None.
        id: The id of its row; None if it is not stored yet.
        stored: The state of its row; None if it is not stored yet.
    """

    kind: _Kind
    config: str
    digest: str
    text: str
    sender: str
    measured_by: str = ""
    stands: bool = False
    hidden_by: str | None = None
    replaced_by: str | None = None
    id: int | None = None
    stored: PartState | None = None

    @classmethod
    def of(cls, model: Measurement | Winner | Pin, sender: str) -> Part:
        """Return a part that is not stored yet."""
        value = model.model_dump(mode="json", exclude_none=True)
        text = canonical_json(value)
        digest = hashlib.sha256(text.encode()).hexdigest()
        config = model.config.digest if model.config else ""
        by = model.by if isinstance(model, Measurement) else ""
        part = cls(_KINDS[type(model)], config, digest, text, sender, by)
        part.value, part.model = value, model
        return part

    @property
    def state(self) -> PartState:
        """What may change of its row."""
        return PartState(self.hidden_by, self.replaced_by, self.stands, self.text)

    @cached_property
    def value(self) -> dict[str, Any]:
        """Its parsed text: parsing a model would take ten times as long."""
        value: dict[str, Any] = json.loads(self.text)
        return value

    @cached_property
    def model(self) -> Any:
        """The part as its model."""
        return _MODELS[self.kind].model_validate_json(self.text)


@dataclass(eq=False)
class StoredRecord:
    """A record as its parts, while a transaction changes them.

    Attributes:
        scenario: The digest of the scenario.
        scenario_text: The scenario as JSON.
        launches: The recorded launches as a JSON list, or None.
        promoted: Whether it was ever promoted.
        deleted_at: When it was deleted last, in seconds since 1970; None if it never was.
        length: The characters of its stored text; None if readers got none so far.
        parts: Its parts by their digest, in the order in which they came.
        measurements: Those measurements that stand, by the digest of their config.
        winner: The winner that stands.
        pin: The pin that stands.
        is_visible: Whether readers get it: launches alone are a record until something was taken.
        is_changed: Whether what readers get, or copies may keep, has changed.
    """

    scenario: str
    scenario_text: str
    launches: str | None = None
    promoted: bool = False
    deleted_at: float | None = None
    length: int | None = None
    parts: dict[str, Part] = field(default_factory=dict)
    measurements: dict[str, Part] = field(default_factory=dict)
    winner: Part | None = None
    pin: Part | None = None
    is_visible: bool = False
    is_changed: bool = False

    def bring(self, part: Part) -> Part:
        """Add a part, or bring the same one back if it was taken; return the one that counts."""
        row = self.parts.setdefault(part.digest, part)
        row.text = row.text or part.text
        row.hidden_by = row.replaced_by = None
        return row

    def replace(self, part: Part) -> None:
        """Let a promoted part replace the measurements of its config, or the winners."""
        promoted = self.bring(part)
        for rival in self.parts.values():
            is_rival = rival.config == part.config or part.kind == "winner"
            is_shown = rival.hidden_by is None and not self._is_replaced(rival)
            if rival.kind == part.kind and is_rival and is_shown:
                rival.replaced_by = promoted.digest
        promoted.replaced_by = None

    def settle(self) -> None:
        """Let stand what follows from the parts that nobody hides, in the order of their arrival.

        What stands comes before the others: an overruled part does not return by itself, nor does
        what is given back displace what has come since.

        - Of a config, the first measurement stands until another one overrules it.
        - The first winner stands that was compared, or else the first, of those whose config has
          a timing, or was never measured.
        - The latest pin stands.
        """
        visible, measured = [], set()
        for part in self.parts.values():
            if part.kind == "measurement":
                measured.add(part.config)
            if part.hidden_by is None and not (part.replaced_by and self._is_replaced(part)):
                visible.append(part)
        visible.sort(key=attrgetter("stands"), reverse=True)
        self.measurements, self.winner, self.pin = {}, None, None
        for part in visible:
            if part.kind == "measurement":
                standing = self.measurements.get(part.config)
                has_room = standing or len(self.measurements) < MOST_MEASUREMENTS
                if has_room and (standing is None or _overrules(part.model, standing.model)):
                    self.measurements[part.config] = part
        for part in visible:
            if part.kind == "winner":
                timing = self.measurements.get(part.config)
                may_win = "failure" not in timing.value if timing else part.config not in measured
                is_first = self.winner is None or (
                    part.model.is_compared and not self.winner.model.is_compared
                )
                self.winner = part if may_win and is_first else self.winner
            elif part.kind == "pin" and (self.pin is None or _rank(part) > _rank(self.pin)):
                self.pin = part
        for part in self.parts.values():
            stands = part in (self.measurements.get(part.config), self.winner, self.pin)
            self.is_changed |= stands != part.stands
            part.stands = stands
        self.is_visible = bool(self.measurements or self.winner or self.pin) or (
            self.launches is not None and not self.is_recalled
        )

    def _is_replaced(self, part: Part) -> bool:
        """Return whether a promoted part that is not hidden has replaced a part."""
        while part.replaced_by is not None:
            promoted = self.parts.get(part.replaced_by)
            if promoted is None or promoted.hidden_by is None:
                return True
            part = promoted
        return False

    @property
    def is_recalled(self) -> bool:
        """Whether anything of it was taken from readers."""
        hidden = any(map(attrgetter("hidden_by"), self.parts.values()))
        return hidden or self.deleted_at is not None

    @property
    def launch_texts(self) -> list[str]:
        """The recorded launches, each as canonical JSON."""
        return [canonical_json(launch) for launch in json.loads(self.launches or "[]")]

    def add_launches(self, sent: Iterable[str]) -> None:
        """Add launches, given as JSON, of which there is room; what is recorded stays."""
        recorded = self.launch_texts
        joined = dict.fromkeys((*recorded, *sorted(sent)))
        if len(joined) > len(recorded) and len(recorded) < MOST_LAUNCHES:
            self.launches = f"[{', '.join(sorted(list(joined)[:MOST_LAUNCHES]))}]"
            self.is_changed = True

    def render(self) -> tuple[str, dict[str, Any]]:
        """Return its canonical JSON, which joins the texts of what stands, and its numbers."""
        winner = self.winner.value if self.winner else {}
        pinned = self.pin.value.get("config") if self.pin else None
        chosen = pinned or winner.get("config")
        texts: list[tuple[str, str]] = []
        medians: list[float] = []
        seconds: list[float] = []
        median = None
        for part in self.measurements.values():
            texts.append((canonical_json(part.value["config"]), part.text))
            seconds.append(part.value.get("seconds", 0.0))
            if "median" in part.value:
                medians.append(part.value["median"])
                if part.value["config"] == chosen:
                    median = medians[-1]
        numbers = {
            "chosen": canonical_json(chosen) if chosen else None,
            "median": median,
            "best": min(medians, default=None),
            "slowest": max(medians, default=None),
            "configs": len(seconds),
            "failed": len(seconds) - len(medians),
            "seconds": math.fsum(seconds),
            "pinned": pinned is not None,
            "compared": True if self.winner and self.winner.model.is_compared else None,
        }
        fields = [f'"launches": {self.launches}'] if self.launches else []
        fields.append(f'"measurements": [{", ".join(map(itemgetter(1), sorted(texts)))}]')
        if self.pin is not None:
            fields.append(f'"pin": {self.pin.text}')
        fields.append(f'"scenario": {self.scenario_text}')
        if self.winner is not None:
            fields.append(f'"winner": {self.winner.text}')
        return f"{{{', '.join(fields)}}}", numbers


def _overrules(measurement: Measurement, standing: Measurement) -> bool:
    """Return whether a measurement replaces the one that stands, which came first.

    It does if it found wrong results; if it is a timing and the other a failure, which may be one
    machine's; or if it is a timing over all cases of the other one, and over more.
    """
    if measurement.is_wrong or standing.is_wrong:
        return measurement.is_wrong and not standing.is_wrong
    more_cases = set(measurement.cases or ()) > set(standing.cases or ())
    return is_credible(measurement) and (not is_credible(standing) or more_cases)


def _rank(pin: Part) -> tuple[Any, str]:
    """Return a key that is greatest for the latest of several pins, as copies choose it."""
    return pin.model.at, pin.text


def receive(
    record: StoredRecord, sent: Record, sender: str, present: datetime, *, pins: bool, restore: bool
) -> int:
    """Add to a record what a client sent.

    Left out are measurements that were skipped for want of memory, or that are refused: what was
    hidden or is older than the record's deletion, what is dated ahead, timings that no launch can
    have, and new configs for which the record has no room. What stands is never displaced for want
    of room, so that nobody can empty a record by filling it. A winner goes with its measurement.

    Args:
        record: The stored record, or a new one.
        sent: The record that was sent.
        sender: Who sent it.
        present: The present time, by a clock that all replicas share: each would otherwise take
            back what it holds to be dated ahead, and others do not.
        pins: Whether a pin in `sent` counts, which only an admin's does.
        restore: Whether what is hidden comes back, as an admin's import brings it.

    Returns:
        The number of measurements that were refused.
    """
    refused, blocked, winner = 0, set(), None
    for model in (*sent.measurements, sent.winner, sent.pin if pins else None):
        if model is None or (isinstance(model, Measurement) and model.skipped):
            continue
        part = Part.of(model, sender)
        if part.kind == "winner" and part.config in blocked:
            continue
        if _admit(record, part, present, restore):
            winner = part if part.kind == "winner" else winner
        elif part.kind == "measurement":
            refused += 1
            blocked.add(part.config)
    record.settle()
    if sent.launches and (record.is_visible or not record.is_recalled):
        record.add_launches(launch.text for launch in sent.launches)
    # A winner that loses is not kept: each tune of a fleet brings another one.
    if winner and not winner.stands and record.parts[winner.digest] is winner:
        del record.parts[winner.digest]
    return refused


def _admit(record: StoredRecord, part: Part, present: datetime, restore: bool) -> bool:
    """Add a part to a record, unless it is refused; return whether the record has it now."""
    stored, model = record.parts.get(part.digest), part.model
    is_taken = stored is not None and stored.hidden_by is not None
    if record.deleted_at is not None:
        is_taken |= model.at.timestamp() <= record.deleted_at
    if (is_taken and not restore) or model.at - present > CLOCK_TOLERANCE:
        return False
    if part.kind == "measurement":
        if model.failure is None and not is_credible(model):
            return False
        if part.config not in record.measurements:
            if len(record.measurements) >= MOST_MEASUREMENTS:
                return False
            record.measurements[part.config] = part
    if stored is None or is_taken:
        record.bring(part)
    return True


def promote(record: StoredRecord, source: StoredRecord, sender: str, present: datetime) -> None:
    """Promote a record: its measurements and winner replace those of another one, whose pin stays.

    Args:
        record: The whole record that is to change.
        source: The record to promote.
        sender: Who promotes it, and from where.
        present: The present time by the database's clock.

    Raises:
        TooLargeError: The record would have more measurements than one may have.
    """
    configs = record.measurements.keys() | source.measurements.keys()
    if len(configs) > max(MOST_MEASUREMENTS, len(record.measurements)):
        raise TooLargeError(
            f"the record of {Scenario.model_validate_json(record.scenario_text)} would have "
            f"{len(configs)} measurements, and may have {MOST_MEASUREMENTS}: delete it in one of "
            "the namespaces"
        )
    for theirs in source.measurements.values():
        ours = record.measurements.get(theirs.config)
        if ours is None or ours.digest != theirs.digest:
            record.replace(Part.of(theirs.model, sender))
    record.add_launches(source.launch_texts)
    if source.winner is not None:
        current = record.winner.model if record.winner else None
        promoted = _promoted_winner(current, source.winner.model, present)
        if promoted != current:
            record.replace(Part.of(promoted, sender))
    record.is_changed |= not record.promoted
    record.promoted = True


def _promoted_winner(current: Winner | None, source: Winner, present: datetime) -> Winner:
    if current is None:
        return source
    if current.is_compared != source.is_compared:  # all stores prefer the one that was compared
        return source if source.is_compared else current
    if source.config == current.config:
        return current
    # Local stores keep the later of two winners: the promoted one must be the later one.
    if source.at > current.at:
        return source
    return source.model_copy(update={"at": moment_after(current.at, present)})
