"""The log of what people changed: pins, promotions, deletions, imports and tokens."""

import json
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, Field
from sqlalchemy import Connection, insert, select

from dejavu_cache.model.scenario import Moment

from ..storage.database import Database
from ..storage.sql import contains, epoch, to_datetime
from ..storage.tables import log_entries
from .access import EVERYWHERE, Principal
from .requests import PRINTABLE, CurrentCall, Namespace, versioned_router

router = versioned_router()

_SHOWN = 1e-6
"""Seconds to which times are shown: an entry is found by the time that it shows."""

Action = Literal[
    "pin",
    "unpin",
    "promote",
    "delete",
    "import",
    "create token",
    "revoke token",
    "quarantine",
    "undo quarantine",
]


class LogFilter(BaseModel):
    """What entries to read; None stands for any.

    Attributes:
        actor: A part of the actor's name.
        kernel: The kernel's full name.
        until: The time before which entries were written.
        before: The id before which to continue.
        limit: The largest number of entries.
    """

    actor: str | None = Field(default=None, min_length=1, max_length=300)
    action: Action | None = None
    kernel: str | None = Field(default=None, min_length=1, max_length=500, pattern=PRINTABLE)
    since: Moment | None = None
    until: Moment | None = None
    before: int | None = Field(default=None, ge=1, le=2**62)
    limit: int = Field(default=100, ge=1, le=1000)


class LogEntry(BaseModel):
    """What somebody changed; the namespace is empty where it concerns the whole server."""

    id: int
    at: datetime
    actor: str
    action: str
    namespace: str
    kernel: str
    detail: dict[str, Any]


class LogPage(BaseModel):
    """Entries, newest first, and the id to continue before; null on the last page."""

    entries: list[LogEntry]
    next: int | None


def write_log(
    connection: Connection,
    principal: Principal,
    action: Action,
    namespace: str,
    kernel: str = "",
    **detail: Any,
) -> None:
    """Write an entry in the transaction of the change, so that neither is there without the other.

    The namespace is empty for what concerns the whole server; `detail` has JSON values.
    """
    connection.execute(
        insert(log_entries).values(
            at=epoch(),
            actor=principal.name,
            action=action,
            namespace=namespace,
            kernel=kernel,
            detail=json.dumps(detail),
        )
    )


def read_log(
    database: Database, principal: Principal, namespace: str | None, wanted: LogFilter
) -> LogPage:
    """Read a page of the log of a namespace, or if it is None, of all and of the whole server.

    Raises:
        AccessDeniedError: The principal lacks the role `admin` there.
    """
    principal.require("admin", namespace or EVERYWHERE)
    query = select(log_entries).order_by(log_entries.c.id.desc()).limit(wanted.limit + 1)
    equal = {"namespace": namespace, "action": wanted.action, "kernel": wanted.kernel}
    query = query.filter_by(**{name: value for name, value in equal.items() if value is not None})
    if wanted.actor is not None:
        query = query.where(contains(log_entries.c.actor, wanted.actor))
    if wanted.since is not None:
        query = query.where(log_entries.c.at >= wanted.since.timestamp() - _SHOWN)
    if wanted.until is not None:
        query = query.where(log_entries.c.at < wanted.until.timestamp() - _SHOWN)
    if wanted.before is not None:
        query = query.where(log_entries.c.id < wanted.before)
    with database.read() as connection:
        rows = connection.execute(query).all()
    entries = [
        LogEntry(**row._asdict() | {"at": to_datetime(row.at), "detail": json.loads(row.detail)})
        for row in rows[: wanted.limit]
    ]
    return LogPage(entries=entries, next=entries[-1].id if len(rows) > wanted.limit else None)


_Filter = Annotated[LogFilter, Query()]


@router.get("/log")
def read_server_log(call: CurrentCall, wanted: _Filter) -> LogPage:
    """Return what people changed on the whole server, newest first."""
    return read_log(call.database, call.principal, None, wanted)


@router.get("/{namespace}/log")
def read_namespace_log(namespace: Namespace, call: CurrentCall, wanted: _Filter) -> LogPage:
    """Return what people changed in a namespace, newest first."""
    return read_log(call.database, call.principal, namespace, wanted)
