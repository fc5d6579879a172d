"""A kernel on all GPUs, and on one: which configs readers get, and what others would cost."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple

from fastapi import Query, Response
from pydantic import Field

from dejavu_cache.model.scenario import Config, Scenario
from dejavu_cache.system.notices import counted

from ..errors import NotFoundError
from ..routes.common import ContextDigest, CurrentCall, Namespace
from ..storage import record_texts, summaries
from ..storage.summaries import Summary
from .overview import contexts_of, current_source
from .rendering import PAGE_METHODS, Wanted, count_pages, pages_router, render_page, take_page
from .tables import LOUD, ConfigNames, ScenarioColumns, excess_of

__all__ = ["router"]

router = pages_router()

_MOST_CONTEXTS = 8
_MOST_WINNERS = 12
_MOST_CONFIGS = 30
"""Configs whose costs are listed."""
_CLOSE = 1.05
"""Multiple of the best median up to which a config counts as close to it."""
_SAMPLE_BYTES = 1_200_000
"""JSON that is parsed for the costs of configs."""
_LETTERS = "ABCDEFGH"
_MOST_TICKS = 24


class KernelFilter(Wanted):
    """A kernel by its full name, a source's hash, empty for the current one, and the order."""

    name: str = Field(min_length=1, max_length=500)
    source: str = Field(default="", pattern=r"^[0-9a-f]{0,64}$")
    sort: str = Field(default="", max_length=500)


@router.api_route("/pages/{namespace}/kernel", methods=PAGE_METHODS)
def show_kernel(
    namespace: Namespace, call: CurrentCall, wanted: Annotated[KernelFilter, Query()]
) -> Response:
    """Show a kernel on all GPUs: which config readers get where."""
    call.principal.require("read", namespace)
    with call.database.read() as connection:
        covered = contexts_of(summaries.load_contexts(connection, namespace, wanted.name))
        if not covered:
            raise NotFoundError(f"namespace {namespace!r} has no records of {wanted.name!r}")
        source = wanted.source or current_source(covered)
        chosen = [entry for entry in covered if entry.context.kernel.source == source]
        chosen.sort(key=lambda entry: (entry.device, entry.triton, entry.row.digest))
        shown = chosen[:_MOST_CONTEXTS]
        tuned = [summaries.load(connection, entry.row.id) for entry in shown]
        texts: dict[str, str] = {}
        for entry, loaded in zip(shown, tuned, strict=True):
            if loaded.keys() - texts.keys():
                texts |= summaries.load_scenarios(connection, entry.row.id)
    scenarios = {digest: Scenario.model_validate_json(text) for digest, text in texts.items()}
    columns = ScenarioColumns(scenarios.values())
    order = sorted(scenarios, key=lambda digest: columns.order(scenarios[digest], wanted.sort))
    sources: Counter[str] = Counter()
    for entry in covered:
        sources[entry.context.kernel.source] += entry.row.records
    winners, names = _count_wins(tuned)
    return render_page(
        "kernel.html",
        call,
        namespace,
        wanted=wanted,
        source=source,
        sources=sources,
        contexts=shown,
        left_out=len(chosen) - len(shown),
        columns=columns,
        rows=[
            (digest, columns.cells(scenarios[digest]), [loaded.get(digest) for loaded in tuned])
            for digest in take_page(order, wanted.page)
        ],
        total=len(order),
        pages=count_pages(len(order)),
        winners=winners,
        names=names,
    )


def _count_wins(
    tuned: list[dict[str, Summary]],
) -> tuple[list[tuple[str, list[int]]], ConfigNames]:
    """Return the most frequent winners, each with its number of scenarios in every context."""
    wins = [Counter(summary.chosen for summary in loaded.values()) for loaded in tuned]
    total: Counter[str | None] = sum(wins, Counter())
    parsed = {text: Config.model_validate_json(text) for text in total if text is not None}
    names = ConfigNames(list(parsed.values()))
    ranked = sorted(parsed, key=lambda text: (-total[text], text))[:_MOST_WINNERS]
    return [(names.name(parsed[text]), [won[text] for won in wins]) for text in ranked], names


class ContextFilter(Wanted):
    """The order of the scenarios, and the config to compare the others with."""

    sort: str = Field(default="", max_length=500)
    reference: str = Field(default="", pattern=r"^[0-9a-f]{0,24}$")


class TunedScenario(NamedTuple):
    """A scenario, its summary, and the share by which its config is slower than the best."""

    scenario: Scenario
    summary: Summary
    excess: float | None


@router.api_route("/pages/{namespace}/contexts/{context}", methods=PAGE_METHODS)
def show_context(
    namespace: Namespace,
    context: ContextDigest,
    call: CurrentCall,
    wanted: Annotated[ContextFilter, Query()],
) -> Response:
    """Show a kernel on a GPU: its scenarios, a map of the winners, and the costs of its configs."""
    call.principal.require("read", namespace)
    with call.database.read() as connection:
        rows = summaries.load_contexts(connection, namespace, digest=context)
        if not rows or not rows[0].records:
            raise NotFoundError("nothing is known of this context here")
        identity = rows[0].id
        covered = contexts_of(rows, summaries.load_costs(connection, namespace, identity))[0]
        texts = summaries.load_scenarios(connection, identity)
        tuned = [
            TunedScenario(Scenario.model_validate_json(texts[digest]), summary, excess_of(summary))
            for digest, summary in summaries.load(connection, identity).items()
        ]
        measured = sum(row.summary.configs for row in tuned)
        most = max(int(len(tuned) * _SAMPLE_BYTES / max(measured * 300, 1)), 1)
        sample = sorted(texts)[:: max(-(-len(texts) // most), 1)]
        # The first part is all of them, unless the records have more than timings.
        stored = next(record_texts.iter_texts(connection, namespace, context, sample), {})
    call.server.reader.note_use((namespace, context))
    costs = _config_costs(stored.values())
    columns = ScenarioColumns(row.scenario for row in tuned)
    tuned.sort(key=lambda row: columns.order(row.scenario, wanted.sort))
    if wanted.sort == "median":
        tuned.sort(key=lambda row: -(row.summary.median or 0))
    if wanted.sort == "excess":
        tuned.sort(key=lambda row: -(row.excess or 0))
    return render_page(
        "context.html",
        call,
        namespace,
        wanted=wanted,
        covered=covered,
        columns=columns,
        rows=take_page(tuned, wanted.page),
        total=len(tuned),
        pages=count_pages(len(tuned)),
        loud=sum(row.summary.pinned and (row.excess or 0) >= LOUD for row in tuned),
        costs=costs[:_MOST_CONFIGS],
        more_costs=len(costs[_MOST_CONFIGS:]),
        cost_names=ConfigNames([cost.config for cost in costs]),
        sample=len(stored),
        reference=next((cost for cost in costs if cost.config.digest == wanted.reference), None),
        **_winner_map(columns, tuned),
    )


def _winner_map(columns: ScenarioColumns, tuned: list[TunedScenario]) -> dict[str, Any]:
    """Return the most frequent winners over the two arguments with the most values.

    The map has an axis for each of them, and in `cells` the letter, the colour and the hint of a
    square by its column and row; without such arguments, it has no axis.
    """
    wins = Counter(row.summary.chosen for row in tuned if row.summary.chosen)
    parsed = {text: Config.model_validate_json(text) for text in wins}
    names = ConfigNames(list(parsed.values()))
    ranked = sorted(wins, key=lambda text: (-wins[text], text))
    marks = dict(zip(ranked, _LETTERS, strict=False))
    ticks = {
        name: list(map(str, values))
        for name, values in columns.ticks.items()
        if len(values) <= _MOST_TICKS
    }
    axes = sorted(ticks, key=lambda name: (-len(ticks[name]), name))[:2] if wins else []
    won: dict[tuple[int, ...], Counter[str]] = {}
    for row in tuned:
        values = dict(zip(columns.varying, columns.cells(row.scenario), strict=True))
        places = tuple(
            ticks[name].index(str(values[name])) if str(values[name]) in ticks[name] else 0
            for name in axes
        )
        if row.summary.chosen:
            won.setdefault((*places, 0)[:2], Counter())[row.summary.chosen] += 1
    cells = {}
    for place, counter in won.items():
        text, count = counter.most_common(1)[0]
        mark = marks.get(text, "·")
        colour = _LETTERS.find(mark) if text in marks else len(_LETTERS)
        hint = f"{names.name(parsed[text])}: {count} of {counted(counter.total(), 'scenario')}"
        cells[place] = (mark, colour, hint)
    return {
        "axes": [(name, ticks[name]) for name in axes],
        "cells": cells,
        "legend": [(mark, names.name(parsed[text]), wins[text]) for text, mark in marks.items()],
        "names": names,
    }


class ConfigCost(NamedTuple):
    """A config over the scenarios in which it was measured.

    Attributes:
        config: The config.
        ran: The number of scenarios in which it ran.
        failed: In how many others it failed.
        best: In how many of them it has the smallest median.
        close: In how many of them it is at most 5% slower than the best.
        mean: The geometric mean of its time over the best one.
        worst: The largest ratio.
    """

    config: Config
    ran: int
    failed: int
    best: int
    close: int
    mean: float | None
    worst: float | None


def _config_costs(texts: Iterable[str]) -> list[ConfigCost]:
    """Compare all configs over records, given as JSON; the cheapest to have everywhere first."""
    configs: dict[str, Any] = {}
    ratios: dict[str, list[float]] = {}
    failed: Counter[str] = Counter()
    for text in texts:
        measured = json.loads(text)["measurements"]
        best = min((item["median"] for item in measured if item.get("median")), default=None)
        for item in measured:
            key = f"{item['config'].get('params')}{item['config'].get('options')}"
            configs.setdefault(key, item["config"])
            over_best = ratios.setdefault(key, [])
            if item.get("median") is None:
                failed[key] += 1
            elif item["median"] and best:
                over_best.append(item["median"] / best)
    costs = [
        _cost(Config.model_validate(config), ratios[key], failed[key])
        for key, config in configs.items()
    ]
    return sorted(costs, key=lambda cost: (-cost.ran, cost.mean or math.inf))


def _cost(config: Config, ratios: list[float], failed: int) -> ConfigCost:
    return ConfigCost(
        config=config,
        ran=len(ratios),
        failed=failed,
        best=sum(ratio == 1 for ratio in ratios),
        close=sum(ratio <= _CLOSE for ratio in ratios),
        mean=math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None,
        worst=max(ratios, default=None),
    )
