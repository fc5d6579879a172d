"""Resolve a scenario that a launch meets for the first time: use a record, tune, or fall back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from ..errors import ScenarioNotTuned
from ..model.record import Record
from ..model.scenario import Config, Context, Scenario, now
from ..model.selection import evidence_lines
from ..model.worth import MissCount, Saving
from ..settings import Mode
from ..stores import Found, TieredStore, one_look
from ..stores.base import recorded_scenarios
from ..system.background_threads import Finisher, WriterThread, at_program_end, uninterrupted
from ..system.fork_lock import ForkLock
from ..system.notices import logger, warn_once
from ..triton_internals.config_names import describe
from ..triton_internals.environment import is_capturing_graph, is_interpreting
from ..triton_internals.generated_code import find_other_code, has_equal_code
from ..triton_internals.identity import is_decorated_alike
from ..tuning.measurement_marks import find_suspects
from . import rules
from .choices import MOST_CHOICES
from .known_records import (
    KnownRecords,
    Neighbour,
    UntunedLaunch,
    fall_back,
    find_nearest,
    nearest_differences,
)
from .request import Request, Resolution
from .service_phase import may_benchmark
from .tune import tune, without_suspects

if TYPE_CHECKING:
    from ..system.workers import ParentConnection

MOST_REJECTIONS = 3
"""Configs of a scenario that may fail at launches before only the default is left."""


class OtherCodeError(Exception):
    """Triton generates other code for a launch than its key's record was measured with.

    Attributes:
        code: what it generates.
    """

    def __init__(self, code: str) -> None:
        """Keep the code."""
        super().__init__(code)
        self.code = code


@dataclass
class Missed:
    """Launches of a scenario without a record.

    Attributes:
        launches: counts them by `next`, which is one step even with many threads.
        reported: how many were reported.
        saving: what a tune would save each, as predicted once; None if nothing says it by now.
    """

    launches: Iterator[int] = field(default_factory=lambda: count(1))
    reported: int = 0
    saving: Saving | None = None


_MissReport = tuple[TieredStore, UntunedLaunch, Missed, int]
"""Launches without a record, with all that was read: a fork or the end waits for no store."""


class _MissReporter(WriterThread[_MissReport]):
    """Reports misses with what a tune would save, so that no launch waits for that prediction."""

    def write(self, items: list[_MissReport]) -> None:
        # Its own time: what launches take of the interpreter in between leaves no miss unpredicted.
        until = time.thread_time() + (PREDICTING_AT_END if self._hurries else PREDICTING)
        for tiers, launch, missed, launches in items:
            with uninterrupted(), suppress(Exception):  # a miss counts whatever records say
                if time.thread_time() < until:
                    missed.saving = launch.predict_saving()
            tiers.miss(launch.context, launch.scenario, MissCount(launches, missed.saving))


MISSES_WAIT, PREDICTING, PREDICTING_AT_END = 1.0, 0.1, 1.0
"""Seconds that misses wait for more, and are predicted within: launches want Python, too."""

_reporter = _MissReporter("dejavu-cache misses", MISSES_WAIT)


@dataclass(eq=False)
class Resolver(Finisher):
    """Decides, for one autotuner, where configs come from: looks up, asks `rules`, and acts.

    Launches that find no record are reported whenever they have doubled, and what is left at the
    program's end. A forked child counts its own.

    Attributes:
        store: where records are read and written.
        mode: what a launch may do on a miss.
        parent: the process that replaces this one if a config ends it, as in a sweep; else None.
        compares_code: whether a recorded winner's code is compared before a launch runs it.
    """

    store: TieredStore
    mode: Mode
    parent: ParentConnection | None = None
    compares_code: bool = False
    _records: KnownRecords = field(init=False)
    _missed: dict[tuple[Context, Scenario], Missed] = field(default_factory=dict, init=False)
    _missing: ForkLock = field(default_factory=ForkLock, init=False)
    _process: int = field(default_factory=os.getpid, init=False)

    def __post_init__(self) -> None:
        """Read nothing yet."""
        self._records = KnownRecords(self.store)

    @one_look()
    def resolve(self, request: Request, *, wait: float) -> tuple[Resolution, int]:
        """Return the resolution that a launch runs, and how many configs were benchmarked for it.

        The first of these that applies decides:

        1. Pruning leaves one config, which runs without a benchmark.
        2. Triton generates other code than is recorded: nothing is resolved, see `Raises`.
        3. The launch has no work: it runs what is recorded, or else the default.
        4. The record leaves nothing to do for a process that may tune: its config runs.
        5. Nothing may be tuned: it runs what is recorded and may run uncompared in this mode. A
           miss is an error in strict mode, and else put on the worklist, and a fallback runs.
        6. This process tunes; while another one does, a fallback runs.

        Args:
            request: the scenario.
            wait: seconds to wait for another process that tunes the same scenario.

        Raises:
            ScenarioNotTuned: in strict mode, on a miss.
            NoValidConfigError: every config failed.
            OtherCodeError: the record is of other code than Triton generates for the launch.
        """
        if request.has_no_choice:
            return replace(request.resolution("default", request.default), has_no_choice=True), 0
        found = self._look_up(request)
        if found and self.compares_code and _may_compile():
            _refuse_other_code(request, found.record)
        usable = self._usable_request(request, found)
        if usable.has_empty_grid:
            runs = self._trusted_choice(usable, found)
            return replace(runs or usable.resolution("default", usable.default), is_idle=True), 0
        if found:
            usable.note_timings(found.record)
        if self.mode is Mode.TUNE:
            findings = self._records.findings(usable.context, usable.scenario)
            settled = rules.settled_choice(usable, found, findings)
            if settled is not None:
                return settled, 0
        if not (self.mode is Mode.TUNE and may_benchmark() and not is_capturing_graph()):
            return self._trusted_choice(usable, found) or self._resolve_miss(usable, found), 0
        tuned, benchmarked = tune(usable, self._records, wait, self.parent)
        if tuned is None:
            # The process that was tuning may have died while this one waited.
            tuned, _ = self._fall_back(self._usable_request(usable, found), found)
        return tuned, benchmarked

    def _resolve_miss(self, request: Request, found: Found | None) -> Resolution:
        """Return what a launch without a finished record runs where it must not tune.

        Raises:
            ScenarioNotTuned: in strict mode.
        """
        if self.mode is not Mode.STRICT:
            fallback, near = self._fall_back(request, found)
            self.note_miss(request, fallback, near)
            return fallback
        # A server that was busy at the first look is waited for.
        waited = self._look_up(request, fresh=True)
        recorded = self._trusted_choice(request, waited)
        if recorded is None:
            self.note_miss(request)
            raise ScenarioNotTuned(self._explain_miss(request, waited))
        return recorded

    def _trusted_choice(self, request: Request, found: Found | None) -> Resolution | None:
        return rules.trusted_choice(request, found, uncompared=self.mode is not Mode.TUNE)

    def _fall_back(
        self, request: Request, found: Found | None
    ) -> tuple[Resolution, list[Neighbour]]:
        """Return what runs without a winner, and the neighbours that were read for it."""
        uncompared, default = self.mode is not Mode.TUNE, describe(request.default)
        measured = found.record.measurements if found else ()
        failed = {e.config for e in measured if e.failure and not e.skipped} - {default}
        near = self._records.near_a_launch(request)
        fallback = fall_back(request.without(failed), near, uncompared=uncompared)
        fastest = rules.recorded_choice(request, found)
        if fastest is None or _is_unfinished(request, found):
            return fallback, near
        config = describe(fastest.config)
        reasons = [f"({config}): {reason}" for reason in fastest.not_compared]
        return replace(fallback, not_compared=reasons), near

    @one_look()
    def explain(self, request: Request) -> Resolution:
        """Return what a launch would run now, without benchmarking or noting a miss."""
        if request.has_no_choice:
            return self.resolve(request, wait=0.0)[0]
        found = self._look_up(request)
        usable = self._usable_request(request, found)
        return self._trusted_choice(usable, found) or self._fall_back(usable, found)[0]

    @one_look()
    def add_notes(self, request: Request, resolution: Resolution) -> Resolution:
        """Return a resolution with what the records say of its config and of the others."""
        if resolution.has_no_choice:
            return resolution
        own = source = self._look_up(request)
        if resolution.recorded_in or resolution.recorded_for:
            context = resolution.recorded_in or request.context
            source = self.store.get(context, resolution.recorded_for or request.scenario)
        notes, config = [], describe(resolution.config)
        if source and config in source.record.by_config and resolution.how != "default":
            default = describe(request.default)
            notes += evidence_lines(source.record, config, request.declared, default)
        if _is_unfinished(request, own):
            notes.append("no winner: configs were timed, and their results not compared")
        if missing := rules.unmeasured_configs(request, own.record if own else None):
            note = f"unmeasured configs: {len(missing)}"
            if own and own.record.omits(request.declared.digest, request.budget.loss):
                note += ", of which none is expected to be clearly faster"
            notes.append(note)
        for entry in own.record.measurements if own else ():
            if entry.is_wrong and entry.failure and entry.config in request.declared:
                notes.append(f"wrong results: ({entry.config}): {entry.failure.reason}")
        if not (resolution.final or resolution.differences):
            if near := find_nearest(request, self._records):
                notes.append(f"the nearest record is at distance {near[0]:g}")
            for difference in nearest_differences(request, self._records):
                notes.append(f"differs from the nearest record in {difference}")
        return replace(resolution, notes=notes)

    def reject(self, request: Request, config: Config, reason: str) -> bool:
        """Leave a config that failed at a launch out of its scenario's later launches.

        Returns:
            Whether another config is left: False for the default, which is the last resort, and for
            a config that was chosen although it had failed before.
        """
        default = describe(request.default)
        rejected = self._records.findings(request.context, request.scenario).rejected
        if config == default or config in rejected or config not in request.declared:
            return False
        rejected.add(config)
        if len(rejected) >= MOST_REJECTIONS:
            rejected.update(other for other in request.declared if other != default)
        warn_once(
            f"rejected {request.name} {config}",
            f"{request.name}: the recorded config ({config}) cannot run here, and another one "
            f"does: {reason}",
        )
        return True

    def _usable_request(self, request: Request, found: Found | None) -> Request:
        """Leave out the configs that cannot run here, and those during which processes have died.

        A process that may die measures the latter. A pin of a config that is left out is ignored.
        """
        findings = self._records.findings(request.context, request.scenario)
        usable, record = request, found.record if found else None
        if findings.rejected:
            usable = usable.without(findings.rejected)
        if self.parent is None and (suspects := find_suspects(request.context, request.scenario)):
            usable = without_suspects(usable, record, suspects)
        pinned = record.pinned if record else None
        if pinned and pinned not in usable.declared:
            warn_once(
                f"pin {request.context.kernel.name} {pinned}",
                f"{request.name} is pinned to ({pinned}), which the kernel does not declare, or "
                "which is pruned from this launch or fails here: the pin is ignored; pin another "
                "config, or remove the pin by `dejavu-cache pin --remove`",
            )
        return usable

    @one_look()
    def usable_configs(self, request: Request) -> list[Any]:
        """Return the `triton.Config`s that a launch may run, without those known to fail there."""
        found = self._look_up(request)
        measured = found.record.by_config if found else {}
        failed = {config for config, entry in measured.items() if entry.failure}
        declared = self._usable_request(request, found).declared
        return [declared[config] for config in declared if config not in failed]

    def _look_up(self, request: Request, *, fresh: bool = False) -> Found | None:
        """Return the scenario's record, also one of equal code under another key of Triton's."""
        found = self._records.look_up(request.context, request.scenario, fresh=fresh)
        return found or _adopt_equal_code(request, self._records)

    def note_miss(
        self, request: Request, fallback: Resolution | None = None, near: Sequence[Neighbour] = ()
    ) -> None:
        """Count a launch that looked for a record and may run a fallback, and report new ones."""
        with self._missing:
            if self._process != os.getpid() or len(self._missed) >= MOST_CHOICES:
                self._missed, self._process = {}, os.getpid()
            if not self._missed:
                at_program_end(self)
            scenario = request.context, request.scenario
            missed = self._missed.setdefault(scenario, Missed())
            if (launches := next(missed.launches)) >= 2 * missed.reported:
                new, missed.reported = launches - missed.reported, launches
                if fallback and near and self.store.remote and missed.saving is None:
                    launch = UntunedLaunch.of(request, describe(fallback.config), near)
                    _reporter.add((self.store, launch, missed, new))
                else:
                    self.store.miss(*scenario, MissCount(new, missed.saving))

    @one_look()
    def note_look_up(self, request: Request, fallback: Resolution) -> None:
        """Count a look-up without a launch that found no record, like a launch."""
        self.note_miss(request, fallback, self._records.near_a_launch(request))

    def counter(self, request: Request, resolution: Resolution) -> Iterator[int]:
        """Return what counts the launches that run a resolution, until the next look-up."""
        take = self._missed.pop if resolution.final else self._missed.get
        missed = take((request.context, request.scenario), None)
        return missed.launches if missed else count(1)

    def finish(self, seconds: float) -> None:
        """Report the launches since the last reports."""
        with self._missing:
            for scenario, missed in [*self._missed.items()] if self._process == os.getpid() else ():
                if launches := next(missed.launches) - 1 - missed.reported:
                    self.store.miss(*scenario, MissCount(launches, missed.saving))

    def _explain_miss(self, request: Request, found: Found | None) -> str:
        place = f"for {request.context.environment.device.name} in {self._records.url}"
        if _is_unfinished(request, found):
            return (
                f"{request.name} has timings {place}, but no winner whose results were compared, "
                "and the mode is strict; finish its tune by a launch in mode tune or `dejavu-cache "
                "sweep`, or choose a config by `dejavu-cache pin`"
            )
        fields = "\n".join(f"  {field}" for field in nearest_differences(request, self._records))
        differing = f"the nearest record differs in\n{fields}"
        nearest_record = differing if fields else "no record of this kernel exists"
        return (
            f"{request.name} is not tuned {place}, and the mode is strict; {nearest_record}\n"
            "Tune it by a launch in mode tune or `dejavu-cache sweep`, or launch in mode reuse "
            "(DEJAVU_CACHE_MODE)"
        )


def _is_unfinished(request: Request, found: Found | None) -> bool:
    """Return whether a record has timings alone, while results are to be compared."""
    return found is not None and request.check is not None and found.record.is_unfinished


def _adopt_equal_code(request: Request, records: KnownRecords) -> Found | None:
    """Return the scenario's record of equal code under another key, and keep it under this one.

    Triton's key of a kernel changes with each edit. The winner's code is generated from the kernel
    of today, for a launch that was recorded with it.
    """
    if request.not_stored or is_interpreting():
        return None
    for found, is_same_scenario in _records_of_other_keys(request, records):
        if not _has_equal_code(request, found.record, is_same_scenario=is_same_scenario):
            continue
        adopted = found.record.as_adopted(now()).model_copy(update={"scenario": request.scenario})
        if not found.is_from_stranger:
            records.put(request.context, adopted)
        logger.info("%s: recorded of equal code before an edit", request.name)
        return found._replace(record=adopted)
    return None


def _records_of_other_keys(request: Request, records: KnownRecords) -> Iterator[tuple[Found, bool]]:
    """Yield records that differ in nothing but keys, and whether they are of the same scenario."""
    own, wanted = request.context, request.scenario.without_keys
    for context in (own, *records.other_contexts(own)):
        if context != own:
            is_alike = is_decorated_alike(context.kernel.source, own.kernel.source)
            if not (is_alike and context.model_copy(update={"kernel": own.kernel}) == own):
                continue
            if found := records.tiers.get(context, request.scenario):
                yield found, True
        if wanted == request.scenario:
            continue
        for scenario in recorded_scenarios(records.tiers, context):
            is_other = scenario != request.scenario and scenario.without_keys == wanted
            if is_other and (found := records.tiers.get(context, scenario)):
                yield found, False


def _has_equal_code(request: Request, record: Record, *, is_same_scenario: bool) -> bool:
    if not has_equal_code(request.autotuner.fn, record, request.declared):
        return False
    if record.winner is None or not _may_compile():
        return is_same_scenario
    # What heuristics compute is no part of what was recorded to be generated again.
    config = record.winner.config
    return _other_code(request, record, config, is_same_scenario=is_same_scenario) is None


def _refuse_other_code(request: Request, record: Record) -> None:
    """Compare the code of a recorded winner, which this launch is about to run, with the record's.

    Raises:
        OtherCodeError: it is other code, by what no key sees: a patched method of Triton's
            language, a function that reads a file, another value of a module's attribute.
    """
    winner = record.winner
    if winner is None or winner.config not in request.declared:
        return
    code = _other_code(request, record, winner.config)
    if code is not None:
        raise OtherCodeError(code)


def _other_code(
    request: Request, record: Record, config: Config, *, is_same_scenario: bool = True
) -> str | None:
    """Return what Triton generates for a launch, if that is not what was recorded, or None."""
    return find_other_code(
        request.autotuner,
        record.launches or (),
        request.declared[config],
        request.args,
        request.kwargs,
        is_same_scenario=is_same_scenario,
    )


def _may_compile() -> bool:
    """Return whether the launch may compile before it runs: not while a request waits for it."""
    return not is_interpreting() and may_benchmark() and not is_capturing_graph()
