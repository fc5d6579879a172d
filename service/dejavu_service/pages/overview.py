"""What is tuned and what is missing: the kernels of a namespace, and its worklist."""

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import Query, Response
from pydantic import Field
from sqlalchemy import Connection

from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.model.worth import MissCount, Worth

from ..services import leases, misses
from ..services.access import Principal
from ..services.requests import CurrentCall, Namespace
from ..storage import summaries
from ..storage.database import Database
from ..storage.summaries import ContextRow
from .kernel import ScenarioColumns, current_source
from .rendering import Wanted, render_page, router

_KERNELS = 25
"""Kernels on one page."""
_MOST_GAPS = 100


class OverviewFilter(Wanted):
    """What kernels to show, and in what order; an empty text stands for any."""

    q: str = Field(default="", max_length=500)
    """A part of the kernel's name, in any case."""
    device: str = Field(default="", max_length=500)
    triton: str = Field(default="", max_length=500)
    sort: Literal["kernel", "records", "missing", "seconds", "saved", "changed_at"] = "kernel"


class KernelRow(NamedTuple):
    """A kernel with its contexts of the GPUs and Tritons that are asked for.

    Attributes:
        name: The kernel's name.
        current: The contexts of its current source.
        outdated: The contexts of earlier sources.
        lacking: The GPUs and Tritons that have none of the current source.
        comparable: The ids of the contexts, of all GPUs, that have scenarios of the same arguments.
    """

    name: str
    current: list[ContextRow]
    outdated: list[ContextRow]
    lacking: list[tuple[str, str]]
    comparable: list[int]

    @property
    def latest(self) -> ContextRow | None:
        """The context that changed last; None if there is none."""
        rows = [row for row in self.current + self.outdated if row.records or row.changed_by]
        return max(rows, key=lambda row: row.changed_at, default=None)

    def total(self, name: str) -> float:
        """Return the sum of an attribute of the contexts, or when the last of them changed."""
        values = [getattr(row, name) for row in self.current + self.outdated]
        return max(values, default=0.0) if name == "changed_at" else sum(values)

    def coverage(self, total: int) -> Iterator[dict[str, Any]]:
        """Yield what is tuned on each GPU and Triton, of what is known of any, and its cost."""
        own = {"kernel": self.name, "known": total}
        cost = ("missing", "seconds", "saved", "changed_at", "changed_by")
        for row in self.current:
            on = {"gpu": row.device, "triton": row.triton, "tuned": row.records}
            yield own | on | {name: getattr(row, name) for name in cost}
        for device, triton in self.lacking:
            yield own | {"gpu": device, "triton": triton, "tuned": 0}


@router.get("/pages/{namespace}")
def show_overview(
    namespace: Namespace, call: CurrentCall, wanted: Annotated[OverviewFilter, Query()]
) -> Response:
    """Show what is tuned of every kernel, what that cost, and what reuse saved."""
    seen = overview(call.database, call.principal, namespace, wanted)
    covered = (row.coverage(seen["known"][row.name]) for row in seen["rows"])
    lists = {"kernels": chain.from_iterable(covered)}
    return render_page("overview.html", call, namespace, wanted, lists, **seen)


def overview(
    database: Database,
    principal: Principal,
    namespace: str,
    wanted: OverviewFilter,
    size: int = _KERNELS,
) -> dict[str, Any]:
    """Load what the overview of a namespace shows: a page of kernels, and the totals of all.

    A kernel that has nothing on a GPU is shown there too, as lacking all that is known elsewhere.

    Raises:
        AccessDeniedError: The principal may not read the namespace.
    """
    principal.require("read", namespace)
    with database.read() as connection:
        rows = summaries.load_contexts(connection, namespace)
        kernels = [
            kernel
            for kernel in _by_kernel(rows, wanted.device, wanted.triton)
            if wanted.q.lower() in kernel.name.lower()
        ]
        if wanted.sort != "kernel":
            kernels.sort(key=lambda kernel: -kernel.total(wanted.sort))
        shown = kernels[wanted.rows(size)]
        counts = {row.name: summaries.count_known(connection, row.comparable) for row in shown}
    return {
        "rows": shown,
        "known": counts,
        "matching": len(kernels),
        "totals": {
            name: sum(kernel.total(name) for kernel in kernels)
            for name in ("records", "seconds", "saved")
        },
        "devices": sorted({row.device for row in rows}),
        "tritons": sorted({row.triton for row in rows}),
        "size": size,
    }


def _by_kernel(rows: Sequence[ContextRow], device: str = "", triton: str = "") -> list[KernelRow]:
    """Group contexts, which are sorted by kernel, those of a GPU and a Triton, if it has any."""

    def is_shown(row: ContextRow) -> bool:
        return device in ("", row.device) and triton in ("", row.triton)

    places = sorted({(row.device, row.triton) for row in filter(is_shown, rows)})
    kernels = []
    for name, group in groupby(rows, lambda row: row.context.kernel.name) if places else ():
        own = sorted(group, key=lambda row: (row.device, row.triton, row.digest))
        source = current_source(own)
        keys = next(row.context.problem.keys for row in own if row.source == source)
        shown = list(filter(is_shown, own))
        current = [row for row in shown if row.source == source]
        present = {(row.device, row.triton) for row in current}
        kernels.append(
            KernelRow(
                name,
                current,
                outdated=[row for row in shown if row.source != source],
                lacking=[place for place in places if place not in present],
                comparable=[row.id for row in own if row.context.problem.keys == keys],
            )
        )
    return kernels


class WorklistFilter(Wanted):
    """A kernel by its full name and a GPU, empty for any."""

    kernel: str = Field(default="", max_length=500)
    device: str = Field(default="", max_length=500)


@router.get("/pages/{namespace}/misses")
def show_worklist(
    namespace: Namespace, call: CurrentCall, wanted: Annotated[WorklistFilter, Query()]
) -> Response:
    """Show the scenarios that were looked up and have no record, in the worklist's order."""
    call.principal.require("read", namespace)
    kernel, device = wanted.kernel or None, wanted.device or None
    with call.database.read() as connection:
        devices = misses.count_by_device(connection, namespace, kernel)
        listed = misses.list_misses(connection, namespace, kernel, wanted.rows(), device)
        holders = leases.list_holders(connection, namespace)
        gaps = _gaps(connection, namespace, wanted) if device else None
    rows, by_kernel = list[dict[str, Any]](), dict[str, list[Scenario]]()
    for miss in listed:
        context = Context.model_validate_json(miss.context)
        scenario = Scenario.model_validate_json(miss.scenario)
        tuned_by = holders.get((context.digest, scenario.digest), "")
        parsed = {"context": context, "scenario": scenario, "tuned_now_by": tuned_by}
        worth = Worth.of(MissCount(miss.times, misses.saving_of(miss)))
        at_least = None if worth.saves is None else worth.at_least
        parsed |= {"saves": worth.saves, "at_least": at_least, "pays": worth.pays}
        rows.append(miss._asdict() | parsed)
        del rows[-1]["expected"]  # of one launch
        by_kernel.setdefault(context.kernel.name, []).append(scenario)
    return render_page(
        "misses.html",
        call,
        namespace,
        wanted,
        {"gaps": gaps, "misses": rows},
        most_gaps=_MOST_GAPS,
        columns={name: ScenarioColumns(missed) for name, missed in by_kernel.items()},
        total=sum(count for name, count, _ in devices if device in (None, name)),
        devices=devices,
    )


def _gaps(connection: Connection, namespace: str, wanted: WorklistFilter) -> list[dict[str, Any]]:
    """Return what is tuned elsewhere and not on the wanted GPU, the largest gaps first."""
    gaps = []
    for kernel in _by_kernel(summaries.load_contexts(connection, namespace), wanted.device):
        if wanted.kernel in ("", kernel.name):
            total = summaries.count_known(connection, kernel.comparable)
            gaps += [row for row in kernel.coverage(total) if row["tuned"] < total]
    return sorted(gaps, key=lambda row: row["tuned"] - row["known"])
