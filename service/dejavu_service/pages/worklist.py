"""The worklist: what is missing, by demand and by GPU, and who is tuning it now."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from dejavu_cache.model.scenario import Context, Scenario

from ..services.access import Principal
from ..storage import leases, misses
from ..storage.database import Database
from .columns import ScenarioColumns
from .paging import take_page

__all__ = ["WorklistFilter", "WorklistView", "worklist"]

_MAX_ROWS = 1000


class WorklistFilter(NamedTuple):
    """What to list: a kernel by its full name and a GPU, empty for any, and the page."""

    kernel: str = ""
    device: str = ""
    page: int = 1


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


class WorklistView(NamedTuple):
    """A page of the most wanted scenarios, how many match, and misses and demand by GPU.

    Attributes:
        columns: The arguments of the page's scenarios, by kernel.
    """

    rows: list[MissView]
    columns: dict[str, ScenarioColumns]
    total: int
    devices: list[tuple[str, int, int]]
    is_cut: bool
    """Whether there are more misses than are looked at."""


def worklist(
    database: Database, principal: Principal, namespace: str, wanted: WorklistFilter
) -> WorklistView:
    """Load a page of the worklist, the most frequent misses first.

    Raises:
        AccessDeniedError: The principal may not read the namespace.
    """
    principal.require("read", namespace)
    with database.read() as connection:
        listed = misses.list_misses(connection, namespace, wanted.kernel or None, _MAX_ROWS)
        holders = leases.list_holders(connection, namespace)
    views = []
    for row in listed:
        context = Context.model_validate_json(row.context)
        scenario = Scenario.model_validate_json(row.scenario)
        holder = holders.get((context.digest, scenario.digest), "")
        views.append(MissView(context, scenario, *row[2:], holder))
    count: Counter[str] = Counter()
    demand: Counter[str] = Counter()
    for view in views:
        count[view.context.environment.device.name] += 1
        demand[view.context.environment.device.name] += view.times
    matching = [
        view for view in views if wanted.device in ("", view.context.environment.device.name)
    ]
    rows = take_page(matching, wanted.page)
    scenarios: dict[str, list[Scenario]] = {}
    for view in rows:
        scenarios.setdefault(view.context.kernel.name, []).append(view.scenario)
    return WorklistView(
        rows=rows,
        columns={name: ScenarioColumns(missed) for name, missed in scenarios.items()},
        total=len(matching),
        devices=[(name, count[name], times) for name, times in demand.most_common()],
        is_cut=len(listed) == _MAX_ROWS,
    )
