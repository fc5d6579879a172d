"""What the launches of a kernel read of its stores: a record, or else what stands in for it."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import add, attrgetter
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from ..errors import StoreError
from ..model.record import Record
from ..model.scenario import Config, Context, Difference, Scenario, canonical_json, differences
from ..model.selection import distance, find_rivals, is_credible, relative_squares, value_distance
from ..stores import Found, MemoryStore, TieredStore
from ..system.background_threads import let_signals_through
from ..system.notices import warn_once
from ..triton_internals.config_names import describe
from .request import Request, Resolution
from .rules import Findings, corrected_record, trusted_choice

if TYPE_CHECKING:
    from ..model.worth import Saving
    from ..prediction.slowdown_model import SlowdownModel

MOST_SCENARIOS = 4096
"""Scenarios of which findings are kept; those of a program with ever new sizes are found again."""

CONTEXTS_AGE = 60.0
"""Seconds for which the list of a kernel's contexts is used before it is read again."""

NEAR_A_TUNE, NEAR_A_LAUNCH = 16, 8
"""Most records from which a tune predicts, and a launch: of twice as many, a launch took twice the
time for no less loss."""

NEAR_ELSEWHERE = 4
"""Of them, most of each other GPU or Triton."""

FEW_RIVALS, MOST_RIVALS = 16, 32
"""Configs by which a launch predicts what runs, and in the background what a tune saves."""

_NUMBER = r"(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
"""A number in a scenario's text."""


class Neighbour(NamedTuple):
    """A record that says something of another scenario, and the context in which it was made."""

    context: Context
    found: Found


def _is_compiled_alike(context: Context, request: Request) -> bool:
    """Return whether code is the same on a context's GPU and a request's, maybe another model."""
    there, here = context.environment, request.context.environment
    return (there.device.arch, there.settings) == (here.device.arch, here.settings)


def _is_of_machine(context: Context, request: Request) -> bool:
    """Return whether records of a context were made on a request's GPU, with its variables."""
    is_same = context.environment.device == request.context.environment.device
    return is_same and _is_compiled_alike(context, request)


@dataclass(eq=False)
class KnownRecords:
    """The records of a kernel, and what may stand in for them; no failure stops a launch.

    Tiers that cannot be read are passed over with a warning, as `TieredStore` does. A kernel's
    contexts are listed once a minute: a launch that falls back asks for them every few seconds.

    Attributes:
        tiers: the stores.
    """

    tiers: TieredStore
    _findings: dict[tuple[Context, Scenario], Findings] = field(default_factory=dict, init=False)
    _contexts: dict[str, tuple[float, list[Context]]] = field(default_factory=dict, init=False)

    @property
    def kept_in(self) -> str:
        """The URLs of the tiers that keep what is written, or the URL of this process's memory."""
        urls = map(attrgetter("url"), self.tiers.writable)
        return ",".join(filter(MemoryStore.url.__ne__, urls)) or MemoryStore.url

    @property
    def url(self) -> str:
        """The URLs of the tiers that keep what is written, or of all tiers if none does."""
        return self.tiers.url if self.kept_in == MemoryStore.url else self.kept_in

    def findings(self, context: Context, scenario: Scenario) -> Findings:
        """Return what this process has found out about a scenario, to be added to."""
        key = context, scenario
        if key not in self._findings and len(self._findings) >= MOST_SCENARIOS:
            self._findings.clear()
        return self._findings.setdefault(key, Findings())

    def look_up(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return a scenario's record, corrected by what this process measured, or None.

        With `fresh`, every tier reads again what may have changed since it was last read.
        """
        found = self.tiers.get(context, scenario, fresh=fresh)
        if found is None:
            return None
        findings = self._findings.get((context, scenario), Findings())
        return found._replace(record=corrected_record(found.record, findings))

    def near(
        self, context: Context, wanted: Scenario, exact: Collection[str] = ()
    ) -> Iterator[tuple[float, Scenario]]:
        """Yield the recorded scenarios of a context with their distance, the most alike first.

        They differ in numbers alone, and not in those of `exact` arguments, so that a pattern finds
        them without parsing any. Each argument counts relative to how far it varies among them.
        """
        numbers = {
            name: float(value)
            for name, value in sorted(wanted.args.items())
            if isinstance(value, (int, float)) and not (isinstance(value, bool) or name in exact)
        }
        blank = {"args": wanted.args | dict.fromkeys(numbers, "\0"), "dtypes": wanted.dtypes}
        pattern = re.escape(canonical_json(blank)).replace(re.escape(json.dumps("\0")), _NUMBER)
        texts = "\n".join(self.tiers.scenario_texts(context))
        width = len(numbers) + 2
        # Split, and not found, since thousands of tuples would call for a collection of garbage.
        # To compile the pattern takes half a millisecond, also where there is no text.
        parts = re.split(f"^({pattern})$", texts, flags=re.MULTILINE) if texts else []
        alike, squares = parts[1::width], [0.0] * (len(parts) // width)
        for position, number in enumerate(numbers.values(), 2):
            column = parts[position::width]
            by_text = {text: value_distance(number, float(text)) for text in set(column)}
            squares = [*map(add, squares, relative_squares([*map(by_text.__getitem__, column)]))]
        for index in sorted(range(len(alike)), key=squares.__getitem__):
            if squares[index] == math.inf:
                break
            with suppress(ValidationError):  # damaged
                scenario = Scenario.model_validate_json(alike[index])
                yield distance(wanted, scenario), scenario

    def other_contexts(self, context: Context) -> list[Context]:
        """Return the other contexts in which the same kernel has records."""
        kernel = context.kernel.name
        read_at, contexts = self._contexts.get(kernel, (-math.inf, []))
        if time.monotonic() - read_at > CONTEXTS_AGE:
            contexts = list(self.tiers.contexts(kernel))
            self._contexts[kernel] = time.monotonic(), contexts
        return [other for other in contexts if other != context]

    def neighbours(
        self, request: Request, most: int, exact: Collection[str] = ()
    ) -> Iterator[Neighbour]:
        """Yield the records that say most of a scenario's configs, to predict others from.

        First are those that were measured with another Triton or on other GPUs, and are nearer
        than any in the request's own context, half of `most` at most; then these, then other ones.
        Others are asked about for half as long as a launch waits, however many there are.
        """
        context, scenario = request.context, request.scenario
        waits = [tier.wait for tier in self.tiers.tiers if tier.wait]
        until = time.monotonic() + max(waits, default=math.inf) / 2
        near = islice(self.near(context, scenario, exact), most + 1)
        own = [(gap, context, neighbour) for gap, neighbour in near if neighbour != scenario]
        others = [
            (gap, other, neighbour)
            for other in self.other_contexts(context)
            if (other.kernel, other.problem) == (context.kernel, context.problem)
            and time.monotonic() < until
            for gap, neighbour in islice(self.near(other, scenario, exact), NEAR_ELSEWHERE)
        ]
        others.sort(key=lambda there: (there[0], not _is_of_machine(there[1], request)))
        nearer = [there for there in others if not own or there[0] < own[0][0]][: most // 2]
        for _, where, neighbour in [*dict.fromkeys([*nearer, *own, *others])][:most]:
            recorded = self.tiers.get(where, neighbour)
            if recorded is not None and len(recorded.record.measurements) > 1:
                yield Neighbour(where, recorded)

    def near_a_launch(self, request: Request) -> list[Neighbour]:
        """Return the neighbours that a launch without a record reads."""
        return list(self.neighbours(request, NEAR_A_LAUNCH, request.exact))

    def put(self, context: Context, record: Record, *, now: bool = False) -> None:
        """Merge a record into the stores, if they can be written; `now` is that of `Store.put`."""
        if self.tiers.read_only:
            return
        try:
            self.tiers.put(context, [record], now=now)
        except (StoreError, OSError) as error:
            let_signals_through(error)
            warn_once(f"store {self.url}", f"{self.url}: {error}; the program goes on without")


def fall_back(request: Request, neighbours: Sequence[Neighbour], *, uncompared: bool) -> Resolution:
    """Return what runs where a scenario has no record: a predicted config, or the default.

    Candidates are the configs that run in near scenarios by records of a GPU of this architecture,
    with any Triton, and that this GPU has timed. One is predicted if it is likely faster than the
    default by what all records say of both, and of their rivals. A config whose results were wrong
    in one of them is none. With `uncompared`, a record may serve whose winner nobody has compared.
    """
    default = describe(request.default)
    measured = [entry for each in neighbours for entry in each.found.record.measurements]
    request = request.without({entry.config for entry in measured if entry.is_wrong} - {default})
    own = [near for near in neighbours if _is_of_machine(near.context, request)]
    timed = {e.config for near in own for e in near.found.record.measurements if is_credible(e)}
    candidates: dict[Config, tuple[Resolution, Neighbour]] = {}
    for neighbour in [*own, *(n for n in neighbours if not _is_of_machine(n.context, request))]:
        choice = trusted_choice(request, neighbour.found, uncompared=uncompared)
        is_alike = _is_compiled_alike(neighbour.context, request)
        if choice is not None and is_alike and describe(choice.config) in timed:
            candidates.setdefault(describe(choice.config), (choice, neighbour))
    configs = dict.fromkeys([default, *candidates, *_rivals(request, neighbours, FEW_RIVALS)])
    model = None
    if {*candidates} - {default}:
        model = model_slowdowns(request, [*configs], neighbours, unmeasured=True)
    outdone = model.outdo(default, candidates) if model else None
    if outdone is None:
        return request.resolution("default", request.default)
    config, gain = outdone
    choice, neighbour = candidates[config]
    context, scenario = neighbour.context, neighbour.found.record.scenario
    return replace(
        choice,
        how="predicted",
        gain=gain,
        predicted_from=len(neighbours),
        recorded_in=context,
        recorded_for=scenario,
        differences=[
            *differences(request.context.model_dump(), context.model_dump()),
            *differences(request.scenario.model_dump(), scenario.model_dump()),
        ],
    )


def _rivals(request: Request, near: Sequence[Neighbour], most: int) -> list[Config]:
    """Return the declared configs that are the fastest in near records."""
    rivals = find_rivals((known.found.record for known in near), most)
    return [config for config in rivals if config in request.declared]


def model_slowdowns(
    request: Request, configs: Sequence[Config], near: Iterable[Neighbour], *, unmeasured: bool
) -> SlowdownModel | None:
    """Return a model of some of a request's configs; None without NumPy, which it needs."""
    try:
        from ..prediction.slowdown_model import SlowdownModel
    except ImportError:
        return None
    launch = request.candidate_launch()
    return SlowdownModel(
        request.context.environment,
        request.scenario,
        {config: launch.programs_of(config) for config in configs},
        [(known.context.environment, known.found.record) for known in near],
        unmeasured=unmeasured,
    )


class UntunedLaunch(NamedTuple):
    """All that predicts what a tune saves a launch, without the launch's arguments.

    Attributes:
        context: the kernel, environment and problem.
        scenario: the scenario.
        runs: the config that runs.
        programs: how many programs a launch runs of it, and of those that may be faster.
        near: records of near scenarios.
    """

    context: Context
    scenario: Scenario
    runs: Config
    programs: Mapping[Config, int | None]
    near: Sequence[Neighbour]

    @classmethod
    def of(cls, request: Request, runs: Config, near: Sequence[Neighbour]) -> UntunedLaunch:
        """Count the programs of a request's launch."""
        count = request.candidate_launch().programs_of
        configs = [runs, *_rivals(request, near, MOST_RIVALS)]
        programs = {config: count(config) for config in configs}
        return cls(request.context, request.scenario, runs, programs, near)

    def predict_saving(self) -> Saving | None:
        """Return what a tune saves the launch; None: nothing says it, or NumPy is not there."""
        try:
            from ..prediction.features import Point
            from ..prediction.slowdown_model import expect_saving
        except ImportError:
            return None
        here, programs = self.context.environment, self.programs.get(self.runs)
        asked = Point(here, self.scenario, self.runs, programs)
        records = [(other.context.environment, other.found.record) for other in self.near]
        return expect_saving(asked, self.programs, records)


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
    own, others = request.context.model_dump(), records.other_contexts(request.context)
    by_context = [differences(own, context.model_dump()) for context in others]
    return min(by_context, key=len, default=[])
