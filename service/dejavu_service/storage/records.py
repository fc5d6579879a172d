"""Records as their append-only parts, of which acts hide some, and the writing of both."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    delete,
    false,
    func,
    or_,
    select,
    tuple_,
    update,
)

from dejavu_cache.model.record import MOST_LAUNCHES, Measurement, Pin, Winner, are_compared
from dejavu_cache.model.record import OutputVerdict as Verdict
from dejavu_cache.model.scenario import Config, Scenario, canonical_json

from ..errors import TooLargeError
from . import summaries
from .sql import chunks, epoch, excluded, insert
from .summaries import Summary
from .tables import acts, parts, records, writers
from .tables import summaries as summary_table

__all__ = [
    "Act",
    "Part",
    "Saved",
    "StoredRecord",
    "add_act",
    "delete_records",
    "delete_unpinned",
    "list_scenarios",
    "list_senders",
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

    def __post_init__(self) -> None:
        """Remember what is stored."""
        self._stored = self._state if self.id is not None else None

    @classmethod
    def of(cls, model: Measurement | Winner | Pin, sender: str) -> Part:
        """Return a part that is not stored yet."""
        value = model.model_dump(mode="json", exclude_none=True)
        text = canonical_json(value)
        digest = hashlib.sha256(text.encode()).hexdigest()
        config = model.config.digest if model.config else ""
        kind, by = _KINDS[type(model)], model.by if isinstance(model, Measurement) else ""
        part = cls(kind, config, digest, text, sender, by)
        part.value, part.model = value, model
        return part

    @property
    def _state(self) -> tuple[bool, str | None, str]:
        return self.stands, self.hidden_by, self.text

    @property
    def is_changed(self) -> bool:
        """Return whether its row differs, or is not there."""
        return self._state != self._stored

    @property
    def counts(self) -> tuple[int, int]:
        """Return by how much the numbers of visible and of standing measurements have changed."""
        if self.kind != "measurement":
            return 0, 0
        stood, hidden_by, _ = self._stored or (False, "nothing", "")
        return (self.hidden_by is None) - (hidden_by is None), self.stands - stood

    @property
    def is_refilled(self) -> bool:
        """Return whether its row has lost its text, and gets it again."""
        return self._stored is not None and self._stored[2] != self.text

    def sent_by(self, sender: str) -> Part:
        """Return the part as somebody else sends it."""
        return Part(self.kind, self.config, self.digest, self.text, sender, self.measured_by)

    @cached_property
    def value(self) -> dict[str, Any]:
        """Return the parsed text: parsing a model would take ten times as long."""
        value: dict[str, Any] = json.loads(self.text)
        return value

    @cached_property
    def model(self) -> Any:
        """Return the part as its model."""
        return _MODELS[self.kind].model_validate_json(self.text)

    @cached_property
    def config_text(self) -> str:
        """Return the config as canonical JSON."""
        known: Config | None = self.model.config if "model" in self.__dict__ else None
        return known.text if known else canonical_json(self.value["config"])

    @property
    def is_wrong(self) -> bool:
        """Return whether it says that the config's results are wrong."""
        return bool(self.value.get("failure", {}).get("kind") == "wrong")


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

    def __init__(
        self,
        scenario: str,
        scenario_text: str,
        launches: str | None = None,
        promoted: bool = False,
        deleted_at: float | None = None,
        length: int | None = None,
    ) -> None:
        """Begin without parts."""
        self.scenario, self.scenario_text = scenario, scenario_text
        self.launches, self.promoted, self.deleted_at = launches, promoted, deleted_at
        self.length = length
        self.parts: dict[str, Part] = {}
        self.measurements: dict[str, Part] = {}
        self.winner: Part | None = None
        self.pin: Part | None = None
        self.is_visible = length is not None
        self.is_changed = False

    def keep(self, part: Part) -> Part:
        """Keep a part without making it stand; return the row that has its digest."""
        row = self.parts.setdefault(part.digest, part)
        row.text = row.text or part.text
        row.hidden_by = None
        return row

    def stand(self, part: Part) -> None:
        """Make a part stand instead of the one that stands in its place."""
        row = self.keep(part)
        former = {"winner": self.winner, "pin": self.pin}.get(
            row.kind, self.measurements.get(row.config)
        )
        if former is not None:
            former.stands = False
        row.stands = self.is_changed = True
        self._place(row.kind, row.config, row)

    def fall(self, part: Part) -> None:
        """Make a part stand no more."""
        part.stands, self.is_changed = False, True
        self._place(part.kind, part.config, None)

    def hide(self, part: Part, act: str) -> None:
        """Take a part from readers, in the name of an act."""
        if part.stands:
            self.fall(part)
        part.hidden_by = act

    def _place(self, kind: str, config: str, part: Part | None) -> None:
        if kind == "winner":
            self.winner = part
        elif kind == "pin":
            self.pin = part
        elif part is None:
            del self.measurements[config]
        else:
            self.measurements[config] = part

    def load(self, part: Part) -> None:
        """Take over a stored part."""
        self.parts[part.digest] = part
        if part.stands:
            self._place(part.kind, part.config, part)

    @property
    def launch_texts(self) -> list[str]:
        """Return the recorded launches, each as canonical JSON."""
        return [canonical_json(launch) for launch in json.loads(self.launches or "[]")]

    def add_launches(self, sent: Iterable[str]) -> None:
        """Add launches, given as JSON, of which there is room for; what is recorded stays."""
        recorded = self.launch_texts
        joined = dict.fromkeys((*recorded, *sorted(sent)))
        if len(joined) > len(recorded) and len(recorded) < MOST_LAUNCHES:
            self.launches = f"[{', '.join(sorted(list(joined)[:MOST_LAUNCHES]))}]"
            self.is_changed = True

    @property
    def is_chosen(self) -> bool:
        """Return whether a tune or a person has chosen a config."""
        return self.winner is not None or self.pinned is not None

    @property
    def pinned(self) -> dict[str, Any] | None:
        """Return the config that a person chose, or None."""
        return self.pin.value.get("config") if self.pin else None

    @property
    def text(self) -> str:
        """Return the canonical JSON of the record, which joins the texts of what stands."""
        ordered = sorted(self.measurements.values(), key=lambda part: part.config_text)
        fields = [f'"launches": {self.launches}'] if self.launches else []
        fields.append(f'"measurements": [{", ".join(part.text for part in ordered)}]')
        if self.pin is not None:
            fields.append(f'"pin": {self.pin.text}')
        fields.append(f'"scenario": {self.scenario_text}')
        if self.winner is not None:
            fields.append(f'"winner": {self.winner.text}')
        return f"{{{', '.join(fields)}}}"

    @property
    def summary(self) -> Summary:
        """Return the record in numbers."""
        winner = self.winner.value if self.winner else {}
        chosen = self.pinned or winner.get("config")
        measured = [part.value for part in self.measurements.values()]
        medians = [item["median"] for item in measured if "median" in item]
        results = {
            name: Verdict.model_construct(**entry)
            for name, entry in winner.get("results", {}).items()
        }
        return Summary(
            scenario=self.scenario,
            chosen=canonical_json(chosen) if chosen else None,
            median=next(
                (item.get("median") for item in measured if item["config"] == chosen), None
            ),
            best=min(medians, default=None),
            slowest=max(medians, default=None),
            configs=len(measured),
            failed=len(measured) - len(medians),
            seconds=math.fsum(item.get("seconds", 0.0) for item in measured),
            pinned=self.pinned is not None,
            compared=are_compared(results) or None,
        )


def load(
    connection: Connection, context_id: int, scenarios: Sequence[str], *, whole: bool = False
) -> dict[str, StoredRecord]:
    """Load records by their scenario's digest, also those whose parts are all hidden.

    Args:
        connection: A transaction that has locked the context.
        context_id: The context.
        scenarios: The digests of the scenarios.
        whole: Whether to load the visible measurements that do not stand, too: a writer can send
            any number of them, and who merges needs none.
    """
    columns = [getattr(records.c, name) for name in ("scenario", "scenario_text", "launches")]
    columns += [records.c.promoted, records.c.deleted_at, func.length(records.c.text)]
    fields = [parts.c[name] for name in Part.__dataclass_fields__]
    loaded: dict[str, StoredRecord] = {}
    for chunk in chunks(scenarios):
        rows = select(*columns).where(
            records.c.context_id == context_id, records.c.scenario.in_(chunk)
        )
        loaded |= {row[0]: StoredRecord(*row) for row in connection.execute(rows)}
        query = select(parts.c.scenario, *fields).where(
            parts.c.context_id == context_id, parts.c.scenario.in_(chunk)
        )
        if not whole:
            query = query.where(
                or_(parts.c.stands, parts.c.hidden_by.is_not(None), parts.c.kind != "measurement")
            )
        for scenario, *values in connection.execute(query.order_by(parts.c.id)):
            loaded[scenario].load(Part(*values))
    return loaded


class Saved(NamedTuple):
    """Counts of what was stored.

    Attributes:
        standing: Measurements that are new or were hidden, and stand.
        beside: Those that do not stand.
        added: Records that readers did not get before, less those that they get no more.
        is_changed: Whether readers get anything else than before.
    """

    standing: int = 0
    beside: int = 0
    added: int = 0
    is_changed: bool = False


def save(
    connection: Connection,
    context_id: int,
    changed: Iterable[StoredRecord],
    present: datetime,
    *,
    act: Act | None = None,
    most_characters: int | None = None,
) -> Saved:
    """Store what has changed of records: their parts, and what readers get.

    Args:
        connection: A write transaction that has locked the context.
        context_id: The context.
        changed: The records.
        present: The present time by the database's clock.
        act: In whose name parts were hidden; stored if there are any, and it is not there yet.
        most_characters: The characters to which a record may grow.

    Raises:
        TooLargeError: A record outgrew that; the transaction must be rolled back.
    """
    changed = list(changed)
    rows = [(record, part) for record in changed for part in record.parts.values()]
    touched = [part for _, part in rows if part.is_changed]
    if act is not None and any(part.hidden_by == act.id for part in touched):
        add_act(connection, act)
    added = _save_texts(connection, context_id, changed, most_characters)
    fresh = set(_insert_parts(connection, context_id, rows))
    _update_parts(connection, [part for part in touched if part.id is not None])
    _count_writers(connection, context_id, touched, fresh, present)
    arrived = [part for part in touched if part.counts[0] > 0 and (part.id or part in fresh)]
    standing = sum(part.stands for part in arrived)
    is_changed = bool(added) or any(record.is_changed for record in changed)
    return Saved(standing, len(arrived) - standing, added, is_changed)


def _save_texts(
    connection: Connection,
    context_id: int,
    changed: Sequence[StoredRecord],
    most_characters: int | None,
) -> int:
    """Write the records' rows and summaries; return how many more readers get than before."""
    rows: list[dict[str, Any]] = []
    added = 0
    for record in changed:
        was_visible = record.length is not None
        if not record.is_changed and was_visible == record.is_visible:
            continue
        text = record.text if record.is_visible else None
        if text and most_characters and len(text) > max(most_characters, record.length or 0):
            scenario = Scenario.model_validate_json(record.scenario_text)
            raise TooLargeError(
                f"the record of {scenario} would have {len(text)} characters, and may have "
                f"{most_characters}: leave out configs or cases"
            )
        added += record.is_visible - was_visible
        rows.append(
            {
                "context_id": context_id,
                "scenario": record.scenario,
                "scenario_text": record.scenario_text,
                "launches": record.launches,
                "pinned": record.pinned is not None,
                "promoted": record.promoted,
                "text": text,
            }
        )
    if rows:
        statement = insert(connection, records).values(updated_at=epoch())
        names = ("launches", "pinned", "promoted", "updated_at", "text")
        statement = statement.on_conflict_do_update(
            index_elements=[records.c.context_id, records.c.scenario],
            set_={name: excluded(name) for name in names},
        )
        connection.execute(statement, rows)
    shown = {row["scenario"] for row in rows if row["text"] is not None}
    summaries.drop(connection, context_id, [row["scenario"] for row in rows if row["text"] is None])
    summaries.save(
        connection, context_id, [item.summary for item in changed if item.scenario in shown]
    )
    return added


def _insert_parts(
    connection: Connection, context_id: int, rows: Sequence[tuple[StoredRecord, Part]]
) -> list[Part]:
    """Insert the parts that are not stored yet, and return them."""
    new = {(record.scenario, part.digest): part for record, part in rows if part.id is None}
    if not new:
        return []
    names = ("kind", "config", "digest", "text", "stands", "hidden_by", "sender", "measured_by")
    values = [
        {
            "context_id": context_id,
            "scenario": scenario,
            **{name: getattr(part, name) for name in names},
        }
        for (scenario, _), part in new.items()
    ]
    statement = insert(connection, parts).values(received_at=epoch()).on_conflict_do_nothing()
    inserted = connection.execute(statement.returning(parts.c.scenario, parts.c.digest), values)
    return [new[scenario, digest] for scenario, digest in inserted]


def _update_parts(connection: Connection, changed: Sequence[Part]) -> None:
    by_state: dict[tuple[bool, str | None], list[int]] = defaultdict(list)
    for part in changed:
        assert part.id is not None
        by_state[part.stands, part.hidden_by].append(part.id)
    for (stands, hidden_by), ids in by_state.items():
        for chunk in chunks(ids):
            statement = update(parts).where(parts.c.id.in_(chunk))
            connection.execute(statement.values(stands=stands, hidden_by=hidden_by))
    refilled = [{"row": part.id, "content": part.text} for part in changed if part.is_refilled]
    if refilled:
        statement = update(parts).where(parts.c.id == bindparam("row"))
        connection.execute(statement.values(text=bindparam("content")), refilled)


def _count_writers(
    connection: Connection,
    context_id: int,
    touched: Iterable[Part],
    fresh: Collection[Part],
    present: datetime,
) -> None:
    """Keep the numbers of the writers' measurements; who sends a winner or a pin is noted, too."""
    counts: dict[tuple[str, str], list[float]] = {}
    for part in touched:
        if part.id is None and part not in fresh:
            continue
        count = counts.setdefault((part.sender, part.measured_by), [0, 0, 0.0])
        visible, standing = part.counts
        count[0] += visible
        count[1] += standing
        if part.id is None:
            count[2] = present.timestamp()
    rows = [
        {
            "context_id": context_id,
            "sender": sender,
            "measured_by": measured_by,
            "measurements": visible,
            "standing": standing,
            "first": last,
            "last": last,
        }
        for (sender, measured_by), (visible, standing, last) in sorted(counts.items())
    ]
    if not rows:
        return
    statement = insert(connection, writers).on_conflict_do_update(
        index_elements=list(writers.primary_key.columns),
        set_={
            "measurements": writers.c.measurements + excluded("measurements"),
            "standing": writers.c.standing + excluded("standing"),
            "last": case(
                (excluded("last") > writers.c.last, excluded("last")), else_=writers.c.last
            ),
        },
    )
    connection.execute(statement, rows)


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
    deleted = 0
    for chunk in [None] if scenarios is None else chunks(scenarios):
        hidden = [parts.c.context_id == context_id, parts.c.hidden_by.is_(None)]
        gone = [records.c.context_id == context_id, records.c.text.is_not(None)]
        if chunk is not None:
            hidden.append(parts.c.scenario.in_(chunk))
            gone.append(records.c.scenario.in_(chunk))
        _uncount_writers(connection, context_id, and_(*hidden))
        connection.execute(
            update(parts).where(*hidden).values(hidden_by=act.id, stands=false(), text="")
        )
        deleted += _empty(connection, and_(*gone), deleted_at=epoch())
    return deleted


def delete_unpinned(connection: Connection, context_id: int) -> int:
    """Delete a context's records that are neither pinned nor promoted; return their number.

    Nothing is recalled, and what was hidden before stays hidden.
    """
    is_kept = records.c.pinned | records.c.promoted
    unpinned = and_(records.c.context_id == context_id, records.c.text.is_not(None), ~is_kept)
    doomed = and_(
        parts.c.context_id == context_id,
        parts.c.hidden_by.is_(None),
        parts.c.scenario.in_(select(records.c.scenario).where(unpinned)),
    )
    _uncount_writers(connection, context_id, doomed)
    connection.execute(delete(parts).where(doomed))
    deleted = _empty(connection, unpinned)
    hidden = select(parts.c.id).where(
        parts.c.context_id == records.c.context_id, parts.c.scenario == records.c.scenario
    )
    is_needless = and_(records.c.text.is_(None), records.c.deleted_at.is_(None), ~hidden.exists())
    connection.execute(delete(records).where(records.c.context_id == context_id, is_needless))
    return deleted


def _empty(connection: Connection, chosen: ColumnElement[bool], **values: Any) -> int:
    """Leave nothing of records to readers, and return their number."""
    key = tuple_(summary_table.c.context_id, summary_table.c.scenario)
    chosen_keys = select(records.c.context_id, records.c.scenario).where(chosen)
    connection.execute(delete(summary_table).where(key.in_(chosen_keys)))
    values |= {"text": None, "launches": None, "pinned": false(), "promoted": false()}
    return connection.execute(update(records).where(chosen).values(values)).rowcount


def _uncount_writers(connection: Connection, context_id: int, doomed: ColumnElement[bool]) -> None:
    """Take visible measurements that are about to go from the numbers of their writers."""
    standing = func.count().filter(parts.c.stands)
    counts = (
        select(parts.c.sender, parts.c.measured_by, func.count(), standing)
        .where(doomed, parts.c.kind == "measurement")
        .group_by(parts.c.sender, parts.c.measured_by)
    )
    for sender, measured_by, gone, stood in connection.execute(counts).all():
        connection.execute(
            update(writers)
            .where(
                writers.c.context_id == context_id,
                writers.c.sender == sender,
                writers.c.measured_by == measured_by,
            )
            .values(measurements=writers.c.measurements - gone, standing=writers.c.standing - stood)
        )


def list_scenarios(connection: Connection, context_id: int) -> list[str]:
    """List the digests of the scenarios that have records in a context, in their order."""
    query = select(records.c.scenario).where(
        records.c.context_id == context_id, records.c.text.is_not(None)
    )
    return list(connection.execute(query.order_by(records.c.scenario)).scalars())


def list_senders(connection: Connection, context_id: int) -> set[str]:
    """Return who sent the measurements and the winners of a context that stand."""
    query = select(parts.c.sender).where(
        parts.c.context_id == context_id, parts.c.stands, parts.c.kind != "pin"
    )
    return set(connection.execute(query.distinct()).scalars())
