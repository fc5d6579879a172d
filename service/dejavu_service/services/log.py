"""The log of what people changed: pins, promotions, deletions, imports and tokens."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel
from sqlalchemy import Connection

from ..storage import log
from ..storage.database import Database
from ..storage.sql import to_datetime
from .access import EVERYWHERE, Principal

__all__ = ["Action", "LogEntry", "LogPage", "read_log", "write_log"]

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
    database: Database, principal: Principal, wanted: log.LogFilter, limit: int
) -> LogPage:
    """Read a page of the log.

    Args:
        database: The server's database.
        principal: Who asks; needs the role `admin` in the namespace, or in all.
        wanted: What entries to read.
        limit: The largest number of entries.

    Raises:
        AccessDeniedError: The principal lacks the role.
    """
    principal.require("admin", wanted.namespace or EVERYWHERE)
    with database.read() as connection:
        rows = log.read(connection, wanted, limit + 1)
    entries = [
        LogEntry(
            **{
                **row._asdict(),
                "at": to_datetime(row.at),
                "detail": json.loads(row.detail),
            }
        )
        for row in rows[:limit]
    ]
    return LogPage(entries=entries, next=rows[limit - 1].id if len(rows) > limit else None)
