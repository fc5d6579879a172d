"""A kernel on one GPU: its scenarios, a map of the winners, and the costs of its configs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from markupsafe import Markup

from dejavu_cache.model.scenario import Config, Context, Scenario
from dejavu_cache.system.notices import counted

from ..errors import NotFoundError
from ..services.access import Principal
from ..services.read_through import RecordView, iter_texts
from ..storage import contexts, coverage, summaries
from ..storage.database import Database
from ..storage.summaries import Summary
from .columns import ConfigNames, ScenarioColumns
from .costs import ConfigCost, config_costs, spread_evenly
from .overview import CoveredContext, contexts_of
from .paging import take_page
from .winner_map import MapCell, draw_map

__all__ = ["LOUD", "ContextFilter", "ContextView", "TunedScenario", "context_page", "excess_of"]

LOUD = 0.05
"""Share by which a choice is slower than the best from which pages say so loudly."""
_SAMPLE_BYTES = 1_200_000
"""JSON that is parsed for the costs of configs."""
_LETTERS = "ABCDEFGH"
_MOST_TICKS = 24


class ContextFilter(NamedTuple):
    """The order of the scenarios, the page, and the config to compare the others with."""

    sort: str = ""
    page: int = 1
    reference: str = ""


class TunedScenario(NamedTuple):
    """A scenario with its summary."""

    scenario: Scenario
    summary: Summary

    @property
    def excess(self) -> float | None:
        """Share by which the chosen config is slower than the best."""
        return excess_of(self.summary)


def excess_of(summary: Summary) -> float | None:
    """Return the share by which a chosen config is slower than the best; None if unknown."""
    if summary.median is None or not summary.best:
        return None
    return summary.median / summary.best - 1


class ContextView(NamedTuple):
    """A context as its page shows it.

    Attributes:
        covered: The context.
        columns: The arguments of its scenarios.
        names: The short names of the configs that readers get.
        rows: A page of scenarios.
        total: The number of scenarios.
        loud: The number of pinned scenarios whose config is 5% or more slower than the best.
        map: A map of the winners as SVG, empty if there is nothing to draw.
        legend: The configs on the map, each with its letter and its number of scenarios.
        costs: The costs of the configs.
        cost_names: The short names of all measured configs.
        sample: The number of scenarios behind the costs.
        reference: The cost of the config to compare with.
    """

    covered: CoveredContext
    columns: ScenarioColumns
    names: ConfigNames
    rows: list[TunedScenario]
    total: int
    loud: int
    map: Markup
    legend: list[tuple[str, str, int]]
    costs: list[ConfigCost]
    cost_names: ConfigNames
    sample: int
    reference: ConfigCost | None

    @property
    def context(self) -> Context:
        """Kernel, environment and problem."""
        return self.covered.context


def context_page(
    database: Database, principal: Principal, namespace: str, digest: str, wanted: ContextFilter
) -> ContextView:
    """Load a context with a page of its scenarios.

    Raises:
        AccessDeniedError: The principal may not read the namespace.
        NotFoundError: The context has no records.
    """
    principal.require("read", namespace)
    with database.read() as connection:
        text = contexts.load_text(connection, namespace, digest)
        kernel = Context.model_validate_json(text).kernel.name if text else ""
        rows = coverage.load_contexts(connection, namespace, kernel)
        row = next((row for row in rows if row.digest == digest and row.records), None)
        if row is None:
            raise NotFoundError("nothing is known of this context here")
        covered = contexts_of([row], coverage.load_costs(connection, namespace, row.id), {})[0]
        texts = coverage.load_scenarios(connection, row.id)
        loaded = summaries.load(connection, row.id)
        tuned = [
            TunedScenario(Scenario.model_validate_json(texts[scenario]), summary)
            for scenario, summary in loaded.items()
        ]
        measured = sum(summary.configs for summary in loaded.values())
        most = max(int(len(tuned) * _SAMPLE_BYTES / max(measured * 300, 1)), 1)
        sample = spread_evenly(sorted(texts), most)
        view = RecordView(namespace, digest)
        # The first part is all of them, unless the records have more than timings.
        stored = next(iter_texts(connection, view, sample), {})
        costs = config_costs(stored.values())
    return _view(covered, tuned, costs, len(stored), wanted)


def _view(
    covered: CoveredContext,
    tuned: list[TunedScenario],
    costs: list[ConfigCost],
    sample: int,
    wanted: ContextFilter,
) -> ContextView:
    columns = ScenarioColumns(row.scenario for row in tuned)
    wins = Counter(row.summary.chosen for row in tuned if row.summary.chosen)
    parsed = {text: Config.model_validate_json(text) for text in wins}
    names = ConfigNames(list(parsed.values()))
    ranked = sorted(wins, key=lambda text: (-wins[text], text))
    marks = dict(zip(ranked, _LETTERS, strict=False))
    tuned.sort(key=_order(columns, wanted.sort))
    return ContextView(
        covered=covered,
        columns=columns,
        names=names,
        rows=take_page(tuned, wanted.page),
        total=len(tuned),
        loud=sum(row.summary.pinned and (row.excess or 0) >= LOUD for row in tuned),
        map=_winner_map(columns, tuned, marks, names, parsed),
        legend=[(mark, names.name(parsed[text]), wins[text]) for text, mark in marks.items()],
        costs=costs,
        cost_names=ConfigNames([cost.config for cost in costs]),
        sample=sample,
        reference=next((cost for cost in costs if cost.config.digest == wanted.reference), None),
    )


def _order(columns: ScenarioColumns, sort: str) -> Callable[[TunedScenario], Any]:
    numbers: dict[str, Callable[[TunedScenario], float]] = {
        "median": lambda row: -(row.summary.median or 0),
        "excess": lambda row: -(row.excess or 0),
        "pinned": lambda row: -row.summary.pinned,
    }
    if sort in numbers:
        number = numbers[sort]
        return lambda row: (number(row), columns.order(row.scenario))
    return lambda row: columns.order(row.scenario, sort)


def _winner_map(
    columns: ScenarioColumns,
    tuned: list[TunedScenario],
    marks: dict[str, str],
    names: ConfigNames,
    parsed: dict[str, Config],
) -> Markup:
    """Draw the winners over the two arguments with the most values; the most frequent one shows."""
    axes = sorted(
        columns.varying, key=lambda name: (-min(len(columns.ticks[name]), _MOST_TICKS), name)
    )[:2]
    axes = [name for name in axes if len(columns.ticks[name]) <= _MOST_TICKS]
    if not axes or not marks:
        return Markup()
    x, y = [*axes, ""][:2]
    ticks = {name: [str(value) for value in columns.ticks[name]] for name in axes}
    winners: dict[tuple[int, int], Counter[str]] = {}
    for row in tuned:
        values = dict(zip(columns.varying, columns.cells(row.scenario), strict=True))
        position = tuple(
            ticks[name].index(str(values[name])) if name and str(values[name]) in ticks[name] else 0
            for name in (x, y)
        )
        if row.summary.chosen:
            winners.setdefault((position[0], position[1]), Counter())[row.summary.chosen] += 1
    cells = {
        position: _cell(counter, marks, names, parsed) for position, counter in winners.items()
    }
    about = f"Most frequent winner by {x}{f' and {y}' if y else ''}"
    return Markup(draw_map(x, ticks[x], y, ticks[y] if y else [""], cells, about))


def _cell(
    counter: Counter[str], marks: dict[str, str], names: ConfigNames, parsed: dict[str, Config]
) -> MapCell:
    text, count = counter.most_common(1)[0]
    mark = marks.get(text, "·")
    colour = _LETTERS.find(mark) if mark in _LETTERS else len(_LETTERS)
    hint = f"{names.name(parsed[text])}: {count} of {counted(counter.total(), 'scenario')}"
    return MapCell(mark, f"colour-{colour}", hint)
