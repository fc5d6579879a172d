"""Quarantine: what one token or one host wrote is taken from readers, and can be given back."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import groupby
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import Path, Query, Response
from pydantic import BaseModel, ConfigDict, StrictBool
from sqlalchemy import ColumnElement, Connection, and_, func, or_, select, update

from dejavu_cache.model.scenario import Moment, canonical_json

from ..errors import InvalidRequestError, NotFoundError
from ..storage import contexts as stored_contexts
from ..storage import records
from ..storage.database import Database
from ..storage.records import Act, Part
from ..storage.sql import contains, divide, ends_with, epoch, starts_with, to_datetime
from ..storage.tables import acts, contexts, parts, writers
from . import merging
from .access import Principal
from .log import write_log
from .requests import CurrentCall, Digest, Namespace, ShortText, accepts, versioned_router

__all__ = [
    "Quarantine",
    "Quarantined",
    "Writer",
    "WriterFilter",
    "quarantine_writer",
    "router",
]

router = versioned_router()

_T = TypeVar("_T")
_QuarantineId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]

_MOST_SCENARIOS, _MOST_PARTS = 1000, 5_000
"""Limits of what is withdrawn or given back in one transaction, which keeps other writers waiting;
a scenario with more parts is a page of its own."""
_PAUSE = 0.11
"""Seconds between two transactions: other writers try every 0.1 s to get SQLite's lock."""


class WriterFilter(BaseModel):
    """Whose measurements and winners are meant: those to which all fields apply.

    It names a token, a host, or the context, the scenario and the config of measurements.
    """

    model_config = ConfigDict(extra="forbid")

    token: ShortText | None = None
    """The id of a token, or the name of tokens."""
    host: ShortText | None = None
    """A host, or a user and a host, as measurements name them."""
    since: Moment | None = None
    """The earliest time at which they came."""
    until: Moment | None = None
    """The time before which they came."""
    context: Digest | None = None
    """The digest of a context, as are the next two of a scenario and a config."""
    scenario: Digest | None = None
    config: Digest | None = None


class QuarantineWish(WriterFilter):
    """Which measurements and winners shall go from readers: those to which all fields apply.

    It names a token, a host, or the context, the scenario and the config of measurements.
    """

    preview: StrictBool = False
    """Whether to count only."""


class Writer(BaseModel):
    """A token and a host, and the measurements that came from them."""

    sender: str
    by: str
    measurements: int
    standing: int
    """Measurements that readers get."""
    first: datetime
    last: datetime


class Writers(BaseModel):
    """Who wrote the measurements of a namespace."""

    writers: list[Writer]


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


class Quarantines(BaseModel):
    """The quarantines of a namespace, the latest first."""

    quarantines: list[Quarantine]


class _Hidden(NamedTuple):
    """A scenario of which an act has hidden something: its context, and the number of parts."""

    context_id: int
    context: str
    scenario: str
    parts: int


@router.get("/{namespace}/writers")
def list_writers(
    namespace: Namespace,
    call: CurrentCall,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Writers:
    """List the tokens and the hosts that wrote measurements, the latest first."""
    call.principal.require("admin", namespace)
    measured, last = func.sum(writers.c.measurements), func.max(writers.c.last)
    standing, first = func.sum(writers.c.standing), func.min(writers.c.first)
    query = (
        select(writers.c.sender, writers.c.measured_by, measured, standing, first, last)
        .join(contexts, contexts.c.id == writers.c.context_id)
        .where(contexts.c.namespace == namespace)
        .group_by(writers.c.sender, writers.c.measured_by)
        .having(measured > 0)
        .order_by(last.desc(), writers.c.sender)
        .limit(limit)
    )
    with call.database.read() as connection:
        rows = connection.execute(query).all()
    listed = [
        Writer(
            sender=row[0],
            by=row[1],
            measurements=int(row[2]),
            standing=int(row[3]),
            first=to_datetime(row[4]),
            last=to_datetime(row[5]),
        )
        for row in rows
    ]
    return Writers(writers=listed)


@router.post(
    "/{namespace}/quarantines",
    status_code=201,
    responses={200: {"model": Quarantined, "description": "Counted"}},
)
@accepts("admin")
def create_quarantine(
    namespace: Namespace, wish: QuarantineWish, call: CurrentCall, response: Response
) -> Quarantined:
    """Take from readers what a writer wrote, or a config's timings, or count what that would be."""
    if wish.preview:
        response.status_code = 200
    return quarantine_writer(call.database, call.principal, namespace, wish, preview=wish.preview)


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
        affected = _list_contexts(connection, namespace, wanted)
    if counted.id is not None:
        content = wanted.model_dump(mode="json", include=set(WriterFilter.model_fields))
        content = {name: value for name, value in content.items() if value is not None}
        act = Act(counted.id, namespace, "quarantine", principal.name, canonical_json(content))
        with database.write() as connection:
            records.add_act(connection, act)
            write_log(connection, principal, "quarantine", namespace, id=counted.id, **content)
    for context_id, digest in affected:
        _withdraw_from(database, principal, (context_id, namespace, digest), wanted, counted)
    return counted


def _list_contexts(
    connection: Connection, namespace: str, wanted: WriterFilter
) -> list[tuple[int, str]]:
    """List ids and digests of the contexts that may have something of a writer."""
    is_writer = [writers.c.context_id == contexts.c.id]
    if wanted.token is not None:
        is_writer.append(_token_matches(writers.c.sender, wanted.token))
    if wanted.host is not None:
        is_writer.append(_host_matches(writers.c.measured_by, wanted.host))
    has_written = select(writers.c.sender).where(*is_writer).exists()
    query = select(contexts.c.id, contexts.c.digest).order_by(contexts.c.digest)
    query = query.where(contexts.c.namespace == namespace, has_written)
    if wanted.context is not None:
        query = query.where(contexts.c.digest == wanted.context)
    return [(identity, digest) for identity, digest in connection.execute(query)]


def _withdraw_from(
    database: Database,
    principal: Principal,
    context: tuple[int, str, str],
    wanted: WriterFilter,
    counted: Quarantined,
) -> None:
    """Take a writer's part of one context, or count it, some scenarios in each transaction."""
    context_id, namespace, digest = context
    act, is_meant = counted.id, _is_meant(wanted)
    with database.read() as connection:
        sizes = _count_parts(connection, context_id, is_meant)
    touched = 0
    for page in _pages(sizes, sizes.__getitem__, database):
        with database.read() if act is None else database.write() as connection:
            locked = None
            if act is not None:
                # What is taken after an undo could never be given back.
                is_live = _lock_live(connection, namespace, act)
                locked = stored_contexts.lock_existing(connection, namespace, digest)
                if not is_live or locked is None:
                    break
            query = select(parts.c.id).where(
                parts.c.context_id == context_id, parts.c.scenario.in_(page), is_meant
            )
            found = set(connection.execute(query).scalars())
            promotions = _load_promotions(connection, namespace)
            loaded = records.load(connection, context_id, page, whole=True)
            for record in loaded.values():
                taken = merging.withdraw(record, found, act or "", promotions)
                touched += bool(taken)
                _count(counted, taken)
            if locked is not None:
                records.save(connection, locked, loaded.values(), principal.name)
    counted.contexts += touched > 0
    counted.records += touched


def _count_parts(
    connection: Connection, context_id: int, is_meant: ColumnElement[bool]
) -> dict[str, int]:
    """Count all parts of those scenarios that have something of a writer, in their order."""
    query = (
        select(parts.c.scenario, func.count().label("size"))
        .where(parts.c.context_id == context_id)
        .group_by(parts.c.scenario)
        .having(func.count().filter(is_meant) > 0)
        .order_by(parts.c.scenario)
    )
    return {row.scenario: row.size for row in connection.execute(query)}


def _load_promotions(connection: Connection, namespace: str) -> Mapping[str, float]:
    """Load the times of a namespace's promotions by their id."""
    query = select(acts).filter_by(namespace=namespace, kind="promote")
    return {row.id: row.at for row in connection.execute(query)}


def _is_meant(wanted: WriterFilter) -> ColumnElement[bool]:
    # What a promotion has replaced would stand again without it, and is taken with the rest.
    is_replaced = parts.c.hidden_by.in_(select(acts.c.id).where(acts.c.kind == "promote"))
    clauses: list[ColumnElement[bool]] = [or_(parts.c.hidden_by.is_(None), is_replaced)]
    if wanted.since is not None:
        clauses.append(parts.c.received_at >= wanted.since.timestamp())
    if wanted.until is not None:
        clauses.append(parts.c.received_at < wanted.until.timestamp())
    if wanted.scenario is not None:
        clauses.append(parts.c.scenario == wanted.scenario)
    if wanted.config is not None:
        clauses.append(parts.c.config == wanted.config)
    if wanted.token is not None:
        clauses.append(_token_matches(parts.c.sender, wanted.token))
    if wanted.host is not None:
        clauses.append(_host_matches(parts.c.measured_by, wanted.host))
    # A winner does not say which host it came from: it goes with its measurement.
    kinds = ["measurement", "winner"]
    if wanted.token is None or wanted.host is not None or wanted.config is not None:
        kinds.remove("winner")
    return and_(parts.c.kind.in_(kinds), *clauses)


def _host_matches(measured_by: ColumnElement[Any], host: str) -> ColumnElement[bool]:
    return or_(measured_by == host, ends_with(measured_by, f"@{host}"))


def _token_matches(sender: ColumnElement[Any], token: str) -> ColumnElement[bool]:
    """Compare with `name (id)`, or what a promotion by that token writes behind it."""
    identity = f" ({token})"
    return or_(
        starts_with(sender, f"{token} ("),
        ends_with(sender, identity),
        contains(sender, f"{identity} from "),
    )


def _count(counted: Quarantined, taken: Iterable[Part]) -> None:
    for part in taken:
        counted.winners += part.kind == "winner"
        counted.measurements += part.kind == "measurement"


@router.get("/{namespace}/quarantines")
def list_quarantines(namespace: Namespace, call: CurrentCall) -> Quarantines:
    """List the quarantines, also those that are undone."""
    call.principal.require("admin", namespace)
    hidden = select(func.count()).where(parts.c.hidden_by == acts.c.id).scalar_subquery()
    query = (
        select(acts, hidden.label("parts"))
        .where(acts.c.namespace == namespace, acts.c.kind == "quarantine")
        .order_by(acts.c.at.desc(), acts.c.id)
    )
    with call.database.read() as connection:
        rows = connection.execute(query).all()
    listed = [
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
    return Quarantines(quarantines=listed)


@router.delete("/{namespace}/quarantines/{quarantine_id}")
def undo_quarantine(
    namespace: Namespace, quarantine_id: _QuarantineId, call: CurrentCall
) -> Quarantined:
    """Give back to readers what a quarantine took, beside what has come since.

    An undo that was cut short is completed by another one: nothing is given back twice. A
    quarantine that still runs ends with the undo.
    """
    call.principal.require("admin", namespace)
    database, principal = call.database, call.principal
    restored = Quarantined(id=quarantine_id)
    touched: set[tuple[int, str]] = set()
    while True:
        with database.write() as connection:
            if not _lock_live(connection, namespace, quarantine_id):
                raise NotFoundError(
                    f"there is no quarantine {quarantine_id!r} that could be undone"
                )
            hidden = _list_hidden(connection, quarantine_id)
            if not hidden:
                statement = update(acts).where(acts.c.id == quarantine_id).values(undone_at=epoch())
                connection.execute(statement)
                write_log(connection, principal, "undo quarantine", namespace, id=quarantine_id)
                break
        # A transaction locks one context only, and so waits for nobody who waits for it.
        for digest, group in groupby(hidden, lambda scenario: scenario.context):
            for page in _pages(group, lambda scenario: scenario.parts, database):
                touched |= {(scenario.context_id, scenario.scenario) for scenario in page}
                scenarios = [scenario.scenario for scenario in page]
                _give_back(database, principal, (namespace, digest), scenarios, restored)
    restored.contexts = len({context_id for context_id, _ in touched})
    restored.records = len(touched)
    return restored


def _lock_live(connection: Connection, namespace: str, act: str) -> bool:
    """Lock a quarantine that is not undone until the transaction ends; return False if none is."""
    query = select(acts).filter_by(id=act, namespace=namespace, kind="quarantine", undone_at=None)
    return connection.execute(query.with_for_update()).first() is not None


def _list_hidden(connection: Connection, act: str) -> list[_Hidden]:
    """List what an act has hidden, by context and scenario."""
    query = (
        select(parts.c.context_id, contexts.c.digest, parts.c.scenario, func.count())
        .join(contexts, contexts.c.id == parts.c.context_id)
        .where(parts.c.hidden_by == act)
        .group_by(parts.c.context_id, contexts.c.digest, parts.c.scenario)
        .order_by(contexts.c.digest, parts.c.scenario)
    )
    return [_Hidden(*row) for row in connection.execute(query)]


def _give_back(
    database: Database,
    principal: Principal,
    key: stored_contexts.ContextKey,
    scenarios: list[str],
    restored: Quarantined,
) -> None:
    """Let what is hidden in some scenarios of a context arrive again."""
    assert restored.id is not None
    with database.write() as connection:
        locked = stored_contexts.lock_existing(connection, *key)
        if locked is not None:
            loaded = records.load(connection, locked.id, scenarios, whole=True)
            for record in loaded.values():
                _count(restored, merging.give_back(record, restored.id))
            records.save(connection, locked, loaded.values(), principal.name)


def _pages(
    scenarios: Iterable[_T], size: Callable[[_T], int], database: Database
) -> Iterator[list[_T]]:
    """Divide scenarios into pages, by the number of their parts; pause between two pages."""
    for number, page in enumerate(divide(scenarios, size, _MOST_SCENARIOS, _MOST_PARTS)):
        if number and database.is_sqlite:
            time.sleep(_PAUSE)
        yield page
