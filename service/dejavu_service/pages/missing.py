"""What is missing, by demand and by GPU, who is tuning it now, and the forms to say so."""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlencode

from fastapi import Query, Response
from pydantic import Field
from sqlalchemy import Connection

from dejavu_cache.model.scenario import Context, Scenario

from ..errors import NotFoundError
from ..routes.common import CurrentCall, Namespace
from ..services import leases, misses
from ..storage import summaries
from .forms import WriterForm
from .overview import OverviewFilter, by_kernel, contexts_of
from .rendering import (
    PAGE_METHODS,
    PAGE_SIZE,
    Wanted,
    count_pages,
    pages_router,
    redirect,
    render_page,
)
from .tables import ScenarioColumns

__all__ = ["router"]

router = pages_router()

_MOST_GAPS = 100
_DIGEST = re.compile(r"[0-9a-f]{24}")


class WorklistFilter(Wanted):
    """A kernel by its full name and a GPU, empty for any."""

    kernel: str = Field(default="", max_length=500)
    device: str = Field(default="", max_length=500)


class MissView(NamedTuple):
    """A scenario that was missed; times are seconds since 1970.

    Attributes:
        claimed_by: Who said that they would tune it; None if nobody did.
        claimed_at: When they said so.
        holder: The process that holds the lease on it, and so tunes it now; empty if none does.
    """

    context: Context
    scenario: Scenario
    times: int
    first_seen: float
    last_seen: float
    claimed_by: str | None
    claimed_at: float | None
    holder: str


@router.api_route("/pages/{namespace}/misses", methods=PAGE_METHODS)
def show_worklist(
    namespace: Namespace, call: CurrentCall, wanted: Annotated[WorklistFilter, Query()]
) -> Response:
    """Show the scenarios that were looked up and have no record, the most wanted first."""
    call.principal.require("read", namespace)
    kernel, start = wanted.kernel or None, (wanted.page - 1) * PAGE_SIZE
    with call.database.read() as connection:
        devices = misses.count_by_device(connection, namespace, kernel)
        listed = misses.list_misses(
            connection, namespace, kernel, PAGE_SIZE, wanted.device or None, start
        )
        holders = leases.list_holders(connection, namespace)
        gaps = _gaps(connection, namespace, wanted) if wanted.device else None
    rows = []
    scenarios: dict[str, list[Scenario]] = {}
    for row in listed:
        context = Context.model_validate_json(row.context)
        scenario = Scenario.model_validate_json(row.scenario)
        holder = holders.get((context.digest, scenario.digest), "")
        rows.append(MissView(context, scenario, *row[2:], holder))
        scenarios.setdefault(context.kernel.name, []).append(scenario)
    total = sum(count for device, count, _ in devices if wanted.device in ("", device))
    return render_page(
        "misses.html",
        call,
        namespace,
        wanted=wanted,
        gaps=gaps,
        rows=rows,
        columns={name: ScenarioColumns(missed) for name, missed in scenarios.items()},
        total=total,
        pages=count_pages(total),
        devices=devices,
    )


def _gaps(
    connection: Connection, namespace: str, wanted: WorklistFilter
) -> list[tuple[str, str, int, int]]:
    """Return what is tuned elsewhere and not on the wanted GPU, the largest gaps first.

    Of each kernel and Triton there, the numbers of scenarios that are tuned and that are known.
    """
    rows = summaries.load_contexts(connection, namespace)
    covered = contexts_of(rows, {}, summaries.count_misses(connection, namespace))
    kernels = [
        kernel
        for kernel in by_kernel(covered, OverviewFilter(device=wanted.device))
        if wanted.kernel in ("", kernel.name)
    ]
    known = summaries.count_known(
        connection, {kernel.name: kernel.comparable for kernel in kernels}
    )
    gaps = []
    for kernel in kernels:
        tuned = [(entry.triton, entry.row.records) for entry in kernel.current]
        tuned += [(triton, 0) for _, triton in kernel.lacking]
        gaps += [(kernel.name, triton, records, known[kernel.name]) for triton, records in tuned]
    gaps = [gap for gap in gaps if gap[2] < gap[3]]
    return sorted(gaps, key=lambda gap: (gap[2] - gap[3], gap))[:_MOST_GAPS]


@router.post("/pages/{namespace}/misses/{change}")
def change_miss(
    namespace: Namespace, change: Literal["claim", "release", "dismiss"], form: WriterForm
) -> Response:
    """Note that the caller or nobody will tune a scenario, or take it off the worklist."""
    context, scenario = form.text("context", 24), form.text("scenario", 24)
    if not _DIGEST.fullmatch(context) or not _DIGEST.fullmatch(scenario):
        raise NotFoundError("there is no such scenario on the worklist")
    misses.change_miss(
        form.call.database, form.call.principal, namespace, context, scenario, change
    )
    query = {name: form.text(name) for name in ("kernel", "device") if form.text(name)}
    return redirect(f"/pages/{namespace}/misses?{urlencode(query)}")
