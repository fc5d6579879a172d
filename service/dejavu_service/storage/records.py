"""Records as their append-only parts, of which acts hide some, and the writing of both."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    false,
    func,
    or_,
    select,
    update,
)

from dejavu_cache.model.record import MOST_LAUNCHES, Measurement, Pin, Winner
from dejavu_cache.model.scenario import Scenario, canonical_json

from ..errors import TooLargeError
from . import contexts
from .contexts import LockedContext
from .sql import chunks, epoch, excluded, insert
from .summaries import Summary
from .tables import acts, misses, parts, records

__all__ = [
    "Act",
    "Part",
    "StoredRecord",
    "add_act",
    "delete_records",
    "delete_unpinned",
    "list_scenarios",
    "load",
    "save",
]

_Kind = Literal["measurement", "winner", "pin"]
_MODELS: dict[_Kind, Any] = {"measurement": Measurement, "winner": Winner, "pin": Pin}
_KINDS: dict[Any, _Kind] = {model: kind for kind, model in _MODELS.items()}


class Act(NamedTuple):
    """What takes parts from readers: a deletion, a promotion, a quarantine or a new pin.

    Attributes:
        wanted: What it is to take, as JSON.
    """

    id: str
    namespace: str
    kind: Literal["delete", "pin", "promote", "quarantine"]
    actor: str
    wanted: str = "{}"


@dataclass(eq=False)
class Part:
    """A measurement, a winner or a pin of one scenario.

    Attributes:
        kind: Which of them it is.
        config: The digest of its config; empty for a pin that was taken back.
        digest: The digest of its text.
        text: The part as canonical JSON; empty if its record was deleted.
        sender: Who sent it.
        measured_by: Which user and host measured it.
        stands: Whether it is in the record that readers get.
        hidden_by: The id of the act that took it from readers, or None.
        id: The id of its row; None if it is not stored yet.
        stored: The `state` of its row; None if it is not stored yet.
    """

    kind: _Kind
    config: str
    digest: str
    text: str
    sender: str
    measured_by: str = ""
    stands: bool = False
    hidden_by: str | None = None
    id: int | None = None
    stored: tuple[bool, str | None, str] | None = None

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
    def state(self) -> tuple[bool, str | None, str]:
        """What may change of its row."""
        return self.stands, self.hidden_by, self.text

    @property
    def is_new_measurement(self) -> bool:
        """Whether it is a measurement that was not stored, or was hidden."""
        was_visible = self.stored is not None and self.stored[1] is None
        return self.kind == "measurement" and self.hidden_by is None and not was_visible

    @cached_property
    def value(self) -> dict[str, Any]:
        """Its parsed text: parsing a model would take ten times as long."""
        value: dict[str, Any] = json.loads(self.text)
        return value

    @cached_property
    def model(self) -> Any:
        """The part as its model."""
        return _MODELS[self.kind].model_validate_json(self.text)

    @cached_property
    def config_text(self) -> str:
        """Its config as canonical JSON."""
        return canonical_json(self.value["config"])


@dataclass(eq=False)
class StoredRecord:
    """A record as its parts, while a transaction changes them.

    Attributes:
        scenario: The digest of the scenario.
        scenario_text: The scenario as JSON.
        launches: The recorded launches as a JSON list, or None.
        promoted: Whether it was ever promoted.
        deleted_at: When it was deleted last, in seconds since 1970; None if it never was.
        length: The characters of its stored text; None if there is none.
        parts: Its parts by their digest, in the order in which they came.
        measurements: Those measurements that stand, by the digest of their config.
        winner: The winner that stands.
        pin: The pin that stands.
        is_visible: Whether readers get it.
        is_changed: Whether what readers get has changed.
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

    def keep(self, part: Part) -> Part:
        """Keep a part without making it stand; return the row that has its digest."""
        row = self.parts.setdefault(part.digest, part)
        row.text = row.text or part.text
        row.hidden_by = None
        return row

    def stand(self, part: Part) -> None:
        """Make a part stand instead of the one that stands in its place."""
        row = self.keep(part)
        former = (
            self.measurements.get(row.config)
            if row.kind == "measurement"
            else getattr(self, row.kind)
        )
        if former is not None:
            former.stands = False
        row.stands = self.is_changed = True
        self.place(row)

    def fall(self, part: Part) -> None:
        """Make a part stand no more."""
        part.stands, self.is_changed = False, True
        if part.kind == "measurement":
            del self.measurements[part.config]
        else:
            setattr(self, part.kind, None)

    def hide(self, part: Part, act: str) -> None:
        """Take a part from readers, in the name of an act."""
        if part.stands:
            self.fall(part)
        part.hidden_by = act

    def place(self, part: Part) -> None:
        """Put a part that stands in its place."""
        if part.kind == "measurement":
            self.measurements[part.config] = part
        else:
            setattr(self, part.kind, part)

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

    @property
    def text(self) -> str:
        """The canonical JSON of the record, which joins the texts of what stands."""
        ordered = sorted(self.measurements.values(), key=attrgetter("config_text"))
        fields = [f'"launches": {self.launches}'] if self.launches else []
        fields.append(f'"measurements": [{", ".join(map(attrgetter("text"), ordered))}]')
        if self.pin is not None:
            fields.append(f'"pin": {self.pin.text}')
        fields.append(f'"scenario": {self.scenario_text}')
        if self.winner is not None:
            fields.append(f'"winner": {self.winner.text}')
        return f"{{{', '.join(fields)}}}"

    @property
    def summary(self) -> Summary:
        """The record in numbers."""
        winner = self.winner.value if self.winner else {}
        is_compared = self.winner is not None and self.winner.model.is_compared
        pinned = self.pin.value.get("config") if self.pin else None
        chosen = pinned or winner.get("config")
        medians: list[float] = []
        seconds: list[float] = []
        median = None
        for part in self.measurements.values():
            seconds.append(part.value.get("seconds", 0.0))
            if "median" in part.value:
                medians.append(part.value["median"])
                if part.value["config"] == chosen:
                    median = medians[-1]
        return Summary(
            scenario=self.scenario,
            chosen=canonical_json(chosen) if chosen else None,
            median=median,
            best=min(medians, default=None),
            slowest=max(medians, default=None),
            configs=len(seconds),
            failed=len(seconds) - len(medians),
            seconds=math.fsum(seconds),
            pinned=pinned is not None,
            compared=True if is_compared else None,
        )


# What an upsert sets of rows that are there.
_NUMBERS = [name for name in Summary._fields if name not in ("scenario", "pinned")]
_REPLACED = {
    name: excluded(name)
    for name in (*_NUMBERS, "launches", "pinned", "promoted", "changed_at", "text")
}
_RECORD = [
    *(records.c[name] for name in ("scenario", "scenario_text", "launches", "promoted")),
    records.c.deleted_at,
    func.length(records.c.text),
]
_PART = [parts.c[name] for name in Part.__dataclass_fields__ if name != "stored"]


def load(
    connection: Connection, context_id: int, scenarios: Sequence[str], *, whole: bool = False
) -> dict[str, StoredRecord]:
    """Load records by their scenario's digest, also those whose parts are all hidden.

    Args:
        connection: A transaction that has locked the context.
        context_id: The context.
        scenarios: The digests of the scenarios, a thousand at most.
        whole: Whether to load the visible measurements that do not stand, too: a writer can send
            any number of them, and who merges needs none.
    """
    is_needed = or_(parts.c.stands, parts.c.hidden_by.is_not(None), parts.c.kind != "measurement")
    loaded: dict[str, StoredRecord] = {}
    rows = select(*_RECORD).where(
        records.c.context_id == context_id, records.c.scenario.in_(scenarios)
    )
    for row in connection.execute(rows):
        loaded[row[0]] = record = StoredRecord(*row)
        record.is_visible = record.length is not None
    if not loaded:
        return loaded
    query = select(parts.c.scenario, *_PART).where(
        parts.c.context_id == context_id, parts.c.scenario.in_(list(loaded))
    )
    if not whole:
        query = query.where(is_needed)
    for scenario, *values in connection.execute(query.order_by(parts.c.id)):
        part, record = Part(*values), loaded[scenario]
        part.stored = part.state
        record.parts[part.digest] = part
        if part.stands:
            record.place(part)
    return loaded


def save(
    connection: Connection,
    context: LockedContext,
    changed: Collection[StoredRecord],
    by: str,
    *,
    act: Act | None = None,
    most_characters: int | None = None,
) -> list[Part]:
    """Store what has changed of records: their parts, and what readers get.

    Args:
        connection: A write transaction.
        context: The context.
        changed: The records.
        by: Who changes them.
        act: In whose name parts were hidden; stored if there are any, and it is not there yet.
        most_characters: The characters to which a record may grow.

    Returns:
        The parts that are new or have changed.

    Raises:
        TooLargeError: A record outgrew that; the transaction must be rolled back.
    """
    shown: list[StoredRecord] = []
    new: dict[tuple[str, str], Part] = {}
    stored: list[Part] = []
    hides, added = False, 0
    for record in changed:
        gained = record.is_visible - (record.length is not None)
        if record.is_changed or gained:
            shown.append(record)
            added += gained
        for part in record.parts.values():
            hides |= act is not None and part.hidden_by == act.id
            if part.stored is None:
                new[record.scenario, part.digest] = part
            elif part.stored != part.state:
                stored.append(part)
    if act is not None and hides:
        add_act(connection, act)
    if shown:
        _save_records(connection, context.id, shown, most_characters)
        contexts.bump_revision(connection, context.id, added=added, by=by)
    if stored:
        _update_parts(connection, stored)
    if new:
        stored += _insert_parts(connection, context.id, new)
    return stored


def _save_records(
    connection: Connection,
    context_id: int,
    changed: Sequence[StoredRecord],
    most_characters: int | None,
) -> None:
    """Write the records' rows; what is tuned now is missed no more."""
    rows: list[dict[str, Any]] = []
    tuned: list[str] = []
    for record in changed:
        text = record.text if record.is_visible else None
        if text and most_characters and len(text) > max(most_characters, record.length or 0):
            scenario = Scenario.model_validate_json(record.scenario_text)
            raise TooLargeError(
                f"the record of {scenario} would have {len(text)} characters, and may have "
                f"{most_characters}: leave out configs or cases"
            )
        summary = record.summary._asdict()
        if text is None:
            summary |= dict.fromkeys(_NUMBERS)
        elif summary["chosen"] is not None:
            tuned.append(record.scenario)
        rows.append(
            {
                "context_id": context_id,
                "scenario_text": record.scenario_text,
                "launches": record.launches,
                "promoted": record.promoted,
                "text": text,
                **summary,
            }
        )
    statement = insert(connection, records).values(changed_at=epoch())
    key = [records.c.context_id, records.c.scenario]
    statement = statement.on_conflict_do_update(index_elements=key, set_=_REPLACED)
    connection.execute(statement, rows)
    is_tuned = (misses.c.context_id == context_id, misses.c.scenario.in_(tuned))
    connection.execute(delete(misses).where(*is_tuned))


def _insert_parts(
    connection: Connection, context_id: int, new: Mapping[tuple[str, str], Part]
) -> list[Part]:
    """Insert parts, given by scenario and digest, and return those that were not there."""
    names = ("kind", "config", "digest", "text", "stands", "hidden_by", "sender", "measured_by")
    values = attrgetter(*names)
    rows = []
    for (scenario, _), part in new.items():
        row = {"context_id": context_id, "scenario": scenario}
        rows.append(row | dict(zip(names, values(part), strict=True)))
    statement = insert(connection, parts).values(received_at=epoch()).on_conflict_do_nothing()
    inserted = connection.execute(statement.returning(parts.c.scenario, parts.c.digest), rows)
    return [new[scenario, digest] for scenario, digest in inserted]


def _update_parts(connection: Connection, changed: Iterable[Part]) -> None:
    """Update the rows of parts."""
    by_state: dict[tuple[bool, str | None], list[int | None]] = defaultdict(list)
    refilled = []
    for part in changed:
        by_state[part.stands, part.hidden_by].append(part.id)
        if part.stored and part.stored[2] != part.text:
            refilled.append({"row": part.id, "content": part.text})
    for (stands, hidden_by), ids in by_state.items():
        for chunk in chunks(ids):
            statement = update(parts).where(parts.c.id.in_(chunk))
            connection.execute(statement.values(stands=stands, hidden_by=hidden_by))
    if refilled:
        statement = update(parts).where(parts.c.id == bindparam("row"))
        connection.execute(statement.values(text=bindparam("content")), refilled)


def add_act(connection: Connection, act: Act) -> None:
    """Store an act, unless it is there already."""
    statement = insert(connection, acts).values(**act._asdict(), at=epoch())
    connection.execute(statement.on_conflict_do_nothing())


def delete_records(
    connection: Connection, context_id: int, scenarios: Sequence[str] | None, act: Act
) -> int:
    """Hide all parts of records, all of a context if `scenarios` is None; return their number.

    Of the parts, only the digests are kept: nobody can take back a deletion.
    """
    add_act(connection, act)
    chosen = records.c.context_id == context_id
    if scenarios is not None:
        chosen = and_(chosen, records.c.scenario.in_(scenarios))
    hidden = {"hidden_by": act.id, "stands": false(), "text": ""}
    connection.execute(update(parts).where(_visible_parts(context_id, chosen)).values(hidden))
    return _empty(connection, context_id, chosen, act.actor, deleted_at=epoch())


def delete_unpinned(connection: Connection, context_id: int) -> int:
    """Delete a context's records that are neither pinned nor promoted; return their number.

    Nothing is recalled, and what was hidden before stays hidden.
    """
    is_kept = records.c.pinned | records.c.promoted | records.c.text.is_(None)
    chosen = and_(records.c.context_id == context_id, ~is_kept)
    connection.execute(delete(parts).where(_visible_parts(context_id, chosen)))
    deleted = _empty(connection, context_id, chosen, None)
    hidden = select(parts.c.id).where(
        parts.c.context_id == records.c.context_id, parts.c.scenario == records.c.scenario
    )
    is_needless = and_(records.c.text.is_(None), records.c.deleted_at.is_(None), ~hidden.exists())
    connection.execute(delete(records).where(records.c.context_id == context_id, is_needless))
    return deleted


def _visible_parts(context_id: int, chosen: ColumnElement[bool]) -> ColumnElement[bool]:
    return and_(
        parts.c.context_id == context_id,
        parts.c.hidden_by.is_(None),
        parts.c.scenario.in_(select(records.c.scenario).where(chosen)),
    )


def _empty(
    connection: Connection,
    context_id: int,
    chosen: ColumnElement[bool],
    by: str | None,
    **values: Any,
) -> int:
    """Leave nothing of records to readers, and return their number."""
    shown = and_(chosen, records.c.text.is_not(None))
    values |= dict.fromkeys((*_NUMBERS, "text", "launches"))
    values |= {"pinned": false(), "promoted": false()}
    deleted = connection.execute(update(records).where(shown).values(values)).rowcount
    if deleted:
        contexts.bump_revision(connection, context_id, added=-deleted, by=by)
    return deleted


def list_scenarios(connection: Connection, context_id: int) -> list[str]:
    """List the digests of the scenarios that have records in a context, in their order."""
    query = select(records.c.scenario).where(
        records.c.context_id == context_id, records.c.text.is_not(None)
    )
    return list(connection.execute(query.order_by(records.c.scenario)).scalars())
