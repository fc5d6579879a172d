"""Quarantine: what one token or one host wrote is taken from readers, and can be given back."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import groupby
from typing import Any, TypeVar

from pydantic import BaseModel
from sqlalchemy import Connection

from dejavu_cache.model.scenario import canonical_json

from ..errors import InvalidRequestError, NotFoundError
from ..storage import contexts, quarantines, records
from ..storage.database import Database
from ..storage.quarantines import HiddenScenario, WriterFilter
from ..storage.records import Act, Part, StoredRecord
from ..storage.sql import database_time, divide, to_datetime
from . import merging
from .access import Principal
from .log import write_log

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

_MOST_SCENARIOS, _MOST_PARTS = 1000, 5_000
"""Limits of what is withdrawn or given back in one transaction, which keeps other writers waiting;
a scenario with more parts is a page of its own."""
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
    """What a quarantine took from readers, or would take; the id is null for a preview.

    Measurements and winners count whether they stood or not.
    """

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
    """Parts that it hides now: none once it is undone, and no winner that only lost its timing."""
    created: datetime
    undone: datetime | None = None


def list_writers(
    database: Database, principal: Principal, namespace: str, limit: int
) -> list[Writer]:
    """List who wrote the measurements of a namespace, the latest first; needs the role `admin`."""
    principal.require("admin", namespace)
    with database.read() as connection:
        rows = quarantines.list_writers(connection, namespace, limit)
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
        affected = quarantines.list_contexts(connection, namespace, wanted)
    if counted.id is not None:
        content = {name: value for name, value in wanted._asdict().items() if value is not None}
        act = Act(counted.id, namespace, "quarantine", principal.name, canonical_json(content))
        with database.write() as connection:
            records.add_act(connection, act)
            write_log(connection, principal, "quarantine", namespace, id=counted.id, **content)
    for context_id, digest in affected:
        _withdraw_from(database, principal, namespace, (context_id, digest), wanted, counted)
    return counted


def _withdraw_from(
    database: Database,
    principal: Principal,
    namespace: str,
    context: tuple[int, str],
    wanted: WriterFilter,
    counted: Quarantined,
) -> None:
    """Take a writer's part of one context, or count it, some scenarios in each transaction."""
    context_id, digest = context
    act = counted.id
    with database.read() as connection:
        scenarios = quarantines.list_scenarios(connection, context_id, wanted)
    touched = 0
    for page in _pages(scenarios, scenarios.__getitem__, database):
        with database.read() if act is None else database.write() as connection:
            if act is not None and not (
                # What is taken after an undo could never be given back.
                quarantines.lock_live(connection, namespace, act)
                and contexts.lock_existing(connection, namespace, digest)
            ):
                break
            found = quarantines.find_parts(connection, context_id, page, wanted)
            promotions = quarantines.load_promotions(connection, namespace)
            loaded = records.load(connection, context_id, page, whole=True)
            for record in loaded.values():
                taken = merging.withdraw(record, found, act or "", promotions)
                touched += bool(taken)
                _count(counted, taken)
            if act is not None:
                _save(connection, context_id, loaded.values(), principal)
    counted.contexts += touched > 0
    counted.records += touched


def _count(counted: Quarantined, taken: Iterable[Part]) -> None:
    for part in taken:
        counted.winners += part.kind == "winner"
        counted.measurements += part.kind == "measurement"


def _save(
    connection: Connection,
    context_id: int,
    changed: Iterable[StoredRecord],
    principal: Principal,
) -> None:
    saved = records.save(connection, context_id, changed, database_time(connection))
    contexts.bump_revision(connection, context_id, added=saved.added, by=principal.name)


def list_quarantines(database: Database, principal: Principal, namespace: str) -> list[Quarantine]:
    """List the quarantines of a namespace, the latest first; needs the role `admin`."""
    principal.require("admin", namespace)
    with database.read() as connection:
        rows = quarantines.list_quarantines(connection, namespace)
    return [
        Quarantine(
            id=row.id,
            actor=row.actor,
            wanted=json.loads(row.wanted),
            parts=row.parts,
            created=to_datetime(row.at),
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
    touched: set[tuple[int, str]] = set()
    while True:
        with database.write() as connection:
            if not quarantines.lock_live(connection, namespace, identity):
                raise NotFoundError(f"there is no quarantine {identity!r} that could be undone")
            hidden = quarantines.list_hidden(connection, identity)
            if not hidden:
                quarantines.mark_undone(connection, identity)
                write_log(connection, principal, "undo quarantine", namespace, id=identity)
                break
        # A transaction locks one context only, and so waits for nobody who waits for it.
        for digest, group in groupby(hidden, lambda scenario: scenario.context):
            for page in _pages(group, lambda scenario: scenario.parts, database):
                touched |= {(scenario.context_id, scenario.scenario) for scenario in page}
                with database.write() as connection:
                    context_id = contexts.lock_existing(connection, namespace, digest)
                    if context_id is not None:
                        _give_back(connection, context_id, page, principal, restored)
    restored.contexts = len({context_id for context_id, _ in touched})
    restored.records = len(touched)
    return restored


def _give_back(
    connection: Connection,
    context_id: int,
    page: Iterable[HiddenScenario],
    principal: Principal,
    restored: Quarantined,
) -> None:
    """Let what is hidden in some scenarios arrive again."""
    assert restored.id is not None
    scenarios = [scenario.scenario for scenario in page]
    loaded = records.load(connection, context_id, scenarios, whole=True)
    for record in loaded.values():
        _count(restored, merging.give_back(record, restored.id))
    _save(connection, context_id, loaded.values(), principal)


def _pages(
    scenarios: Iterable[_T], size: Callable[[_T], int], database: Database
) -> Iterator[list[_T]]:
    """Divide scenarios into pages, by the number of their parts; pause between two pages."""
    for number, page in enumerate(divide(scenarios, size, _MOST_SCENARIOS, _MOST_PARTS)):
        if number and database.is_sqlite:
            time.sleep(_PAUSE)
        yield page
