"""The rows of records and their parts: loaded, settled and stored by whoever changes them."""

import secrets
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal

import sqlalchemy as sa

from dejavu_cache.model.scenario import Scenario, canonical_json

from ..errors import TooLargeError
from . import contexts
from .contexts import LockedContext
from .merging import Part, PartState, StoredRecord
from .sql import epoch, insert
from .tables import acts, misses, parts, records

_NUMBERS = ("chosen", "median", "best", "slowest", "configs", "failed", "seconds", "compared")
# What an upsert sets of rows that are there. SQLAlchemy's `excluded` would copy all columns for
# each statement, a quarter of its time.
_REPLACED: dict[str, Any] = {
    name: sa.literal_column(f"excluded.{name}")
    for name in (*_NUMBERS, "launches", "pinned", "promoted", "changed_at", "text")
}
_RECORD = [
    *(records.c[name] for name in ("scenario", "scenario_text", "launches", "promoted")),
    records.c.deleted_at,
    sa.func.length(records.c.text),
]
_SHOWN_TEXT = sa.case((parts.c.hidden_by.is_(None), parts.c.text), else_="")
_PART = [
    _SHOWN_TEXT if name == "text" else parts.c[name]
    for name in Part.__dataclass_fields__
    if name != "stored"
]


def load(
    connection: sa.Connection, context_id: int, scenarios: Sequence[str], *, whole: bool = False
) -> dict[str, StoredRecord]:
    """Load up to a thousand records by their scenario's digest, also those whose parts are hidden.

    The transaction has locked the context. `whole` records have the visible measurements that do
    not stand, too: a writer can send any number of them, and who merges needs none.
    """
    is_needed = sa.or_(
        parts.c.stands,
        parts.c.hidden_by.is_not(None),
        parts.c.replaced_by.is_not(None),
        parts.c.kind != "measurement",
    )
    loaded: dict[str, StoredRecord] = {}
    rows = sa.select(*_RECORD).where(
        records.c.context_id == context_id, records.c.scenario.in_(scenarios)
    )
    for row in connection.execute(rows):
        loaded[row[0]] = StoredRecord(*row)
    if not loaded:
        return loaded
    query = sa.select(parts.c.scenario, *_PART).where(
        parts.c.context_id == context_id, parts.c.scenario.in_(list(loaded))
    )
    if not whole:
        query = query.where(is_needed)
    for scenario, *values in connection.execute(query.order_by(parts.c.id)):
        part, record = Part(*values), loaded[scenario]
        part.stored = part.state
        record.parts[part.digest] = part
        if part.stands and part.kind == "measurement":
            record.measurements[part.config] = part
        elif part.stands:
            setattr(record, part.kind, part)
    return loaded


def save(
    connection: sa.Connection,
    context: LockedContext,
    changed: Collection[StoredRecord],
    by: str,
    *,
    most_characters: int | None = None,
) -> list[Part]:
    """Settle records, and store what has changed: their parts, and what readers get.

    Returns:
        The parts that are new, or were hidden and are not any more.

    Raises:
        TooLargeError: A record outgrew `most_characters`; the transaction must be rolled back.
    """
    shown: list[StoredRecord] = []
    new: dict[tuple[str, str], Part] = {}
    stored: list[Part] = []
    back: list[Part] = []
    added = 0
    for record in changed:
        record.settle()
        gained = record.is_visible - (record.length is not None)
        if record.is_changed or gained:
            shown.append(record)
            added += gained
        for part in record.parts.values():
            if part.stored is None:
                new[record.scenario, part.digest] = part
            elif part.stored != part.state:
                stored.append(part)
                if part.stored.hidden_by and not part.hidden_by:
                    back.append(part)
    if shown:
        _save_records(connection, context.id, shown, most_characters)
        contexts.bump_revision(connection, context.id, added=added, by=by)
    if stored:
        _update_parts(connection, stored)
    return back + _insert_parts(connection, context.id, new)


def _save_records(
    connection: sa.Connection,
    context_id: int,
    changed: Sequence[StoredRecord],
    most_characters: int | None,
) -> None:
    """Write the records' rows; what is tuned now is missed no more."""
    rows: list[dict[str, Any]] = []
    tuned: list[str] = []
    for record in changed:
        text: str | None = None
        numbers: dict[str, Any] = {**dict.fromkeys(_NUMBERS), "pinned": False}
        if record.is_visible:
            text, numbers = record.render()
        if text and most_characters and len(text) > max(most_characters, record.length or 0):
            scenario = Scenario.model_validate_json(record.scenario_text)
            raise TooLargeError(
                f"the record of {scenario} would have {len(text)} characters, and may have "
                f"{most_characters}: leave out configs or cases"
            )
        if numbers["chosen"] is not None:
            tuned.append(record.scenario)
        rows.append(
            {
                "context_id": context_id,
                "scenario": record.scenario,
                "scenario_text": record.scenario_text,
                "launches": record.launches,
                "promoted": record.promoted,
                "text": text,
                **numbers,
            }
        )
    statement = insert(connection, records).values(changed_at=epoch())
    key = [records.c.context_id, records.c.scenario]
    statement = statement.on_conflict_do_update(index_elements=key, set_=_REPLACED)
    connection.execute(statement, rows)
    is_tuned = (misses.c.context_id == context_id, misses.c.scenario.in_(tuned))
    connection.execute(sa.delete(misses).where(*is_tuned))


def _insert_parts(
    connection: sa.Connection, context_id: int, new: Mapping[tuple[str, str], Part]
) -> list[Part]:
    """Insert parts, given by scenario and digest, and return those that were not there."""
    names = ("kind", "config", "digest", "sender", "measured_by", *PartState._fields)
    values = attrgetter(*names)
    rows = []
    for (scenario, _), part in new.items():
        row = {"context_id": context_id, "scenario": scenario}
        rows.append(row | dict(zip(names, values(part), strict=True)))
    if not rows:
        return []
    statement = insert(connection, parts).values(received_at=epoch()).on_conflict_do_nothing()
    inserted = connection.execute(statement.returning(parts.c.scenario, parts.c.digest), rows)
    return list(map(new.__getitem__, map(tuple, inserted)))


def _update_parts(connection: sa.Connection, changed: Sequence[Part]) -> None:
    """Update the rows of parts, with the texts of those that were deleted and come back."""
    statement = sa.update(parts).where(parts.c.id == sa.bindparam("row"))
    states, texts = [], []
    for part in changed:
        state = part.state._asdict() | {"row": part.id}
        text = state.pop("text")
        states.append(state)
        if part.stored and part.stored.text != text:
            texts.append({"row": part.id, "text": text})
    for rows in filter(None, (states, texts)):
        connection.execute(statement, rows)


def hide(
    connection: sa.Connection,
    context: LockedContext,
    scenarios: Sequence[str],
    meant: sa.ColumnElement[bool],
    act: str | None,
    by: str,
) -> None:
    """Hide those parts of some records that are meant, or give them back if `act` is None."""
    own = (parts.c.context_id == context.id, parts.c.scenario.in_(scenarios))
    values = {"hidden_by": act, "stands": sa.false()}
    connection.execute(sa.update(parts).where(*own, meant).values(values))
    concerned = load(connection, context.id, scenarios, whole=True).values()
    for record in concerned:
        record.is_changed = True
    save(connection, context, concerned, by)


def add_act(
    connection: sa.Connection,
    namespace: str,
    kind: Literal["delete", "quarantine"],
    actor: str,
    wanted: object,
) -> str:
    """Store an act, which takes parts from readers, with what it is to take; return its id."""
    act = secrets.token_hex(8)
    values = {"id": act, "namespace": namespace, "kind": kind, "actor": actor}
    statement = insert(connection, acts).values(**values, wanted=canonical_json(wanted), at=epoch())
    connection.execute(statement)
    return act


def delete_records(
    connection: sa.Connection, context: LockedContext, scenarios: Sequence[str] | None, by: str
) -> int:
    """Hide all parts of records, all of a context if `scenarios` is None; return their number.

    Of the parts, only the digests are kept: nobody can take back a deletion. Those that are in
    quarantine go as well, which an undo would give back otherwise.
    """
    wanted = {"context": context.digest, "scenarios": scenarios}
    act = add_act(connection, context.namespace, "delete", by, wanted)
    chosen = records.c.context_id == context.id
    if scenarios is not None:
        chosen = sa.and_(chosen, records.c.scenario.in_(scenarios))
    hidden = {"hidden_by": act, "stands": sa.false(), "text": ""}
    connection.execute(sa.update(parts).where(_parts_of(context.id, chosen)).values(hidden))
    return _empty(connection, context.id, chosen, by, deleted_at=epoch())


def delete_unpinned(connection: sa.Connection, context_id: int) -> int:
    """Delete a context's records that are neither pinned nor promoted; return their number.

    Nothing is recalled, and what was hidden before stays hidden.
    """
    is_kept = records.c.pinned | records.c.promoted | records.c.text.is_(None)
    chosen = sa.and_(records.c.context_id == context_id, ~is_kept)
    is_visible = parts.c.hidden_by.is_(None)
    connection.execute(sa.delete(parts).where(_parts_of(context_id, chosen), is_visible))
    deleted = _empty(connection, context_id, chosen, None)
    hidden = sa.select(parts.c.id).where(
        parts.c.context_id == records.c.context_id, parts.c.scenario == records.c.scenario
    )
    is_needless = sa.and_(
        records.c.text.is_(None), records.c.deleted_at.is_(None), ~hidden.exists()
    )
    connection.execute(sa.delete(records).where(records.c.context_id == context_id, is_needless))
    return deleted


def _parts_of(context_id: int, chosen: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    scenarios = sa.select(records.c.scenario).where(chosen)
    return sa.and_(parts.c.context_id == context_id, parts.c.scenario.in_(scenarios))


def _empty(
    connection: sa.Connection,
    context_id: int,
    chosen: sa.ColumnElement[bool],
    by: str | None,
    **values: Any,
) -> int:
    """Leave nothing of records to readers, and return their number."""
    shown = sa.and_(chosen, records.c.text.is_not(None))
    values |= dict.fromkeys((*_NUMBERS, "text", "launches"))
    values |= {"pinned": sa.false(), "promoted": sa.false()}
    deleted = connection.execute(sa.update(records).where(shown).values(values)).rowcount
    if deleted:
        contexts.bump_revision(connection, context_id, added=-deleted, by=by)
    return deleted
