"""Comparisons: two namespaces, and a context with another GPU, Triton, namespace or date."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime, timezone
from typing import NamedTuple

from sqlalchemy import Connection

from dejavu_cache.model.scenario import Config, Context, Scenario

from ..errors import NotFoundError
from ..services.access import Principal
from ..services.read_through import RecordView, iter_texts
from ..storage import arrivals, coverage, summaries
from ..storage.coverage import ContextRow
from ..storage.database import Database
from ..storage.differences import DifferenceCounts, count_differences
from .columns import ConfigNames, ScenarioColumns
from .paging import take_page

__all__ = ["ContextComparison", "ContextSide", "compare_contexts", "compare_with_namespace"]


_MOST_CONTEXTS = 50
_MOST_RECORDS = 20_000
"""Records that are compared for one page."""
_MOST_OTHERS = 100
"""Contexts that are listed of those that only the other namespace has."""


class ComparedContext(NamedTuple):
    """A context, the number of its records in both namespaces, and how they differ."""

    digest: str
    context: Context
    records: int
    theirs: int
    difference: DifferenceCounts


class NamespaceComparison(NamedTuple):
    """A page of the contexts of two namespaces.

    Attributes:
        rows: The contexts of the first namespace.
        only_there: Contexts that the other one alone has, with their numbers of records.
        total: The number of records in the first namespace.
        pages: The number of pages.
        records: The number of records of the page's contexts.
        absent: How many of them the other one lacks.
        differing: How many of them have another config in the other one.
        pinned: How many of those are pinned there.
    """

    rows: list[ComparedContext]
    only_there: list[tuple[Context, int]]
    total: int
    pages: int
    records: int
    absent: int
    differing: int
    pinned: int


def compare_with_namespace(
    database: Database, principal: Principal, namespace: str, other: str, kernel: str, page: int
) -> NamespaceComparison:
    """Compare what readers get in two namespaces, of a kernel by its full name or of all.

    Raises:
        AccessDeniedError: The principal may not read both.
    """
    principal.require("read", namespace)
    principal.require("read", other)
    with database.read() as connection:
        ours, theirs = (
            [row for row in coverage.load_contexts(connection, name, kernel or None) if row.records]
            for name in (namespace, other)
        )
        pages = _paginate(ours)
        shown = pages[page - 1] if page <= len(pages) else []
        counted = count_differences(connection, [row.id for row in shown], other)
    there = {row.digest: row.records for row in theirs}
    here = {row.digest for row in ours}
    rows = [
        ComparedContext(
            row.digest,
            Context.model_validate_json(row.text),
            row.records,
            there.get(row.digest, 0),
            counted.get(row.id, DifferenceCounts(row.records, 0, 0)),
        )
        for row in shown
    ]
    others = [row for row in theirs if row.digest not in here] if page >= len(pages) else []
    return NamespaceComparison(
        rows=rows,
        only_there=[
            (Context.model_validate_json(row.text), row.records) for row in others[:_MOST_OTHERS]
        ],
        total=sum(row.records for row in ours),
        pages=max(len(pages), 1),
        records=sum(row.records for row in rows),
        absent=sum(row.difference.absent for row in rows),
        differing=sum(row.difference.differing for row in rows),
        pinned=sum(row.difference.pinned for row in rows),
    )


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


class ContextSide(NamedTuple):
    """One side of a comparison.

    Attributes:
        namespace: The namespace.
        digest: The digest of the context.
        until: Only measurements that had arrived at the end of that day count; None for now.
    """

    namespace: str
    digest: str
    until: date | None = None


class _Choice(NamedTuple):
    """The config that a side runs, as JSON, and its median there."""

    config: str | None
    median: float | None


class ComparedScenario(NamedTuple):
    """A scenario, and what each side runs; None where a side has no record.

    Attributes:
        cost: What the other side's config costs over this side's, by this side's timings.
    """

    scenario: Scenario
    ours: _Choice | None
    theirs: _Choice | None
    cost: float | None = None

    @property
    def differs(self) -> bool:
        """Return whether the sides run different configs."""
        return (self.ours and self.ours.config) != (self.theirs and self.theirs.config)


class ContextComparison(NamedTuple):
    """Two sides, scenario by scenario, those that differ first.

    Attributes:
        context: The first side's context.
        other: The other side's context.
        choices: The contexts of the kernel in the namespace, to compare with.
        same: The number of scenarios with the same config on both sides.
        differing: The number of scenarios with different configs.
        ours_only: The number of scenarios that the first side alone has.
        theirs_only: The number of scenarios that the other side alone has.
        columns: The arguments of the scenarios.
        names: The short names of the configs.
        rows: A page of scenarios.
        total: The number of scenarios.
    """

    context: Context
    other: Context
    choices: list[tuple[str, Context]]
    same: int
    differing: int
    ours_only: int
    theirs_only: int
    columns: ScenarioColumns
    names: ConfigNames
    rows: list[ComparedScenario]
    total: int


def compare_contexts(
    database: Database, principal: Principal, ours: ContextSide, theirs: ContextSide, page: int
) -> ContextComparison:
    """Compare a context with another one, or with itself elsewhere or at another time.

    Raises:
        AccessDeniedError: The principal may not read both namespaces.
        NotFoundError: A side has no records.
    """
    for side in (ours, theirs):
        principal.require("read", side.namespace)
    with database.read() as connection:
        left, right = _load(connection, ours), _load(connection, theirs)
        context, other = (Context.model_validate_json(row.text) for row in (left, right))
        texts = coverage.load_scenarios(connection, right.id)
        texts |= coverage.load_scenarios(connection, left.id)
        our_choices = _choices(connection, left, ours)
        their_choices = _choices(connection, right, theirs)
        siblings = coverage.load_contexts(connection, ours.namespace, context.kernel.name)
        compared = [
            ComparedScenario(
                Scenario.model_validate_json(texts[digest]),
                our_choices.get(digest),
                their_choices.get(digest),
            )
            for digest in our_choices.keys() | their_choices.keys()
            if digest in texts
        ]
        columns = ScenarioColumns(row.scenario for row in compared)
        compared.sort(key=lambda row: (not row.differs, columns.order(row.scenario)))
        shown = take_page(compared, page)
        wanted = {
            row.scenario.digest: row for row in shown if row.differs and row.ours and row.theirs
        }
        view = RecordView(ours.namespace, ours.digest)
        costs = {
            digest: _cost(wanted[digest], text)
            for texts in iter_texts(connection, view, list(wanted))
            for digest, text in texts.items()
        }
    both = [row for row in compared if row.ours and row.theirs]
    choices = [choice for row in compared for choice in (row.ours, row.theirs) if choice]
    chosen = {choice.config for choice in choices if choice.config}
    return ContextComparison(
        context=context,
        other=other,
        choices=[
            (row.digest, Context.model_validate_json(row.text)) for row in siblings if row.records
        ],
        same=sum(not row.differs for row in both),
        differing=sum(row.differs for row in both),
        ours_only=sum(row.theirs is None for row in compared),
        theirs_only=sum(row.ours is None for row in compared),
        columns=columns,
        names=ConfigNames([Config.model_validate_json(text) for text in chosen]),
        rows=[row._replace(cost=costs.get(row.scenario.digest)) for row in shown],
        total=len(compared),
    )


def _load(connection: Connection, side: ContextSide) -> ContextRow:
    rows = coverage.load_contexts(connection, side.namespace, digest=side.digest)
    row = next((row for row in rows if row.records), None)
    if row is None:
        raise NotFoundError(
            f"namespace {side.namespace!r} has no records of this context: choose another"
        )
    return row


def _choices(connection: Connection, row: ContextRow, side: ContextSide) -> dict[str, _Choice]:
    """Return what a side runs in each scenario; of the past, the fastest of what had arrived."""
    if side.until is None:
        loaded = summaries.load(connection, row.id)
        return {
            digest: _Choice(summary.chosen, summary.median) for digest, summary in loaded.items()
        }
    end = datetime(side.until.year, side.until.month, side.until.day, tzinfo=timezone.utc)
    best: dict[str, _Choice] = {}
    for digest, text in arrivals.iter_until(connection, row.id, end.timestamp() + 86400):
        measured = json.loads(text)
        median = measured.get("median")
        previous = best.get(digest)
        if median and (previous is None or not previous.median or median < previous.median):
            best[digest] = _Choice(Config.model_validate(measured["config"]).text, median)
    return best


def _cost(row: ComparedScenario, text: str) -> float | None:
    """Return how much slower the other side's config is here, as a share of this side's time."""
    if row.theirs is None or row.theirs.config is None:
        return None
    if row.ours is None or not row.ours.median:
        return None
    wanted = Config.model_validate_json(row.theirs.config)
    for measured in json.loads(text)["measurements"]:
        median = measured.get("median")
        if median and Config.model_validate(measured["config"]) == wanted:
            return float(median) / row.ours.median - 1
    return None
