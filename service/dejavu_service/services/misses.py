"""The worklist: scenarios that processes launched and that have no record."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import BaseModel, Field, StrictInt
from sqlalchemy import Connection, and_, case, func, select

from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.model.worth import MissCount, Saving

from ..storage import contexts as stored_contexts
from ..storage import summaries as stored_summaries
from ..storage.database import Database
from ..storage.sql import epoch, insert, to_datetime
from ..storage.tables import contexts, misses, records
from .access import Principal
from .requests import (
    CurrentCall,
    KernelName,
    Namespace,
    accepts,
    json_response,
    require_few,
    responds_with,
    versioned_router,
)

router = versioned_router()

MOST_MISSES = 100_000
"""Misses of all namespaces, up to which those who may only read add new ones."""
MOST_MISSED_CONTEXTS = 2000
"""Contexts without records, likewise: pages load all contexts of a namespace."""
_ROOM_OF_WRITERS = 2
"""Multiple of both up to which writers add, so that readers leave them room."""
_LONGEST = 8 * 1024
"""Characters of a scenario and its context beyond which a miss is not counted."""

_WORTH = (*Saving.model_fields, "said_by")
"""Columns of what a tune saves, and of who says so."""

_Report = Sequence[tuple[Context, Scenario, MissCount]]


def count_misses(
    database: Database, principal: Principal, namespace: str, reported: _Report
) -> int:
    """Add reported misses to the worklist.

    Nobody can fill the database with them: a report that could lead to more than `MOST_MISSES`, or
    to more than `MOST_MISSED_CONTEXTS` without records, is not counted. Writers may lead to twice
    as many as those who only read.

    Returns:
        The number of misses counted.

    Raises:
        TooLargeError: The report has more than `MOST_RECORDS` entries.
    """
    require_few(len(reported), "misses")
    reported = [miss for miss in reported if len(miss[0].text) + len(miss[1].text) <= _LONGEST]
    with database.write() as connection:
        share = _ROOM_OF_WRITERS if principal.may("write", namespace) else 1
        if not _has_room(connection, reported, share):
            return 0
        ids = stored_contexts.ensure(
            connection, namespace, [context for context, _, _ in reported], hold=True
        )
        counts: dict[tuple[int, Scenario], MissCount] = {}
        for context, scenario, missed in reported:
            key = ids[context.digest], scenario
            counts[key] = counts.get(key, MissCount(0)).plus(missed)
        _add_counts(connection, counts, principal.name)
        total = sum(missed.launches for missed in counts.values())
        stored_summaries.add_to_day(connection, namespace, missed=total)
    return total


def _has_room(connection: Connection, reported: _Report, share: int) -> bool:
    listed = connection.execute(select(func.count()).select_from(misses)).scalar_one()
    empty = stored_contexts.count_empty(connection)
    added = len({context.digest for context, _, _ in reported})
    is_full = listed + len(reported) > share * MOST_MISSES
    return not is_full and empty + added <= share * MOST_MISSED_CONTEXTS


def _add_counts(
    connection: Connection, counts: Mapping[tuple[int, Scenario], MissCount], reporter: str
) -> None:
    """Add to the counts of scenarios, which are keyed by context id and scenario."""
    rows = [
        {
            "context_id": context_id,
            "scenario": scenario.digest,
            "scenario_text": scenario.text,
            "count": launches,
            **({**dict(saving), "said_by": reporter} if saving else dict.fromkeys(_WORTH)),
        }
        for (context_id, scenario), (launches, saving) in counts.items()
    ]
    # All writers lock the rows in the same order, so that no two wait for each other.
    rows.sort(key=itemgetter("context_id", "scenario"))
    if not rows:
        return
    statement = insert(connection, misses).values(first_seen=epoch(), last_seen=epoch())
    new = statement.excluded
    worth = {name: func.coalesce(new[name], misses.c[name]) for name in _WORTH}
    statement = statement.on_conflict_do_update(
        index_elements=[misses.c.context_id, misses.c.scenario],
        set_={"count": misses.c.count + new.count, "last_seen": epoch(), **worth},
    )
    connection.execute(statement, rows)


_is_tuned = (
    select(records.c.scenario)
    .where(
        records.c.context_id == misses.c.context_id,
        records.c.scenario == misses.c.scenario,
        records.c.chosen.is_not(None),
    )
    .exists()
)


def list_misses(
    connection: Connection,
    namespace: str,
    kernel: str | None,
    rows: slice,
    device: str | None = None,
) -> list[Any]:
    """List the scenarios without a winner or a pin, in the order of `Worth.order`.

    Contexts and scenarios are JSON texts, and times are seconds since 1970.
    """
    saves = misses.c.count * misses.c.expected
    ties = misses.c.count.desc(), misses.c.last_seen.desc()
    kind = case((saves.is_(None), 1), (saves > 1e3 * misses.c.takes, 0), else_=2)
    query = (
        select(
            contexts.c.text.label("context"),
            misses.c.scenario_text.label("scenario"),
            misses.c.count.label("times"),
            misses.c.first_seen,
            misses.c.last_seen,
            *(misses.c[name] for name in _WORTH),
        )
        .join(contexts, contexts.c.id == misses.c.context_id)
        .where(contexts.c.namespace == namespace, ~_is_tuned)
        .order_by(
            kind, func.coalesce(saves, 0.0).desc(), *ties, misses.c.scenario, contexts.c.digest
        )
        .slice(rows.start, rows.stop)
    )
    if kernel is not None:
        query = query.where(contexts.c.kernel == kernel)
    if device is not None:
        query = query.where(contexts.c.device == device)
    return list(connection.execute(query))


def saving_of(listed: Any) -> Saving | None:
    """Return what a tune saves each launch of a miss that `list_misses` lists, if it is known."""
    if listed.expected is None:
        return None
    return Saving.model_validate(listed, from_attributes=True)


def count_by_device(
    connection: Connection, namespace: str, kernel: str | None
) -> list[tuple[str, int, int]]:
    """Count what `list_misses` lists of each GPU of a namespace, the most wanted first.

    Returns:
        Of each GPU the name, the number of scenarios, and how often they were asked for.
    """
    joined = [misses.c.context_id == contexts.c.id, ~_is_tuned]
    if kernel is not None:
        joined.append(contexts.c.kernel == kernel)
    times = func.coalesce(func.sum(misses.c.count), 0)
    query = (
        select(contexts.c.device, func.count(misses.c.scenario), times)
        .select_from(contexts.outerjoin(misses, and_(*joined)))
        .where(contexts.c.namespace == namespace)
        .group_by(contexts.c.device)
        .order_by(times.desc(), contexts.c.device)
    )
    return [(device, count, int(total)) for device, count, total in connection.execute(query)]


class Miss(BaseModel):
    """A scenario without a record, its launches since the last report, and what each would save.

    Fields of a later version are passed over, here and in the report: they change nothing else.
    """

    context: Context
    scenario: Scenario
    count: StrictInt = Field(default=1, ge=1, le=1_000_000_000)
    saving: Saving | None = None


class Misses(BaseModel):
    """A report of misses."""

    misses: list[Miss]


class Counted(BaseModel):
    """The number of misses counted."""

    counted: int


@router.post("/{namespace}/misses")
@accepts("read", 4 * 2**20)
def report_misses(namespace: Namespace, report: Misses, call: CurrentCall) -> Counted:
    """Add misses to the worklist."""
    reported = [
        (miss.context, miss.scenario, MissCount(miss.count, miss.saving)) for miss in report.misses
    ]
    counted = count_misses(call.database, call.principal, namespace, reported)
    return Counted(counted=counted)


class WorklistItem(BaseModel):
    """A scenario without a record, how often it was launched, and what a tune saves each launch."""

    context: Context
    scenario: Scenario
    count: int
    saving: Saving | None
    said_by: str | None
    first_seen: datetime
    last_seen: datetime


class Worklist(BaseModel):
    """Misses, those first whose tune saves most."""

    misses: list[WorklistItem]


@router.get("/{namespace}/misses", responses=responds_with(Worklist))
def read_worklist(
    namespace: Namespace,
    call: CurrentCall,
    kernel: KernelName = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """List the worklist, the misses first whose tune saves most."""
    call.principal.require("read", namespace)
    with call.database.read() as connection:
        listed = list_misses(connection, namespace, kernel, slice(0, limit))
    rendered = ", ".join(
        f'{{"context": {miss.context}, "scenario": {miss.scenario}, "count": {miss.times}, '
        f'"saving": {saving.model_dump_json() if (saving := saving_of(miss)) else "null"}, '
        f'"said_by": {json.dumps(miss.said_by)}, '
        f'"first_seen": "{to_datetime(miss.first_seen).isoformat()}", '
        f'"last_seen": "{to_datetime(miss.last_seen).isoformat()}"}}'
        for miss in listed
    )
    return json_response(f'{{"misses": [{rendered}]}}')
