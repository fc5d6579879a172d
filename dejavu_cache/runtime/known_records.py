"""What the launches of a kernel read of its stores: a record, or else what stands in for it."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Collection, Hashable, Iterator
from contextlib import suppress
from dataclasses import replace

from pydantic import ValidationError

from ..errors import StoreError
from ..model.record import Record
from ..model.scenario import (
    Context,
    Difference,
    Environment,
    Scenario,
    canonical_json,
    differences,
)
from ..model.selection import value_distance
from ..stores import Found, MemoryStore, TieredStore
from ..system.notices import warn_once
from .request import Request, Resolution
from .rules import Findings, corrected_record, trusted_choice

__all__ = ["KnownRecords", "fall_back", "find_nearest", "nearest_differences"]

MOST_SCENARIOS = 4096
"""Scenarios of which findings are kept; those of a program with ever new sizes are found again."""

CONTEXTS_AGE = 60.0
"""Seconds for which the list of a kernel's contexts is used before it is read again."""

NEAR_HERE, NEAR_ELSEWHERE = 16, 4
"""Most records from which a tune predicts, and of them those of another GPU or Triton."""

_NUMBER = r"(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
"""A number in a scenario's text."""


class KnownRecords:
    """The records of a kernel, and what may stand in for them; no failure stops a launch.

    Tiers that cannot be read are passed over with a warning, as `TieredStore` does. A kernel's
    contexts are read once a minute: a launch that falls back asks for them every few seconds.

    Attributes:
        tiers: the stores.
    """

    def __init__(self, tiers: TieredStore) -> None:
        """Read nothing yet."""
        self.tiers = tiers
        self._findings: dict[tuple[Context, Scenario], Findings] = {}
        self._texts: dict[Context, tuple[Hashable | None, list[str]]] = {}
        self._contexts: dict[str, tuple[float, list[Context]]] = {}

    @property
    def url(self) -> str:
        """The URLs of the tiers that keep what is written, or of all tiers if none does."""
        lasting = []
        for tier in self.tiers.tiers:
            if not (tier.read_only or isinstance(tier, MemoryStore)):
                lasting.append(tier.url)
        return ",".join(lasting) or self.tiers.url

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

        They differ in numbers alone, so that a pattern finds them without parsing any.

        Args:
            context: the kernel, environment and problem of the records.
            wanted: the scenario in question.
            exact: key arguments that must be equal though they are numbers.
            max_distance: in powers of two, summed over the key arguments.
        """
        numbers = {
            name: float(value)
            for name, value in sorted(wanted.args.items())
            if isinstance(value, (int, float)) and not (isinstance(value, bool) or name in exact)
        }
        blank = {"args": wanted.args | dict.fromkeys(numbers, "\0"), "dtypes": wanted.dtypes}
        pattern = re.escape(canonical_json(blank)).replace(re.escape(json.dumps("\0")), _NUMBER)
        is_alike, candidates = re.compile(pattern).fullmatch, []
        for text in self._scenario_texts(context):
            if match := is_alike(text):
                total = 0.0
                for value, found in zip(numbers.values(), match.groups(), strict=True):
                    total += value_distance(value, float(found))
                    if total > max_distance:
                        break
                if total <= max_distance and total < math.inf:
                    candidates.append((total, text))
        for distance, text in sorted(candidates):
            with suppress(ValidationError):  # damaged
                yield distance, Scenario.model_validate_json(text)

    def _scenario_texts(self, context: Context) -> list[str]:
        """Return the recorded scenarios of a context, read again only if they may have changed."""
        revision = self.tiers.revision(context)
        read_at, texts = self._texts.get(context, (None, []))
        if revision is None or read_at != revision:
            texts = list(self.tiers.scenario_texts(context))
            self._texts[context] = revision, texts
        return texts

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

    def known_near(self, request: Request) -> list[tuple[Environment, Record]]:
        """Return the records that say most of a scenario's configs, to predict others from.

        They are those of the nearest scenarios, and of the same and near ones that were measured
        on other GPUs or with another Triton.
        """
        context, scenario = request.context, request.scenario
        near = [other for _, other in self.near(context, scenario) if other != scenario]
        places: list[tuple[Context, Scenario]] = []
        for other in self.other_contexts(context):
            if (other.kernel, other.problem) == (context.kernel, context.problem):
                there = [one for _, one in self.near(other, scenario)]
                places += [(other, one) for one in there[:NEAR_ELSEWHERE]]
        places = places[: NEAR_HERE // 2] + [(context, one) for one in near]
        known: list[tuple[Environment, Record]] = []
        for place, one in places[:NEAR_HERE]:
            found = self.tiers.get(place, one)
            if found is not None and len(found.record.measurements) > 1:
                known.append((place.environment, found.record))
        return known

    def put(self, context: Context, record: Record, *, now: bool = False) -> None:
        """Merge a record into the stores, if they can be written.

        Args:
            context: the kernel, environment and problem of the record.
            record: what is to be added.
            now: whether to return only once that is durable.
        """
        if self.tiers.read_only:
            return
        try:
            self.tiers.put(context, [record], now=now)
        except (StoreError, OSError) as error:
            warn_once(f"store {self.url}", f"{self.url}: {error}; the program goes on without")


def fall_back(
    request: Request, records: KnownRecords, max_distance: float, *, uncompared: bool
) -> Resolution:
    """Return a config and its provenance, from the most to the least trustworthy.

    It is the first of these that there is:

    1. `toolchain`: the scenario's record made with another Triton or code generator;
    2. `nearest`: the winner of the nearest recorded scenario;
    3. `default`: the default config.

    Args:
        request: the scenario.
        records: the kernel's.
        max_distance: of a nearest scenario, in powers of two summed over the key arguments.
        uncompared: whether a record may serve whose winner nobody has compared.
    """
    return next(_answers(request, records, max_distance, uncompared=uncompared))


def _answers(
    request: Request, records: KnownRecords, max_distance: float, *, uncompared: bool
) -> Iterator[Resolution]:
    """Yield what each fallback answers, in the order of `fall_back`."""
    context, scenario = request.context, request.scenario
    for other in records.other_toolchains(context):
        found = records.tiers.get(other, scenario)
        if choice := trusted_choice(request, found, uncompared=uncompared):
            differing = differences(context.model_dump(), other.model_dump())
            yield replace(choice, how="toolchain", differences=differing, recorded_in=other)
    for distance, near in records.near(context, scenario, request.exact, max_distance):
        found = records.tiers.get(context, near)
        if choice := trusted_choice(request, found, uncompared=uncompared):
            differing = differences(scenario.model_dump(), near.model_dump())
            yield replace(
                choice, how="nearest", distance=distance, recorded_for=near, differences=differing
            )
    yield request.resolution("default", request.default)


def find_nearest(request: Request, records: KnownRecords) -> tuple[float, Scenario] | None:
    """Return the distance of the nearest other scenario with a record, and the scenario."""
    candidates = records.near(request.context, request.scenario)
    return next((near for near in candidates if near[1] != request.scenario), None)


def nearest_differences(request: Request, records: KnownRecords) -> list[Difference]:
    """Return the fields that set the nearest record apart from a request.

    The nearest record is looked for in the request's own context first, and else in the context
    that differs in the fewest fields. Without any record of the kernel there are no differences.
    """
    if near := find_nearest(request, records):
        return differences(request.scenario.model_dump(), near[1].model_dump())
    by_context = [
        differences(request.context.model_dump(), context.model_dump())
        for context in records.other_contexts(request.context)
    ]
    return min(by_context, key=len, default=[])
