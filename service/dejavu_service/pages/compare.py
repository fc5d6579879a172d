"""Comparisons: two namespaces, and a context with another GPU, Triton, namespace or date."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import date, datetime, timezone
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

from fastapi import Query, Response
from pydantic import Field
from sqlalchemy import Connection

from dejavu_cache.model.scenario import Config, Context, Scenario

from ..errors import InvalidRequestError, NotFoundError
from ..routes.common import Call, ContextDigest, CurrentCall, Namespace
from ..services import transfer
from ..services.access import NAMESPACE
from ..storage import record_texts, summaries
from ..storage.summaries import ContextRow, DifferenceCounts, count_differences
from .forms import AdminForm
from .rendering import (
    PAGE_METHODS,
    Wanted,
    count_pages,
    list_namespaces,
    pages_router,
    redirect,
    render_page,
    take_page,
)
from .tables import ConfigNames, ScenarioColumns

__all__ = ["router"]

router = pages_router()

_MOST_CONTEXTS = 50
_MOST_RECORDS = 20_000
"""Records that are compared for one page."""
_MOST_OTHERS = 100
"""Contexts that are listed of those that only the other namespace has."""


class NamespacesFilter(Wanted):
    """Another namespace, and a kernel by its full name, empty for any."""

    to: str = Field(default="", max_length=500)
    kernel: str = Field(default="", max_length=500)


@router.api_route("/pages/{namespace}/compare", methods=PAGE_METHODS)
def compare_namespaces(
    namespace: Namespace, call: CurrentCall, wanted: Annotated[NamespacesFilter, Query()]
) -> Response:
    """Compare two namespaces; for an admin of both, the preview of a promotion."""
    call.principal.require("read", namespace)
    readable = {name for name, *_ in list_namespaces(call.database, call.principal)}
    other = wanted.to if re.fullmatch(NAMESPACE, wanted.to) else ""
    is_compared = bool(other) and other != namespace
    return render_page(
        "compare.html",
        call,
        namespace,
        wanted=wanted,
        to=other,
        others=sorted(readable - {namespace}),
        is_compared=is_compared,
        may_promote=bool(other) and call.principal.may("admin", other),
        **(_differences(call, namespace, other, wanted) if is_compared else {}),
    )


def _differences(
    call: Call, namespace: str, other: str, wanted: NamespacesFilter
) -> dict[str, Any]:
    """Compare what readers get in two namespaces, a page of contexts at a time."""
    call.principal.require("read", other)
    with call.database.read() as connection:
        ours, theirs = (
            [
                row
                for row in summaries.load_contexts(connection, name, wanted.kernel or None)
                if row.records
            ]
            for name in (namespace, other)
        )
        pages = _paginate(ours)
        shown = pages[wanted.page - 1] if wanted.page <= len(pages) else []
        counts = count_differences(connection, [row.id for row in shown], other)
    there = {row.digest: row.records for row in theirs}
    here = {row.digest for row in ours}
    rows = [
        (
            row,
            Context.model_validate_json(row.text),
            there.get(row.digest, 0),
            counts.get(row.id, DifferenceCounts(row.records, 0, 0)),
        )
        for row in shown
    ]
    only_there = [row for row in theirs if row.digest not in here]
    return {
        "rows": rows,
        "only_there": [
            (Context.model_validate_json(row.text), row.records)
            for row in only_there[:_MOST_OTHERS]
            if wanted.page >= len(pages)
        ],
        "total": sum(row.records for row in ours),
        "pages": len(pages),
        "records": sum(row.records for row in shown),
        "absent": sum(difference.absent for *_, difference in rows),
        "differing": sum(difference.differing for *_, difference in rows),
        "pinned": sum(difference.pinned for *_, difference in rows),
    }


def _paginate(rows: Sequence[ContextRow]) -> list[list[ContextRow]]:
    """Divide contexts into pages of a bounded number of contexts and records, of one at least."""
    pages: list[list[ContextRow]] = []
    records = _MOST_RECORDS
    for row in rows:
        records += row.records
        if records > _MOST_RECORDS or len(pages[-1]) == _MOST_CONTEXTS:
            pages.append([])
            records = row.records
        pages[-1].append(row)
    return pages


@router.post("/pages/{namespace}/promote")
def promote(namespace: Namespace, form: AdminForm) -> Response:
    """Copy a namespace's records to another, of all kernels or one, and show both compared."""
    call, target, kernel = form.call, form.text("to", 64), form.text("kernel")
    if not re.fullmatch(NAMESPACE, target):
        raise InvalidRequestError(f"{target!r} is no name of a namespace: choose another one")
    transfer.promote(call.database, call.principal, namespace, target, kernel or None, None)
    return redirect(f"/pages/{namespace}/compare?{urlencode({'to': target, 'kernel': kernel})}")


class ContextsFilter(Wanted):
    """The digest of another context, another namespace, and a day; empty for the same and now."""

    other: str = Field(default="", pattern=r"^[0-9a-f]{0,24}$")
    to: str = Field(default="", max_length=500)
    until: str = Field(default="", pattern=r"^(\d{4}-\d{2}-\d{2})?$")


class SideChoice(NamedTuple):
    """The config that a side runs, as JSON, and its median there."""

    config: str | None
    median: float | None


class ComparedScenario(NamedTuple):
    """A scenario, and what each side runs; None where a side has no record."""

    scenario: Scenario
    ours: SideChoice | None
    theirs: SideChoice | None

    @property
    def differs(self) -> bool:
        """Return whether the sides run different configs."""
        return (self.ours and self.ours.config) != (self.theirs and self.theirs.config)


@router.api_route("/pages/{namespace}/contexts/{context}/compare", methods=PAGE_METHODS)
def compare_contexts(
    namespace: Namespace,
    context: ContextDigest,
    call: CurrentCall,
    wanted: Annotated[ContextsFilter, Query()],
) -> Response:
    """Compare a context with another GPU or Triton, namespace or date, what differs first."""
    there = wanted.to if re.fullmatch(NAMESPACE, wanted.to) else namespace
    for name in (namespace, there):
        call.principal.require("read", name)
    with call.database.read() as connection:
        left = _load(connection, namespace, context)
        right = _load(connection, there, wanted.other or context)
        ours = _choices(connection, left)
        theirs = _choices(connection, right, _end_of_day(wanted.until))
        texts = summaries.load_scenarios(connection, right.id)
        texts |= summaries.load_scenarios(connection, left.id)
        parsed, other = (Context.model_validate_json(row.text) for row in (left, right))
        siblings = summaries.load_contexts(connection, namespace, parsed.kernel.name)
        compared = [
            ComparedScenario(
                Scenario.model_validate_json(texts[digest]), ours.get(digest), theirs.get(digest)
            )
            for digest in ours.keys() | theirs.keys()
            if digest in texts
        ]
        columns = ScenarioColumns(row.scenario for row in compared)
        compared.sort(key=lambda row: (not row.differs, columns.order(row.scenario)))
        rows = take_page(compared, wanted.page)
        costs = _costs(connection, namespace, context, rows)
    choices = [choice for row in compared for choice in (row.ours, row.theirs) if choice]
    chosen = {choice.config for choice in choices if choice.config}
    both = [row for row in compared if row.ours and row.theirs]
    return render_page(
        "compare_context.html",
        call,
        namespace,
        wanted=wanted,
        context=parsed,
        other=other,
        there=there,
        siblings=[Context.model_validate_json(row.text) for row in siblings if row.records],
        same=sum(not row.differs for row in both),
        differing=sum(row.differs for row in both),
        ours_only=sum(row.theirs is None for row in compared),
        theirs_only=sum(row.ours is None for row in compared),
        columns=columns,
        names=ConfigNames([Config.model_validate_json(text) for text in chosen]),
        rows=[(row, costs.get(row.scenario.digest)) for row in rows],
        total=len(compared),
        pages=count_pages(len(compared)),
    )


def _load(connection: Connection, namespace: str, digest: str) -> ContextRow:
    rows = summaries.load_contexts(connection, namespace, digest=digest)
    if not rows or not rows[0].records:
        raise NotFoundError(
            f"namespace {namespace!r} has no records of this context: choose another"
        )
    return rows[0]


def _end_of_day(text: str) -> float | None:
    """Return the end of a day (UTC) in seconds since 1970; None for no day."""
    try:
        day = date.fromisoformat(text) if text else None
    except ValueError:
        raise InvalidRequestError(f"until: {text} is no day: write it as 2026-11-30") from None
    if day is None:
        return None
    return datetime(day.year, day.month, day.day, tzinfo=timezone.utc).timestamp() + 86400


def _choices(
    connection: Connection, row: ContextRow, until: float | None = None
) -> dict[str, SideChoice]:
    """Return what a side runs in each scenario; of the past, the fastest of what had arrived."""
    if until is None:
        loaded = summaries.load(connection, row.id)
        return {digest: SideChoice(entry.chosen, entry.median) for digest, entry in loaded.items()}
    best: dict[str, SideChoice] = {}
    for digest, text in record_texts.iter_until(connection, row.id, until):
        measured = json.loads(text)
        median = measured.get("median")
        previous = best.get(digest)
        if median and (previous is None or not previous.median or median < previous.median):
            best[digest] = SideChoice(Config.model_validate(measured["config"]).text, median)
    return best


def _costs(
    connection: Connection, namespace: str, context: str, rows: list[ComparedScenario]
) -> dict[str, float]:
    """Return how much slower the other side's configs are here, by the digest of their scenario."""
    wanted = {row.scenario.digest: row for row in rows if row.differs and row.ours and row.theirs}
    costs: dict[str, float] = {}
    for texts in record_texts.iter_texts(connection, namespace, context, list(wanted)):
        for digest, text in texts.items():
            ours, theirs = wanted[digest].ours, wanted[digest].theirs
            if ours is None or theirs is None or not ours.median or theirs.config is None:
                continue
            config = Config.model_validate_json(theirs.config)
            for measured in json.loads(text)["measurements"]:
                median = measured.get("median")
                if median and Config.model_validate(measured["config"]) == config:
                    costs[digest] = median / ours.median - 1
    return costs
