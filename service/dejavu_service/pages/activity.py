"""Activity: what people changed, by the log, and what was tuned."""

from __future__ import annotations

from typing import NamedTuple

from ..services.access import Principal
from ..services.log import LogPage, read_log
from ..storage import coverage
from ..storage.database import Database
from ..storage.log import LogFilter
from ..storage.sql import database_time
from .overview import CoveredContext, contexts_of

__all__ = ["Activity", "activity"]

_DAY = 86400.0
_MOST_ENTRIES = 100


class TunedContext(NamedTuple):
    """A context and how many of its records changed."""

    covered: CoveredContext
    changed: int


class Activity(NamedTuple):
    """Changes of some days: a page of the log, None for who may not read it, and what was tuned."""

    log: LogPage | None
    tuned: list[TunedContext]


def activity(
    database: Database,
    principal: Principal,
    namespace: str,
    days: int,
    actor: str,
    before: int | None,
) -> Activity:
    """Load what changed in a namespace in the last days.

    Args:
        database: The server's database.
        principal: Who asks; needs the role `read`, and sees the log with the role `admin`.
        namespace: The namespace.
        days: How many days to look back.
        actor: A part of the name of who made the changes; empty for anybody.
        before: The id of the log's entry before which to continue.
    """
    principal.require("read", namespace)
    with database.read() as connection:
        since = database_time(connection).timestamp() - days * _DAY
        changed = coverage.count_changed(connection, namespace, since)
        rows = [row for row in coverage.load_contexts(connection, namespace) if row.id in changed]
    tuned = [
        TunedContext(covered, changed[covered.row.id])
        for covered in contexts_of(rows, {}, {})
        if actor in (covered.row.changed_by or "")
    ]
    tuned.sort(key=lambda entry: -entry.covered.changed_at)
    log = None
    if principal.may("admin", namespace):
        wanted = LogFilter(namespace, actor or None, since=since, before=before)
        log = read_log(database, principal, wanted, _MOST_ENTRIES)
    return Activity(log, tuned)
