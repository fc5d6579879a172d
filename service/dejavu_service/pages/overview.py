"""What is tuned: the namespaces, the kernels of one, and what changed there lately."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlencode

from fastapi import Query, Response
from fastapi.responses import RedirectResponse
from pydantic import Field

from dejavu_cache.model.scenario import Context

from ..routes.common import CurrentCall, Namespace
from ..services.access import Principal
from ..services.log import LogFilter, read_log
from ..storage import summaries
from ..storage.database import Database
from ..storage.sql import database_time
from ..storage.summaries import ContextRow, TuningCost
from .rendering import PAGE_METHODS, Wanted, list_namespaces, pages_router, render_page

__all__ = [
    "CoveredContext",
    "OverviewFilter",
    "by_kernel",
    "contexts_of",
    "current_source",
    "overview",
]

router = pages_router()

_DAY = 86400.0
_MOST_NAMESPACES = 1000
"""Namespaces that are listed: each pull request may have one."""
_MOST_ENTRIES = 100
"""Entries of the log on a page."""
_Text = Annotated[str, Query(max_length=500)]


@router.api_route("/", methods=PAGE_METHODS)
def show_front(call: CurrentCall) -> Response:
    """Redirect to the namespace with the most records."""
    records = {row[0]: row[2] for row in list_namespaces(call.database, call.principal)}
    largest = max(records, key=lambda name: records[name], default="main")
    return RedirectResponse(f"/pages/{largest}")


@router.api_route("/namespaces", methods=PAGE_METHODS)
def show_namespaces(call: CurrentCall, q: _Text = "", open: _Text = "") -> Response:  # noqa: A002
    """List the namespaces whose name contains a text, or go to one."""
    search = open or q
    listed = list_namespaces(call.database, call.principal, search)
    if open in {name for name, *_ in listed}:
        return RedirectResponse(f"/pages/{open}", 303)
    shown = listed[:_MOST_NAMESPACES]
    return render_page("namespaces.html", call, "", listed=shown, total=len(listed), search=search)


class OverviewFilter(Wanted):
    """What kernels to show, and in what order; an empty text stands for any."""

    q: str = Field(default="", max_length=500)
    """A part of the kernel's name, in any case."""
    device: str = Field(default="", max_length=500)
    triton: str = Field(default="", max_length=500)
    days: str = Field(default="", pattern=r"^\d{0,5}$")
    """The largest age of the last change."""
    sort: Literal["kernel", "records", "missing", "tuning", "saved", "changed"] = "kernel"

    def covers(self, entry: CoveredContext) -> bool:
        """Return whether a context has the wanted GPU and Triton."""
        return self.device in ("", entry.device) and self.triton in ("", entry.triton)


class CoveredContext(NamedTuple):
    """A context, what is tuned in it, and what that cost.

    Attributes:
        row: The context as it is stored.
        context: The context.
        missing: The number of scenarios that were missed in it.
        seconds: The cost of its measurements.
        saved: The estimated time that reuse saved, in seconds.
        changed_at: When its records changed last, in seconds since 1970.
    """

    row: ContextRow
    context: Context
    missing: int
    seconds: float
    saved: float
    changed_at: float

    @property
    def device(self) -> str:
        """Name of the GPU."""
        return self.context.environment.device.name

    @property
    def triton(self) -> str:
        """Version of Triton."""
        return self.context.environment.triton


class KernelRow(NamedTuple):
    """A kernel with its contexts of the GPUs and Tritons that are asked for, and their sums.

    Attributes:
        name: The kernel's name.
        current: The contexts of its current source.
        outdated: The contexts of earlier sources.
        lacking: The GPUs and Tritons that have none of the current source.
        comparable: The ids of the contexts, of all GPUs, that have scenarios of the same arguments.
        latest: The context that changed last; None if there is none.
        records: The number of records.
        missing: The number of scenarios that were missed.
        tuning: The cost of all measurements, in seconds.
        saved: The estimated time that reuse saved, in seconds.
        changed: When the records changed last, in seconds since 1970.
    """

    name: str
    current: list[CoveredContext]
    outdated: list[CoveredContext]
    lacking: list[tuple[str, str]]
    comparable: list[int]
    latest: CoveredContext | None
    records: int
    missing: int
    tuning: float
    saved: float
    changed: float


@router.api_route("/pages/{namespace}", methods=PAGE_METHODS)
def show_overview(
    namespace: Namespace, call: CurrentCall, wanted: Annotated[OverviewFilter, Query()]
) -> Response:
    """Show what is tuned of every kernel, what that cost, and what reuse saved."""
    seen = overview(call.database, call.principal, namespace, wanted)
    return render_page("overview.html", call, namespace, wanted=wanted, **seen)


def overview(
    database: Database, principal: Principal, namespace: str, wanted: OverviewFilter, size: int = 25
) -> dict[str, Any]:
    """Load what the overview of a namespace shows: a page of kernels, and the totals of all.

    A kernel that has nothing on a GPU is shown there too, as lacking all that is known elsewhere.

    Raises:
        AccessDeniedError: The principal may not read the namespace.
    """
    principal.require("read", namespace)
    with database.read() as connection:
        covered = contexts_of(
            summaries.load_contexts(connection, namespace),
            summaries.load_costs(connection, namespace),
            summaries.count_misses(connection, namespace),
        )
        since = 0.0
        if wanted.days:
            since = database_time(connection).timestamp() - int(wanted.days) * _DAY
        kernels = [
            kernel
            for kernel in by_kernel(covered, wanted)
            if wanted.q.lower() in kernel.name.lower() and kernel.changed >= since
        ]
        if wanted.sort != "kernel":
            kernels.sort(key=lambda kernel: (-getattr(kernel, wanted.sort), kernel.name))
        page = kernels[(wanted.page - 1) * size : wanted.page * size]
        known = summaries.count_known(connection, {row.name: row.comparable for row in page})
    return {
        "kernels": page,
        "known": known,
        "matching": len(kernels),
        "records": sum(kernel.records for kernel in kernels),
        "seconds": sum(kernel.tuning for kernel in kernels),
        "saved": sum(kernel.saved for kernel in kernels),
        "devices": sorted({entry.device for entry in covered}),
        "tritons": sorted({entry.triton for entry in covered}),
        "pages": -(-len(kernels) // size),
    }


def contexts_of(
    rows: Iterable[ContextRow],
    costs: Mapping[int, TuningCost] | None = None,
    missing: Mapping[int, int] | None = None,
) -> list[CoveredContext]:
    """Combine contexts with their costs and misses; those that have neither are left out."""
    covered = []
    for row in rows:
        missed = (missing or {}).get(row.id, 0)
        if not row.records and not missed:
            continue
        cost = (costs or {}).get(row.id, TuningCost(0.0, row.created_at))
        # A machine fetches because it wants one scenario at least, which it need not tune then.
        saved = row.fetches * cost.seconds / row.records if row.records else 0.0
        changed_at = row.changed_at or cost.changed_at
        context = Context.model_validate_json(row.text)
        covered.append(CoveredContext(row, context, missed, cost.seconds, saved, changed_at))
    return covered


def current_source(contexts: Sequence[CoveredContext]) -> str:
    """Return the source hash of a kernel that is in use: read or written, or else made, last."""
    latest = max(
        contexts, key=lambda covered: (covered.row.used_at // _DAY, covered.row.created_at)
    )
    return latest.context.kernel.source


def by_kernel(covered: Sequence[CoveredContext], wanted: OverviewFilter) -> list[KernelRow]:
    """Group contexts by kernel, those of the wanted GPUs and Tritons, if there are any at all."""
    places = sorted({(entry.device, entry.triton) for entry in filter(wanted.covers, covered)})
    if not places:
        return []
    by_name: dict[str, list[CoveredContext]] = {}
    for entry in covered:
        by_name.setdefault(entry.context.kernel.name, []).append(entry)
    return [_kernel_row(name, by_name[name], wanted, places) for name in sorted(by_name)]


def _kernel_row(
    name: str,
    entries: list[CoveredContext],
    wanted: OverviewFilter,
    places: Sequence[tuple[str, str]],
) -> KernelRow:
    source = current_source(entries)
    (keys, *_) = (
        entry.context.problem.keys for entry in entries if entry.context.kernel.source == source
    )
    shown = sorted(
        filter(wanted.covers, entries),
        key=lambda entry: (entry.device, entry.triton, entry.row.digest),
    )
    current = [entry for entry in shown if entry.context.kernel.source == source]
    latest = max(shown, key=lambda entry: entry.changed_at, default=None)
    present = {(entry.device, entry.triton) for entry in current}
    return KernelRow(
        name=name,
        current=current,
        outdated=[entry for entry in shown if entry.context.kernel.source != source],
        lacking=[place for place in places if place not in present],
        comparable=[entry.row.id for entry in entries if entry.context.problem.keys == keys],
        latest=latest,
        records=sum(entry.row.records for entry in shown),
        missing=sum(entry.missing for entry in shown),
        tuning=sum(entry.seconds for entry in shown),
        saved=sum(entry.saved for entry in shown),
        changed=latest.changed_at if latest else 0.0,
    )


@router.api_route("/pages/{namespace}/activity", methods=PAGE_METHODS)
def show_activity(
    namespace: Namespace,
    call: CurrentCall,
    days: Annotated[int, Query(ge=1, le=3650)] = 7,
    actor: Annotated[str, Query(max_length=300)] = "",
    before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
) -> Response:
    """Show what people changed, by the log, and what was tuned in the last days."""
    call.principal.require("read", namespace)
    with call.database.read() as connection:
        since = database_time(connection) - timedelta(days=days)
        changed = summaries.count_changed(connection, namespace, since.timestamp())
        rows = [row for row in summaries.load_contexts(connection, namespace) if row.id in changed]
    tuned = [entry for entry in contexts_of(rows) if actor in (entry.row.changed_by or "")]
    tuned.sort(key=lambda entry: -entry.changed_at)
    log = None
    if call.principal.may("admin", namespace):
        wanted = LogFilter(actor=actor or None, since=since, before=before, limit=_MOST_ENTRIES)
        log = read_log(call.database, call.principal, namespace, wanted)
    return render_page(
        "activity.html",
        call,
        namespace,
        log=log,
        tuned=tuned,
        changed=changed,
        days=days,
        actor=actor,
        query=urlencode({"days": days, "actor": actor}),
    )
