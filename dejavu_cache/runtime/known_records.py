"""What the launches of a kernel read of its stores, and what this process has found out."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from ..errors import StoreError
from ..model.record import Record
from ..model.scenario import Context, Scenario
from ..model.selection import args_distance
from ..stores import Found, FoundTree, MemoryStore, TieredStore
from ..system.notices import warn_once
from .rules import Findings, corrected_record

__all__ = ["KnownRecords"]

MOST_SCENARIOS = 4096
"""Scenarios of which findings are kept; those of a program with ever new sizes are found again."""

CONTEXTS_AGE = 60.0
"""Seconds for which the list of a kernel's contexts is used before it is read again."""

_Listing = dict[frozenset[tuple[str, str]], list[tuple[Mapping[str, Any], str]]]
"""The arguments and the text of a context's scenarios, by their dtypes."""


class KnownRecords:
    """The records of a kernel, and what may stand in for them; no failure stops a launch.

    Tiers that cannot be read are passed over with a warning, as `TieredStore` does. Decision trees
    are read once, and a kernel's contexts once a minute: a launch that falls back asks for them
    again every few seconds.

    Attributes:
        tiers: the stores.
        url: the URLs of the tiers that keep what is written, or of all tiers if none does.
    """

    def __init__(self, tiers: TieredStore) -> None:
        """Read nothing yet."""
        self.tiers = tiers
        lasting = [
            tier.url
            for tier in tiers.tiers
            if not (tier.read_only or isinstance(tier, MemoryStore))
        ]
        self.url = ",".join(lasting) or tiers.url
        self._findings: dict[tuple[Context, Scenario], Findings] = {}
        self._listings: dict[Context, tuple[Hashable | None, _Listing]] = {}
        self._trees: dict[Context, list[FoundTree]] = {}
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
        return found._replace(record=corrected_record(found.record, findings))

    def near(
        self,
        context: Context,
        wanted: Scenario,
        exact: Collection[str] = (),
        max_distance: float = math.inf,
    ) -> Iterator[tuple[float, Scenario]]:
        """Yield the recorded scenarios of a context within a distance, the nearest first.

        Args:
            context: the kernel, environment and problem of the records.
            wanted: the scenario in question.
            exact: key arguments that must be equal though they are numbers.
            max_distance: in powers of two, summed over the key arguments.
        """
        candidates = [
            (distance, text)
            for args, text in self._listing(context).get(frozenset(wanted.dtypes.items()), ())
            if (distance := args_distance(wanted.args, args, exact, max_distance)) <= max_distance
            and distance < math.inf
        ]
        for distance, text in sorted(candidates):
            with suppress(ValidationError):  # damaged
                yield distance, Scenario.model_validate_json(text)

    def _listing(self, context: Context) -> _Listing:
        """Return the recorded scenarios of a context, read again only if they may have changed."""
        revision = self.tiers.revision(context)
        read_at, listing = self._listings.get(context, (None, None))
        if listing is None or revision is None or read_at != revision:
            listing = _list_scenarios(self.tiers.scenario_texts(context))
            self._listings[context] = revision, listing
        return listing

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

    def other_toolchains(self, context: Context) -> list[Context]:
        """Return the contexts that differ in nothing but Triton and its code generator."""
        own = context.environment
        return [
            other
            for other in self.other_contexts(context)
            if (other.kernel, other.problem) == (context.kernel, context.problem)
            and (other.environment.device, other.environment.variables)
            == (own.device, own.variables)
        ]

    def trees(self, context: Context) -> list[FoundTree]:
        """Return the kernel's decision trees fitted on this GPU: for this context, then by age."""
        if context not in self._trees:
            trees = [
                found
                for found in self.tiers.trees(context.kernel.name)
                if found.tree.context.environment.device == context.environment.device
            ]
            trees.sort(key=lambda found: (found.tree.context == context, found.tree.at))
            self._trees[context] = trees[::-1]
        return self._trees[context]

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


def _list_scenarios(texts: Iterator[str]) -> _Listing:
    listing: _Listing = {}
    for text in texts:
        try:
            scenario = json.loads(text)
            entry = {**scenario["args"]}, text
            listing.setdefault(frozenset(scenario["dtypes"].items()), []).append(entry)
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            continue  # damaged
    return listing
