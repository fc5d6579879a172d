"""Quarantine: what one token or one host wrote is taken from readers, and can be given back."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, TypeVar

from pydantic import BaseModel
from sqlalchemy import Connection

from dejavu_cache.model.record import Measurement, Record, RecordSet, Winner
from dejavu_cache.model.scenario import Config, Context, Scenario

from ..errors import InvalidRequestError, NotFoundError
from ..storage import contexts, quarantine
from ..storage.chunks import divide
from ..storage.clock import to_datetime
from ..storage.database import Database
from ..storage.quarantine import Part, WriterFilter
from .access import Principal
from .log import write_log
from .records import merge_record_set
from .withdrawal import WithdrawnContext, plan_withdrawal, withdraw

__all__ = [
    "Quarantine",
    "Quarantined",
    "Writer",
    "list_quarantines",
    "list_writers",
    "quarantine_writer",
    "undo_quarantine",
]

_T = TypeVar("_T")

_MOST_SCENARIOS, _MOST_MEASUREMENTS = 100, 5_000
"""Limits of what is withdrawn or given back in one transaction, which keeps other writers waiting;
a scenario with more measurements is a page of its own."""
_PAUSE = 0.11
"""Seconds between two transactions: other writers try every 0.1 s to get SQLite's lock."""


class Writer(BaseModel):
    """A token and a host, and the measurements that came from them."""

    sender: str
    by: str
    measurements: int
    standing: int
    """Measurements that readers get."""
    first: datetime
    last: datetime


class Quarantined(BaseModel):
    """What a quarantine took from readers, or would take; the id is null for a preview."""

    id: str | None
    contexts: int = 0
    records: int = 0
    measurements: int = 0
    winners: int = 0


class Quarantine(BaseModel):
    """A quarantine, and whom it concerned."""

    id: str
    actor: str
    wanted: dict[str, Any]
    parts: int
    created: datetime
    undone: datetime | None = None


def list_writers(
    database: Database, principal: Principal, namespace: str, limit: int
) -> list[Writer]:
    """List who wrote the measurements of a namespace, the latest first; needs the role `admin`."""
    principal.require("admin", namespace)
    with database.read() as connection:
        rows = quarantine.list_writers(connection, namespace, limit)
    return [
        Writer(**{**row._asdict(), "first": to_datetime(row.first), "last": to_datetime(row.last)})
        for row in rows
    ]


def quarantine_writer(
    database: Database, principal: Principal, namespace: str, wanted: WriterFilter, *, preview: bool
) -> Quarantined:
    """Take from readers what a writer wrote, or a config's timings, and recall it from all copies.

    Measurements that others sent of the same configs, and that were kept beside, stand instead.

    Args:
        database: The server's database.
        principal: Who asks; needs the role `admin`.
        namespace: The namespace of the records.
        wanted: Whose measurements and winners are meant.
        preview: Whether to count only.

    Raises:
        AccessDeniedError: The principal lacks the role `admin`.
        InvalidRequestError: Neither a writer nor the config of a scenario is named.
    """
    principal.require("admin", namespace)
    is_config_named = None not in (wanted.context, wanted.scenario, wanted.config)
    if wanted.token is None and wanted.host is None and not is_config_named:
        raise InvalidRequestError(
            "name the token or the host that wrote what is to go, or the context, the scenario and "
            "the config that it is about"
        )
    counted = Quarantined(id=None if preview else secrets.token_hex(8))
    with database.read() as connection:
        affected = quarantine.list_contexts(connection, namespace, wanted)
    if counted.id is not None:
        with database.write() as connection:
            quarantine.create(connection, counted.id, namespace, principal.name, wanted)
            detail = {name: value for name, value in wanted._asdict().items() if value is not None}
            write_log(connection, principal, "quarantine", namespace, id=counted.id, **detail)
    for context_id, digest in affected:
        context = WithdrawnContext(context_id, namespace, digest)
        _withdraw_from(database, context, wanted, principal, counted)
    return counted


def _withdraw_from(
    database: Database,
    context: WithdrawnContext,
    wanted: WriterFilter,
    principal: Principal,
    counted: Quarantined,
) -> None:
    """Take a writer's part of one context, or count it, some scenarios in each transaction."""
    with database.read() as connection:
        scenarios = quarantine.list_scenarios(connection, context.id, wanted)
    withdrawn = 0
    for page in _pages(scenarios, scenarios.__getitem__, database):
        with database.write() if counted.id is not None else database.read() as connection:
            if counted.id is not None and not (
                # What is taken after an undo could never be given back.
                quarantine.lock_live(connection, context.namespace, counted.id)
                and contexts.lock_existing(connection, context.namespace, context.digest)
            ):
                break
            withdrawal = plan_withdrawal(connection, context.id, page, wanted)
            if counted.id is not None:
                withdraw(connection, context, withdrawal, principal)
                quarantine.add(connection, counted.id, withdrawal.parts)
        withdrawn += len(withdrawal.records)
        counted.winners += sum(part.is_winner for part in withdrawal.parts)
        counted.measurements += sum(not part.is_winner for part in withdrawal.parts)
    counted.contexts += withdrawn > 0
    counted.records += withdrawn


def list_quarantines(database: Database, principal: Principal, namespace: str) -> list[Quarantine]:
    """List the quarantines of a namespace, the latest first; needs the role `admin`."""
    principal.require("admin", namespace)
    with database.read() as connection:
        rows = quarantine.list_quarantines(connection, namespace)
    return [
        Quarantine(
            id=row.id,
            actor=row.actor,
            wanted=json.loads(row.wanted),
            parts=row.parts,
            created=to_datetime(row.created_at),
            undone=None if row.undone_at is None else to_datetime(row.undone_at),
        )
        for row in rows
    ]


def undo_quarantine(
    database: Database, principal: Principal, namespace: str, identity: str
) -> Quarantined:
    """Give back to readers what a quarantine took, beside what has come since.

    An undo that was cut short is completed by another one: nothing is given back twice. A
    quarantine that still runs ends with the undo.

    Raises:
        AccessDeniedError: The principal lacks the role `admin`.
        NotFoundError: There is no such quarantine, or it is undone already.
    """
    principal.require("admin", namespace)
    restored = Quarantined(id=identity)
    unknown = f"there is no quarantine {identity!r} that could be undone"
    touched: set[tuple[str, str]] = set()
    last = 0
    while True:
        with database.write() as connection:
            if not quarantine.lock_live(connection, namespace, identity):
                raise NotFoundError(unknown)
            ranges = quarantine.list_parts(connection, identity, last)
            if not ranges:
                quarantine.mark_undone(connection, identity)
                write_log(connection, principal, "undo quarantine", namespace, id=identity)
                break
        for page in _pages(ranges, lambda scenario: scenario.parts, database):
            with database.write() as connection:
                parts = quarantine.load_parts(connection, identity, page[0].first, page[-1].last)
                touched |= _give_back(connection, namespace, parts)
            restored.winners += sum(part.is_winner for _, part in parts)
            restored.measurements += sum(not part.is_winner for _, part in parts)
        last = max(scenario.last for scenario in ranges)
    restored.contexts = len({text for text, _ in touched})
    restored.records = len(touched)
    return restored


def _give_back(
    connection: Connection, namespace: str, parts: Sequence[tuple[str, Part]]
) -> set[tuple[str, str]]:
    """Merge parts in the names of their senders; return the texts of contexts and scenarios."""
    touched = set()
    for (text, sender), group in groupby(parts, lambda item: (item[0], item[1].sender)):
        sent = _join_records([part for _, part in group])
        touched |= {(text, record.scenario.text) for record in sent}
        record_set = RecordSet(context=Context.model_validate_json(text), records=tuple(sent))
        merge_record_set(connection, Principal(sender, {}), namespace, record_set, restore=True)
    return touched


def _pages(
    scenarios: Iterable[_T], size: Callable[[_T], int], database: Database
) -> Iterator[list[_T]]:
    """Divide scenarios into pages, by the number of their measurements; pause between two pages."""
    for number, page in enumerate(divide(scenarios, size, _MOST_SCENARIOS, _MOST_MEASUREMENTS)):
        if number and database.is_sqlite:
            time.sleep(_PAUSE)
        yield page


def _join_records(parts: Sequence[Part]) -> list[Record]:
    """Join parts to records; two measurements of a config are in two records, in their order."""
    joined: list[Record] = []
    for text, group in groupby(parts, lambda part: part.scenario_text):
        scenario = Scenario.model_validate_json(text)
        measurements: dict[Config, Measurement] = {}
        winner: Winner | None = None
        for part in group:
            if part.is_winner:
                winner = Winner.model_validate_json(part.text)
                continue
            measurement = Measurement.model_validate_json(part.text)
            if measurement.config in measurements:
                joined.append(Record(scenario=scenario, measurements=tuple(measurements.values())))
                measurements = {}
            measurements[measurement.config] = measurement
        joined.append(
            Record(scenario=scenario, measurements=tuple(measurements.values()), winner=winner)
        )
    return joined
