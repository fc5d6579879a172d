"""What the launches of a kernel read of its stores, and what this process has found out."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable
from contextlib import suppress

from pydantic import ValidationError

from ..errors import StoreError
from ..model.foreign_result import ForeignResult
from ..model.record import Record
from ..model.scenario import Context, Scenario
from ..model.scenario_index import ScenarioIndex
from ..stores import Found, FoundTree, MemoryStore, TieredStore
from ..system.notices import warn_once
from .rules import Findings, known_record

__all__ = ["KnownRecords"]

MOST_SCENARIOS = 4096
"""Scenarios of which findings are kept; those of a program with ever new sizes are found again."""

CONTEXTS_AGE = 60.0
"""Seconds for which the list of a kernel's contexts is used before it is read again."""


class KnownRecords:
    """The records of a kernel, and what may stand in for them; no failure stops a launch.

    Tiers that cannot be read are passed over with a warning, as `TieredStore` does. Decision trees
    and other tools' results are read once, and a kernel's contexts once a minute: a launch that
    falls back asks for them again every few seconds.

    Attributes:
        tiers: the stores.
        url: the URLs of the tiers that keep what is written, or of all tiers if none does.
        is_lasting: whether another process can read what is written.
    """

    def __init__(self, tiers: TieredStore) -> None:
        """Read nothing yet."""
        lasting = [
            tier.url
            for tier in tiers.tiers
            if not (tier.read_only or isinstance(tier, MemoryStore))
        ]
        self.tiers = tiers
        self.url = ",".join(lasting) or tiers.url
        self.is_lasting = bool(lasting)
        self._findings: dict[tuple[Context, Scenario], Findings] = {}
        self._neighbours: dict[Context, tuple[Hashable | None, ScenarioIndex]] = {}
        self._trees: dict[Context, list[FoundTree]] = {}
        self._imports: dict[str, list[ForeignResult]] = {}
        self._contexts: dict[str, tuple[float, list[Context]]] = {}

    def findings(self, context: Context, scenario: Scenario) -> Findings:
        """Return what this process has found out about a scenario, to be added to."""
        known = self._findings.get((context, scenario))
        if known is None:
            if len(self._findings) >= MOST_SCENARIOS:
                self._findings.clear()
            known = self._findings.setdefault((context, scenario), Findings())
        return known

    def look_up(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return a scenario's record, corrected by what this process measured, or None.

        Args:
            context: the kernel, environment and problem of the record.
            scenario: the bucketed key values and dtypes.
            fresh: whether every tier reads again what may have changed since it was last read.
        """
        found = self.tiers.get(context, scenario, fresh=fresh)
        if found is None:
            return None
        findings = self._findings.get((context, scenario), Findings())
        return found._replace(record=known_record(found.record, findings))

    def neighbours(self, context: Context) -> ScenarioIndex:
        """Return the recorded scenarios of a context, read again only if they may have changed."""
        revision = self.tiers.revision(context)
        read_at, index = self._neighbours.get(context, (None, None))
        if index is None or revision is None or read_at != revision:
            index = self.tiers.scenario_index(context)
            self._neighbours[context] = revision, index
        return index

    def scenarios(self, context: Context) -> list[Scenario]:
        """Return the recorded scenarios of a context; a text that is none is left out."""
        scenarios: list[Scenario] = []
        for text in self.tiers.scenario_texts(context):
            with suppress(ValidationError):
                scenarios.append(Scenario.model_validate_json(text))
        return scenarios

    def other_contexts(self, context: Context) -> list[Context]:
        """Return the other contexts in which the same kernel has records."""
        kernel = context.kernel.name
        read_at, contexts = self._contexts.get(kernel, (-math.inf, []))
        if time.monotonic() - read_at > CONTEXTS_AGE:
            contexts = list(self.tiers.contexts(kernel))
            self._contexts[kernel] = time.monotonic(), contexts
        return [other for other in contexts if other != context]

    def trees(self, context: Context) -> list[FoundTree]:
        """Return the kernel's decision trees, the one fitted in the most similar context first."""
        if context not in self._trees:
            trees = self.tiers.trees(context.kernel.name)
            self._trees[context] = sorted(trees, key=lambda tree: _dissimilarity(context, tree))
        return self._trees[context]

    def imports(self, context: Context) -> list[ForeignResult]:
        """Return the results of other tools for the kernel, by its name without the module."""
        function = context.kernel.name.rpartition(".")[2]
        if function not in self._imports:
            self._imports[function] = list(self.tiers.imported(function))
        return self._imports[function]

    def put(self, context: Context, record: Record, *, now: bool = False) -> None:
        """Merge a record into the stores, if they can be written.

        Args:
            context: the kernel, environment and problem of the record.
            record: what is to be added.
            now: whether to return only once that is durable.
        """
        if self.tiers.read_only:
            return
        write = self.tiers.put_now if now else self.tiers.put
        try:
            write(context, [record])
        except (StoreError, OSError) as error:
            warn_once(f"store {self.url}", f"{self.url}: {error}; the program goes on without")


def _dissimilarity(context: Context, tree: FoundTree) -> tuple[bool, bool, bool, bool, float]:
    """Rank what speaks against a tree: its GPU, then method, toolchain and source, then its age."""
    fitted = tree.tree.context
    return (
        fitted.environment.device != context.environment.device,
        fitted.problem.method != context.problem.method,
        fitted.environment != context.environment,
        fitted.kernel != context.kernel,
        -tree.tree.at.timestamp(),
    )
