"""The overview: for every kernel, what is tuned where, what that cost, and what reuse saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from dejavu_cache.model.scenario import Context

from ..services.access import Principal
from ..storage import coverage
from ..storage.coverage import ContextRow, TuningCost
from ..storage.database import Database
from ..storage.sql import database_time

__all__ = [
    "CoveredContext",
    "KernelRow",
    "Overview",
    "OverviewFilter",
    "SortKey",
    "contexts_of",
    "current_source",
    "overview",
]

_DAY = 86400.0

SortKey = Literal["kernel", "records", "missing", "tuning", "saved", "changed"]


class OverviewFilter(NamedTuple):
    """What kernels to show, and in what order; an empty text stands for any.

    Attributes:
        search: A part of the kernel's name, in any case.
        device: The name of a GPU.
        triton: A version of Triton.
        days: The largest age of the last change; None for any.
        sort: The column to sort by.
        page: The number of the page, from 1.
        size: The number of kernels on a page.
    """

    search: str = ""
    device: str = ""
    triton: str = ""
    days: int | None = None
    sort: SortKey = "kernel"
    page: int = 1
    size: int = 25


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
    """A kernel with its contexts: those of its current source, and of earlier ones."""

    name: str
    current: list[CoveredContext]
    outdated: list[CoveredContext]
    known: int = 0
    """Scenarios that are tuned or missed anywhere, for the current source."""

    @property
    def all(self) -> list[CoveredContext]:
        """Contexts of all sources."""
        return [*self.current, *self.outdated]

    @property
    def latest(self) -> CoveredContext:
        """Context that changed last."""
        return max(self.all, key=lambda covered: covered.changed_at)

    @property
    def misses(self) -> int:
        """Number of scenarios that were missed."""
        return sum(covered.missing for covered in self.all)

    @property
    def seconds(self) -> float:
        """Cost of all measurements."""
        return sum(covered.seconds for covered in self.all)

    @property
    def savings(self) -> float:
        """Estimated time that reuse saved, in seconds."""
        return sum(covered.saved for covered in self.all)

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(covered.row.records for covered in self.all)


class Overview(NamedTuple):
    """One page of kernels, the totals of all that were asked for, and what may be chosen."""

    kernels: list[KernelRow]
    matching: int
    records: int
    seconds: float
    saved: float
    devices: list[str]
    tritons: list[str]
    pages: int


def overview(
    database: Database, principal: Principal, namespace: str, wanted: OverviewFilter
) -> Overview:
    """Load a page of the overview of a namespace.

    Raises:
        AccessDeniedError: The principal may not read the namespace.
    """
    principal.require("read", namespace)
    with database.read() as connection:
        covered = contexts_of(
            coverage.load_contexts(connection, namespace),
            coverage.load_costs(connection, namespace),
            coverage.count_misses(connection, namespace),
        )
        since = (
            None
            if wanted.days is None
            else database_time(connection).timestamp() - wanted.days * _DAY
        )
        kernels = [kernel for kernel in _by_kernel(covered) if _is_wanted(kernel, wanted, since)]
        kernels.sort(key=_ORDER[wanted.sort])
        start = (wanted.page - 1) * wanted.size
        page = kernels[start : start + wanted.size]
        groups = {kernel.name: _comparable(kernel) for kernel in page}
        known = coverage.count_known(connection, groups)
    return Overview(
        kernels=[kernel._replace(known=known[kernel.name]) for kernel in page],
        matching=len(kernels),
        records=sum(kernel.records for kernel in kernels),
        seconds=sum(kernel.seconds for kernel in kernels),
        saved=sum(kernel.savings for kernel in kernels),
        devices=sorted({entry.device for entry in covered}),
        tritons=sorted({entry.triton for entry in covered}),
        pages=max(-(-len(kernels) // wanted.size), 1),
    )


def contexts_of(
    rows: Sequence[ContextRow], costs: Mapping[int, TuningCost], missing: Mapping[int, int]
) -> list[CoveredContext]:
    """Combine contexts with their costs and misses; those that have neither are left out."""
    covered = []
    for row in rows:
        if not row.records and row.id not in missing:
            continue
        cost = costs.get(row.id, TuningCost(0.0, row.created_at))
        # A machine fetches because it wants one scenario at least, which it need not tune then.
        saved = row.fetches * cost.seconds / row.records if row.records else 0.0
        changed_at = row.changed_at or cost.changed_at
        context = Context.model_validate_json(row.text)
        covered.append(
            CoveredContext(row, context, missing.get(row.id, 0), cost.seconds, saved, changed_at)
        )
    return covered


def current_source(contexts: Sequence[CoveredContext]) -> str:
    """Return the source hash of a kernel that is in use: read or written, or else made, last."""
    latest = max(
        contexts, key=lambda covered: (covered.row.used_at // _DAY, covered.row.created_at)
    )
    return latest.context.kernel.source


def _by_kernel(covered: Sequence[CoveredContext]) -> list[KernelRow]:
    by_name: dict[str, list[CoveredContext]] = {}
    for entry in covered:
        by_name.setdefault(entry.context.kernel.name, []).append(entry)
    kernels = []
    for name, entries in by_name.items():
        entries.sort(key=lambda entry: (entry.device, entry.triton, entry.row.digest))
        source = current_source(entries)
        current = [entry for entry in entries if entry.context.kernel.source == source]
        outdated = [entry for entry in entries if entry.context.kernel.source != source]
        kernels.append(KernelRow(name, current, outdated))
    return kernels


def _is_wanted(kernel: KernelRow, wanted: OverviewFilter, since: float | None) -> bool:
    return (
        wanted.search.lower() in kernel.name.lower()
        and (since is None or kernel.latest.changed_at >= since)
        and any(
            wanted.device in ("", entry.device) and wanted.triton in ("", entry.triton)
            for entry in kernel.all
        )
    )


def _comparable(kernel: KernelRow) -> list[int]:
    """Return the ids of the contexts whose scenarios can be those of the current source."""
    keys = kernel.current[0].context.problem.keys
    return [entry.row.id for entry in kernel.all if entry.context.problem.keys == keys]


_ORDER: dict[SortKey, Callable[[KernelRow], Any]] = {
    "kernel": lambda kernel: kernel.name,
    "records": lambda kernel: (-kernel.records, kernel.name),
    "missing": lambda kernel: (-kernel.misses, kernel.name),
    "tuning": lambda kernel: (-kernel.seconds, kernel.name),
    "saved": lambda kernel: (-kernel.savings, kernel.name),
    "changed": lambda kernel: (-kernel.latest.changed_at, kernel.name),
}
