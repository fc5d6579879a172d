"""The log of what people changed."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, select

from .sql import contains, epoch
from .tables import log_entries

__all__ = ["LogFilter", "LogRow", "add", "read"]

_SHOWN = 1e-6
"""Seconds to which times are shown: an entry is found by the time that it shows."""


class LogRow(NamedTuple):
    """An entry; `at` is in seconds since 1970, `detail` is JSON."""

    id: int
    at: float
    actor: str
    action: str
    namespace: str
    kernel: str
    detail: str


class LogFilter(NamedTuple):
    """What entries to read; None stands for any.

    Attributes:
        namespace: The namespace; None reads entries of all, and those of the whole server.
        actor: A part of the actor's name.
        action: The action.
        kernel: The kernel's full name.
        since: The earliest time, in seconds since 1970.
        until: The time before which entries were written, in seconds since 1970.
        before: The id before which to continue.
    """

    namespace: str | None = None
    actor: str | None = None
    action: str | None = None
    kernel: str | None = None
    since: float | None = None
    until: float | None = None
    before: int | None = None


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


def read(connection: Connection, wanted: LogFilter, limit: int) -> list[LogRow]:
    """Read up to `limit` entries, newest first."""
    query = select(log_entries).order_by(log_entries.c.id.desc()).limit(limit)
    for name in ("namespace", "action", "kernel"):
        value = getattr(wanted, name)
        if value is not None:
            query = query.where(log_entries.c[name] == value)
    if wanted.actor is not None:
        query = query.where(contains(log_entries.c.actor, wanted.actor))
    if wanted.since is not None:
        query = query.where(log_entries.c.at >= wanted.since - _SHOWN)
    if wanted.until is not None:
        query = query.where(log_entries.c.at < wanted.until - _SHOWN)
    if wanted.before is not None:
        query = query.where(log_entries.c.id < wanted.before)
    return [LogRow(*row) for row in connection.execute(query)]
