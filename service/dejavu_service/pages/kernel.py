"""A kernel on all GPUs: which config readers get for every scenario where."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from dejavu_cache.model.scenario import Config, Scenario

from ..errors import NotFoundError
from ..services.access import Principal
from ..storage import coverage, summaries
from ..storage.database import Database
from ..storage.summaries import Summary
from .columns import ConfigNames, ScenarioColumns
from .overview import CoveredContext, contexts_of, current_source
from .paging import take_page

__all__ = ["KernelFilter", "KernelView", "kernel_across"]

_MOST_CONTEXTS = 8
_MOST_CONFIGS = 12


class KernelFilter(NamedTuple):
    """What to show of a kernel: a source's hash, empty for the current one, order and page."""

    source: str = ""
    sort: str = ""
    page: int = 1


class AcrossRow(NamedTuple):
    """A scenario, and its summary in every context, or None where it is not tuned."""

    digest: str
    cells: list[object]
    summaries: list[Summary | None]


class WinningConfig(NamedTuple):
    """A config and for how many scenarios readers get it in every context."""

    name: str
    wins: list[int]


class KernelView(NamedTuple):
    """A kernel across the contexts of one source.

    Attributes:
        name: The kernel's name.
        source: The source's hash.
        sources: All sources, with the number of their records.
        contexts: The contexts.
        left_out: The number of contexts that are not shown.
        columns: The arguments of the scenarios.
        rows: A page of scenarios.
        total: The number of scenarios.
        configs: The most frequent winners.
        names: The short names of configs.
    """

    name: str
    source: str
    sources: dict[str, int]
    contexts: list[CoveredContext]
    left_out: int
    columns: ScenarioColumns
    rows: list[AcrossRow]
    total: int
    configs: list[WinningConfig]
    names: ConfigNames


def kernel_across(
    database: Database, principal: Principal, namespace: str, name: str, wanted: KernelFilter
) -> KernelView:
    """Load a kernel with all its contexts of one source.

    Raises:
        AccessDeniedError: The principal may not read the namespace.
        NotFoundError: There are no records of the kernel.
    """
    principal.require("read", namespace)
    with database.read() as connection:
        rows = coverage.load_contexts(connection, namespace, name)
        covered = contexts_of(rows, {}, {})
        if not covered:
            raise NotFoundError(f"namespace {namespace!r} has no records of {name!r}")
        source = wanted.source or current_source(covered)
        chosen = [entry for entry in covered if entry.context.kernel.source == source]
        chosen.sort(key=lambda entry: (entry.device, entry.triton, entry.row.digest))
        contexts = chosen[:_MOST_CONTEXTS]
        ids = [entry.row.id for entry in contexts]
        by_context = [summaries.load(connection, identity) for identity in ids]
        texts: dict[str, str] = {}
        for identity, loaded in zip(ids, by_context, strict=True):
            if loaded.keys() - texts.keys():
                texts |= coverage.load_scenarios(connection, identity)
    scenarios = {digest: Scenario.model_validate_json(text) for digest, text in texts.items()}
    columns = ScenarioColumns(scenarios.values())
    order = sorted(scenarios, key=lambda digest: columns.order(scenarios[digest], wanted.sort))
    sources: Counter[str] = Counter()
    for entry in covered:
        sources[entry.context.kernel.source] += entry.row.records
    configs, names = _count_wins(by_context)
    return KernelView(
        name=name,
        source=source,
        sources=dict(sources),
        contexts=contexts,
        left_out=len(chosen) - len(contexts),
        columns=columns,
        rows=[
            AcrossRow(
                digest,
                columns.cells(scenarios[digest]),
                [loaded.get(digest) for loaded in by_context],
            )
            for digest in take_page(order, wanted.page)
        ],
        total=len(order),
        configs=configs,
        names=names,
    )


def _count_wins(by_context: list[dict[str, Summary]]) -> tuple[list[WinningConfig], ConfigNames]:
    wins = [Counter(summary.chosen for summary in loaded.values()) for loaded in by_context]
    total: Counter[str | None] = sum(wins, Counter())
    parsed = {text: Config.model_validate_json(text) for text in total if text is not None}
    names = ConfigNames(list(parsed.values()))
    ranked = sorted(parsed, key=lambda text: (-total[text], text))[:_MOST_CONFIGS]
    configs = [
        WinningConfig(names.name(parsed[text]), [counter[text] for counter in wins])
        for text in ranked
    ]
    return configs, names
