"""Quarantine: what one token or one host wrote is taken from readers, and can be given back."""

import json
from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Path, Query, Response
from pydantic import BaseModel, ConfigDict, StrictBool

from dejavu_cache.model.record import divide
from dejavu_cache.model.scenario import Moment

from ..errors import InvalidRequestError, NotFoundError
from ..storage import contexts as stored_contexts
from ..storage import records, summaries
from ..storage.database import Database
from ..storage.sql import contains, ends_with, epoch, starts_with
from ..storage.tables import acts, contexts, parts
from .log import write_log
from .requests import CurrentCall, Namespace, ShortText, accepts, versioned_router

router = versioned_router()

_QuarantineId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]

_MOST_SCENARIOS, _MOST_PARTS = 5000, 20_000
"""Limits of what is withdrawn or given back in one transaction, which keeps other writers waiting;
a scenario with more parts is a page of its own."""


class QuarantineRequest(BaseModel):
    """Which measurements and winners shall go from readers: those to which all fields apply."""

    model_config = ConfigDict(extra="forbid")

    token: ShortText | None = None
    """The id of a token, or the name of tokens."""
    host: ShortText | None = None
    """A host, or a user and a host, as measurements name them."""
    since: Moment | None = None
    """The earliest time at which they came."""
    until: Moment | None = None
    """The time before which they came."""
    preview: StrictBool = False
    """Whether to count only."""


class Writer(BaseModel):
    """A token and a host, and the measurements that came from them."""

    sender: str
    by: str
    measurements: int
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
    request: dict[str, Any]
    parts: int
    """Parts that it hides now: none once it is undone."""
    created: datetime
    undone: datetime | None = None


class Quarantines(BaseModel):
    """The quarantines of a namespace, the latest first."""

    quarantines: list[Quarantine]


@router.get("/{namespace}/writers")
def list_writers(
    namespace: Namespace, call: CurrentCall, limit: Annotated[int, Query(ge=1, le=10_000)] = 1000
) -> Writers:
    """List the tokens and the hosts that wrote measurements, the latest first."""
    call.principal.require("admin", namespace)
    own = sa.select(contexts.c.id).where(contexts.c.namespace == namespace)
    writers = summaries.count_measurements(own)
    key, last = (writers.c.sender, writers.c.measured_by.label("by")), sa.func.max(writers.c.last)
    query = (
        sa.select(
            *key, sa.func.sum(writers.c.measurements).label("measurements"), last.label("last")
        )
        .group_by(*key)
        .order_by(last.desc(), writers.c.sender)
        .limit(limit)
    )
    with call.database.read() as connection:
        rows = connection.execute(query).all()
    return Writers(writers=[Writer(**row._asdict()) for row in rows])


@router.post(
    "/{namespace}/quarantines",
    status_code=201,
    responses={200: {"model": Quarantined, "description": "Counted"}},
)
@accepts("admin")
def create_quarantine(
    namespace: Namespace, request: QuarantineRequest, call: CurrentCall, response: Response
) -> Quarantined:
    """Take from readers what a writer wrote, and recall it from all copies, or count only.

    Measurements that others sent of the same configs, and that were kept beside, stand instead.
    """
    database, principal = call.database, call.principal
    if request.token is None and request.host is None:
        raise InvalidRequestError("name the token or the host that wrote what is to go")
    own = sa.select(contexts.c.id).where(contexts.c.namespace == namespace)
    is_meant = _is_meant(parts.c.context_id.in_(own), request)
    if request.preview:
        response.status_code = 200
        with database.read() as connection:
            return _count(connection, is_meant, None)
    content = request.model_dump(mode="json", exclude={"preview"}, exclude_none=True)
    with database.write() as connection:
        act = records.add_act(connection, namespace, "quarantine", principal.name, content)
        write_log(connection, principal, "quarantine", namespace, id=act, **content)
    for digest, page in _pages(database, is_meant):
        with database.write() as connection:
            # What is taken after an undo could never be given back.
            if not _lock(connection, namespace, act, undone_at=None):
                break
            context = stored_contexts.lock(connection, namespace, digest)
            if context is not None:
                shown = sa.and_(parts.c.context_id == context.id, parts.c.scenario.in_(page))
                is_shown = _is_meant(shown, request)
                records.hide(connection, context, page, is_shown, act, principal.name)
    with database.read() as connection:
        return _count(connection, parts.c.hidden_by == act, act)


def _count(
    connection: sa.Connection, meant: sa.ColumnElement[bool], act: str | None
) -> Quarantined:
    """Count the parts that are meant, and the records and contexts that have them."""
    record = sa.cast(parts.c.context_id, sa.Text) + parts.c.scenario
    query = sa.select(
        sa.func.count(parts.c.context_id.distinct()).label("contexts"),
        sa.func.count(record.distinct()).label("records"),
        sa.func.count().filter(parts.c.kind == "measurement").label("measurements"),
        sa.func.count().filter(parts.c.kind == "winner").label("winners"),
    ).where(meant)
    return Quarantined(id=act, **connection.execute(query).one()._asdict())


def _pages(database: Database, meant: sa.ColumnElement[bool]) -> Iterator[tuple[str, list[str]]]:
    """Yield contexts and scenarios with parts that are meant, as many as one transaction changes.

    A transaction locks one context only, and so waits for nobody who waits for it.
    """
    having = sa.select(parts.c.context_id, parts.c.scenario).where(meant).distinct().subquery()
    is_part = (parts.c.context_id == having.c.context_id, parts.c.scenario == having.c.scenario)
    query = (
        sa.select(contexts.c.digest, having.c.scenario, sa.func.count().label("parts"))
        .select_from(having.join(parts, sa.and_(*is_part)))
        .join(contexts, contexts.c.id == having.c.context_id)
        .group_by(contexts.c.digest, having.c.scenario)
        .order_by(contexts.c.digest, having.c.scenario)
    )
    with database.read() as connection:
        rows = connection.execute(query).all()
    for digest, group in groupby(rows, attrgetter("digest")):
        sized = ((row.scenario, row.parts) for row in group)
        for page in divide(sized, _MOST_SCENARIOS, _MOST_PARTS):
            yield digest, page


def _is_meant(own: sa.ColumnElement[bool], request: QuarantineRequest) -> sa.ColumnElement[bool]:
    """Return whether one of some parts is meant: a winner goes with its sender's measurement.

    A winner does not say which host it came from, and would stand by another's measurement of its
    config.
    """
    clauses = [own, parts.c.hidden_by.is_(None)]
    if request.since is not None:
        clauses.append(parts.c.received_at >= request.since.timestamp())
    if request.until is not None:
        clauses.append(parts.c.received_at < request.until.timestamp())
    if request.token is not None:
        # A sender is `name (id)`, behind which a promotion writes from where it was.
        is_named = starts_with(parts.c.sender, f"{request.token} (")
        clauses.append(sa.or_(is_named, contains(parts.c.sender, f" ({request.token})")))
    if request.host is not None:
        clauses.append(ends_with("@" + parts.c.measured_by, f"@{request.host}"))
    is_measured = sa.and_(*clauses, parts.c.kind == "measurement")
    key = (parts.c.context_id, parts.c.scenario, parts.c.config, parts.c.sender)
    goes_with_it = sa.tuple_(*key).in_(sa.select(*key).where(is_measured))
    winners = sa.and_(own, parts.c.kind == "winner", parts.c.hidden_by.is_(None), goes_with_it)
    if request.host is None:
        winners = sa.or_(winners, sa.and_(*clauses, parts.c.kind == "winner"))
    return sa.or_(is_measured, winners)


@router.get("/{namespace}/quarantines")
def list_quarantines(namespace: Namespace, call: CurrentCall) -> Quarantines:
    """List the quarantines, also those that are undone."""
    call.principal.require("admin", namespace)
    hidden = sa.select(sa.func.count()).where(parts.c.hidden_by == acts.c.id).label("parts")
    moments = (acts.c.at.label("created"), acts.c.undone_at.label("undone"))
    query = (
        sa.select(acts.c.id, acts.c.actor, acts.c.wanted.label("request"), *moments, hidden)
        .where(acts.c.namespace == namespace, acts.c.kind == "quarantine")
        .order_by(acts.c.at.desc(), acts.c.id)
    )
    with call.database.read() as connection:
        rows = connection.execute(query).all()
    listed = [Quarantine(**row._asdict() | {"request": json.loads(row.request)}) for row in rows]
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
    is_hidden = parts.c.hidden_by == quarantine_id
    with call.database.write() as connection:
        is_left = sa.select(sa.select(parts.c.id).where(is_hidden).exists())
        quarantine_row = _lock(connection, namespace, quarantine_id)
        if quarantine_row is None or (
            quarantine_row.undone_at is not None and not connection.scalar(is_left)
        ):
            raise NotFoundError(f"there is no quarantine {quarantine_id!r} that could be undone")
        if quarantine_row.undone_at is None:
            chosen = sa.update(acts).where(acts.c.id == quarantine_id)
            connection.execute(chosen.values(undone_at=epoch()))
            write_log(connection, call.principal, "undo quarantine", namespace, id=quarantine_id)
        restored = _count(connection, is_hidden, quarantine_id)
    for digest, page in _pages(call.database, is_hidden):
        with call.database.write() as connection:
            context = stored_contexts.lock(connection, namespace, digest)
            if context is not None:
                records.hide(connection, context, page, is_hidden, None, call.principal.name)
    return restored


def _lock(
    connection: sa.Connection, namespace: str, act: str, **values: None
) -> sa.Row[Any] | None:
    """Lock a quarantine, with some values, until the transaction ends; None if there is none."""
    query = sa.select(acts).filter_by(id=act, namespace=namespace, kind="quarantine", **values)
    return connection.execute(query.with_for_update()).first()
