"""An autotuner's store, whose failures never stop a launch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TypeVar

from pydantic import ValidationError

from ..errors import StoreError
from ..model.foreign_result import ForeignResult
from ..model.record import Record
from ..model.scenario import Context, Scenario
from ..model.scenario_index import ScenarioIndex
from ..stores import Found, FoundTree, MemoryStore, TieredStore
from ..system.notices import warn_once

__all__ = ["TolerantStore"]

T = TypeVar("T")

CONTEXTS_AGE = 60.0
"""Seconds for which the list of a kernel's contexts is used before it is read again."""


class TolerantStore:
    """Reads and writes a store; a failure is warned about once and counts as a miss.

    Decision trees and other tools' results are read once, and a kernel's contexts once a minute: a
    launch that falls back asks for them again every few seconds.

    Attributes:
        tiers: the store itself.
        url: the URLs of the tiers that keep what is written, or of all tiers if none does.
        is_lasting: whether another process can read what is written.
    """

    def __init__(self, tiers: TieredStore) -> None:
        """Wrap a store."""
        lasting = [
            tier.url
            for tier in tiers.tiers
            if not (tier.read_only or isinstance(tier, MemoryStore))
        ]
        self.tiers = tiers
        self.url = ",".join(lasting) or tiers.url
        self.is_lasting = bool(lasting)
        self._scenarios: dict[Context, tuple[Hashable | None, ScenarioIndex]] = {}
        self._trees: dict[Context, list[FoundTree]] = {}
        self._imports: dict[str, list[ForeignResult]] = {}
        self._contexts: dict[str, tuple[float, list[Context]]] = {}

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return the record of a scenario, or None.

        Args:
            context: the kernel, environment and problem of the record.
            scenario: the bucketed key values and dtypes.
            fresh: whether every tier reads again what may have changed since it was last read.
        """
        return self._attempt(lambda: self.tiers.get(context, scenario, fresh=fresh), None)

    def scenarios(self, context: Context) -> ScenarioIndex:
        """Return the recorded scenarios of a context, read again only if they may have changed."""
        revision = self.revision(context)
        cached = self._scenarios.get(context)
        if cached is not None and revision is not None and cached[0] == revision:
            return cached[1]
        index = self._attempt(lambda: self.tiers.scenario_index(context), ScenarioIndex())
        self._scenarios[context] = revision, index
        return index

    def list_scenarios(self, context: Context) -> list[Scenario]:
        """Return the recorded scenarios of a context; a text that is none is left out."""
        scenarios: list[Scenario] = []
        none: list[str] = []
        for text in self._attempt(lambda: list(self.tiers.scenario_texts(context)), none):
            with suppress(ValidationError):
                scenarios.append(Scenario.model_validate_json(text))
        return scenarios

    def revision(self, context: Context) -> Hashable | None:
        """Return a value that differs after each change of a context's records, or None."""
        return self._attempt(lambda: self.tiers.revision(context), None)

    def other_contexts(self, context: Context) -> list[Context]:
        """Return the other contexts in which the same kernel has records."""
        kernel = context.kernel.name
        read_at, contexts = self._contexts.get(kernel, (-math.inf, []))
        if time.monotonic() - read_at > CONTEXTS_AGE:
            contexts = self._attempt(lambda: list(self.tiers.contexts(kernel)), [])
            self._contexts[kernel] = time.monotonic(), contexts
        return [other for other in contexts if other != context]

    def trees(self, context: Context) -> list[FoundTree]:
        """Return the kernel's decision trees, the one fitted in the most similar context first."""
        if context not in self._trees:
            trees: list[FoundTree] = self._attempt(
                lambda: list(self.tiers.trees(context.kernel.name)), []
            )
            self._trees[context] = sorted(trees, key=lambda tree: _dissimilarity(context, tree))
        return self._trees[context]

    def imports(self, context: Context) -> list[ForeignResult]:
        """Return the results of other tools for the kernel, by its name without the module."""
        function = context.kernel.name.rpartition(".")[2]
        if function not in self._imports:
            self._imports[function] = self._attempt(lambda: list(self.tiers.imported(function)), [])
        return self._imports[function]

    def put(self, context: Context, record: Record) -> None:
        """Merge a record into the store, if it can be written."""
        if not self.tiers.read_only:
            self._attempt(lambda: self.tiers.put(context, [record]), None)

    def put_now(self, context: Context, record: Record) -> None:
        """Merge a record into the store as `put` does, and return once that is durable."""
        if not self.tiers.read_only:
            self._attempt(lambda: self.tiers.put_now(context, [record]), None)

    def note_miss(self, context: Context, scenario: Scenario) -> None:
        """Put a scenario on the store's worklist."""
        self._attempt(lambda: self.tiers.miss(context, scenario), None)

    def _attempt(self, action: Callable[[], T], otherwise: T) -> T:
        try:
            return action()
        except (StoreError, OSError) as error:
            warn_once(f"store {self.url}", f"{self.url}: {error}; the program goes on without")
            return otherwise


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
