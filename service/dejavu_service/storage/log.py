"""The log of what people changed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, select

from .sql import contains, epoch
from .tables import log_entries

__all__ = ["add", "read"]

_SHOWN = 1e-6
"""Seconds to which times are shown: an entry is found by the time that it shows."""


def add(
    connection: Connection, actor: str, action: str, namespace: str, kernel: str, detail: str
) -> None:
    """Write an entry as part of the transaction that it describes."""
    connection.execute(
        log_entries.insert().values(
            at=epoch(),
            actor=actor,
            action=action,
            namespace=namespace,
            kernel=kernel,
            detail=detail,
        )
    )


def read(
    connection: Connection,
    limit: int,
    namespace: str | None = None,
    actor: str | None = None,
    action: str | None = None,
    kernel: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    before: int | None = None,
) -> Sequence[Row[Any]]:
    """Read up to `limit` entries, newest first; None stands for any.

    Args:
        connection: A transaction.
        limit: The largest number of entries.
        namespace: The namespace; None reads entries of all, and those of the whole server.
        actor: A part of the actor's name.
        action: The action.
        kernel: The kernel's full name.
        since: The earliest time.
        until: The time before which entries were written.
        before: The id before which to continue.
    """
    query = select(log_entries).order_by(log_entries.c.id.desc()).limit(limit)
    for name, value in (("namespace", namespace), ("action", action), ("kernel", kernel)):
        if value is not None:
            query = query.where(log_entries.c[name] == value)
    if actor is not None:
        query = query.where(contains(log_entries.c.actor, actor))
    if since is not None:
        query = query.where(log_entries.c.at >= since.timestamp() - _SHOWN)
    if until is not None:
        query = query.where(log_entries.c.at < until.timestamp() - _SHOWN)
    if before is not None:
        query = query.where(log_entries.c.id < before)
    return connection.execute(query).all()
