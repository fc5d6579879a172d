"""What is missing, by demand and by GPU, who is tuning it now, and the forms to say so."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlencode

from fastapi import Query, Response
from pydantic import Field

from dejavu_cache.model.scenario import Context, Scenario

from ..errors import NotFoundError
from ..routes.common import CurrentCall, Namespace
from ..services import misses as service
from ..storage import leases, misses
from .forms import WriterForm
from .rendering import (
    PAGE_METHODS,
    Wanted,
    count_pages,
    pages_router,
    redirect,
    render_page,
    take_page,
)
from .tables import ScenarioColumns

__all__ = ["router"]

router = pages_router()

_MAX_ROWS = 1000
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

    @property
    def device(self) -> str:
        """Name of the GPU."""
        return self.context.environment.device.name


@router.api_route("/pages/{namespace}/misses", methods=PAGE_METHODS)
def show_worklist(
    namespace: Namespace, call: CurrentCall, wanted: Annotated[WorklistFilter, Query()]
) -> Response:
    """Show the scenarios that were looked up and have no record, the most wanted first."""
    call.principal.require("read", namespace)
    with call.database.read() as connection:
        listed = misses.list_misses(connection, namespace, wanted.kernel or None, _MAX_ROWS)
        holders = leases.list_holders(connection, namespace)
    views = []
    for row in listed:
        context = Context.model_validate_json(row.context)
        scenario = Scenario.model_validate_json(row.scenario)
        holder = holders.get((context.digest, scenario.digest), "")
        views.append(MissView(context, scenario, *row[2:], holder))
    count = Counter(view.device for view in views)
    demand: Counter[str] = Counter()
    for view in views:
        demand[view.device] += view.times
    matching = [view for view in views if wanted.device in ("", view.device)]
    rows = take_page(matching, wanted.page)
    scenarios: dict[str, list[Scenario]] = {}
    for view in rows:
        scenarios.setdefault(view.context.kernel.name, []).append(view.scenario)
    return render_page(
        "misses.html",
        call,
        namespace,
        wanted=wanted,
        rows=rows,
        columns={name: ScenarioColumns(missed) for name, missed in scenarios.items()},
        total=len(matching),
        pages=count_pages(len(matching)),
        devices=[(name, count[name], times) for name, times in demand.most_common()],
        is_cut=len(listed) == _MAX_ROWS,
    )


@router.post("/pages/{namespace}/misses/{change}")
def change_miss(
    namespace: Namespace, change: Literal["claim", "release", "dismiss"], form: WriterForm
) -> Response:
    """Note that the caller or nobody will tune a scenario, or take it off the worklist."""
    context, scenario = form.text("context", 24), form.text("scenario", 24)
    if not _DIGEST.fullmatch(context) or not _DIGEST.fullmatch(scenario):
        raise NotFoundError("there is no such scenario on the worklist")
    missed = (form.call.database, form.call.principal, namespace, context, scenario)
    if change == "dismiss":
        service.dismiss_miss(*missed)
    else:
        service.claim_miss(*missed, release=change == "release")
    query = {name: form.text(name) for name in ("kernel", "device") if form.text(name)}
    return redirect(f"/pages/{namespace}/misses?{urlencode(query)}")
