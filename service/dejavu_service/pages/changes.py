"""What changed: activity by day and by writer, and how two namespaces differ."""

import re
from datetime import timedelta
from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import Field

from ..services.access import NAMESPACE
from ..services.log import LogFilter, read_log
from ..services.requests import Call, CurrentCall, Namespace
from ..storage import summaries
from ..storage.sql import database_time
from .front import list_namespaces
from .rendering import Wanted, render_page, router


class ActivityFilter(Wanted):
    """The last days, a part of a name, and the id of an entry of the log before which to go on."""

    days: int = Field(default=28, ge=1, le=400)
    actor: str = Field(default="", max_length=300)
    before: int | None = Field(default=None, ge=1, le=2**62)


@router.get("/pages/{namespace}/activity")
def show_activity(
    namespace: Namespace, call: CurrentCall, wanted: Annotated[ActivityFilter, Query()]
) -> Response:
    """Show what was tuned, missed and reused by day, by whom, and what people changed."""
    call.principal.require("read", namespace)
    with call.database.read() as connection:
        present = database_time(connection)
        since = present - timedelta(wanted.days)
        days = summaries.count_by_day(connection, namespace, present.date(), wanted.days)
        writers = summaries.list_writers(
            connection, namespace, since.timestamp(), wanted.actor, wanted.rows().stop
        )
    log, earlier = None, None
    if call.principal.may("admin", namespace):
        most = 1000 if wanted.export else 100
        asked = LogFilter(actor=wanted.actor or None, since=since, before=wanted.before, limit=most)
        read = read_log(call.database, call.principal, namespace, asked)
        log, earlier = read.entries, read.next
    lists = {"days": days, "writers": writers, "log": log}
    return render_page("activity.html", call, namespace, wanted, lists, earlier=earlier)


class ComparisonFilter(Wanted):
    """Another namespace, and a kernel by its full name, empty for any."""

    to: str = Field(default="", max_length=500)
    kernel: str = Field(default="", max_length=500)


@router.get("/pages/{namespace}/compare")
def compare_namespaces(
    namespace: Namespace, call: CurrentCall, wanted: Annotated[ComparisonFilter, Query()]
) -> Response:
    """Compare what readers get in two namespaces, context by context."""
    call.principal.require("read", namespace)
    other = wanted.to if re.fullmatch(NAMESPACE, wanted.to) else ""
    is_compared = other not in ("", namespace)
    rows, total = _differences(call, namespace, other, wanted) if is_compared else ([], 0)
    readable = {row["namespace"] for row in list_namespaces(call)}
    return render_page(
        "compare.html",
        call,
        namespace,
        wanted,
        {"differences": rows},
        to=other,
        others=sorted(readable - {namespace}),
        is_compared=is_compared,
        total=total,
        sums={
            name: sum(row[name] for row in rows)
            for name in ("here", "absent", "differing", "pinned")
        },
    )


def _differences(
    call: Call, namespace: str, other: str, wanted: ComparisonFilter
) -> tuple[list[dict[str, Any]], int]:
    """Compare what readers get in a page of the contexts of two namespaces; count all contexts."""
    call.principal.require("read", other)
    with call.database.read() as connection:
        ours, theirs = (
            {
                row.digest: row
                for row in summaries.load_contexts(connection, name, wanted.kernel or None)
            }
            for name in (namespace, other)
        )
        tuned = [row for row in (ours | theirs).values() if row.records]
        shown = tuned[wanted.rows()]
        both = [row.digest for row in shown if row.digest in ours.keys() & theirs]
        ids = ([side[digest].id for digest in both] for side in (ours, theirs))
        counts = summaries.count_differences(connection, *ids)
    rows = []
    for row in shown:
        here, there = (
            side[row.digest].records if row.digest in side else 0 for side in (ours, theirs)
        )
        same = {"absent": here, "differing": 0, "pinned": 0}
        own = counts.get(ours[row.digest].id, same) if here else same
        rows.append({"context": row.context, "here": here, "there": there} | own)
    return rows, len(tuned)
