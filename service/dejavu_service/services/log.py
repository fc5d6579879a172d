"""The log of what people changed: pins, promotions, deletions, imports and tokens."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field
from sqlalchemy import Connection

from dejavu_cache.model.scenario import Moment

from ..storage import log
from ..storage.database import Database
from ..storage.sql import to_datetime
from .access import EVERYWHERE, Principal

__all__ = ["Action", "LogEntry", "LogFilter", "LogPage", "read_log", "write_log"]

Action = Literal[
    "pin",
    "unpin",
    "promote",
    "claim miss",
    "release miss",
    "dismiss miss",
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
    kernel: str | None = Field(
        default=None, min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$"
    )
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

    Args:
        connection: The write transaction.
        principal: Who makes the change.
        action: What is done.
        namespace: Where; empty for what concerns the whole server.
        kernel: The kernel's full name, if there is only one.
        **detail: What else tells what was changed, as JSON values.
    """
    log.add(connection, principal.name, action, namespace, kernel, json.dumps(detail))


def read_log(
    database: Database, principal: Principal, namespace: str | None, wanted: LogFilter
) -> LogPage:
    """Read a page of the log.

    Args:
        database: The server's database.
        principal: Who asks; needs the role `admin` in the namespace, or in all.
        namespace: The namespace; None reads the entries of all, and those of the whole server.
        wanted: What entries to read.

    Raises:
        AccessDeniedError: The principal lacks the role.
    """
    principal.require("admin", namespace or EVERYWHERE)
    conditions = wanted.model_dump(exclude={"limit"}, exclude_none=True)
    with database.read() as connection:
        rows = log.read(connection, wanted.limit + 1, namespace, **conditions)
    entries = [
        LogEntry(**row._asdict() | {"at": to_datetime(row.at), "detail": json.loads(row.detail)})
        for row in rows[: wanted.limit]
    ]
    is_last = len(rows) <= wanted.limit
    return LogPage(entries=entries, next=None if is_last else entries[-1].id)
