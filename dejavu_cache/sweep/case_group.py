"""Measure cases in a worker: one alone as a launch would, or several of one scenario together.

Of several, what is good in all of them wins. They are taken one by one, since the arguments of one
may fill the device. A config that is far behind after some cases, as `selection.BEHIND` says, is
left out of the next. If the leader turns out to be slower than it seemed, configs that were left
out are measured after all.
"""

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from ..errors import NoValidConfigError, SettingsError
from ..model.merge import merge_records
from ..model.record import (
    Failure,
    Measurement,
    Record,
    RecordedLaunch,
    Results,
    Winner,
    join_results,
)
from ..model.scenario import Config, Context, Scenario, moment_after, now
from ..model.selection import SHORTEST_TIMING, CaseScores, winner
from ..runtime.autotuner import CachedAutotuner
from ..runtime.known_records import KnownRecords
from ..runtime.launch_recorder import pause_recording
from ..runtime.request import Request, Resolution
from ..runtime.resolver import Resolver
from ..runtime.rules import budgeted_count, may_launch_default, trusted_configs
from ..runtime.tune import predicted_search
from ..settings import Mode
from ..stores import Store, TieredStore
from ..system.workers import ParentConnection
from ..triton_internals.compilation import keys_in_memory, release_later
from ..triton_internals.config_names import describe
from ..triton_internals.generated_code import tuned_launches
from ..triton_internals.identity import find_jit_function
from ..tuning.compile_ahead import failed_measurement
from ..tuning.measurement_marks import MeasurementMark
from ..tuning.search import PredictedSearch
from ..tuning.tuner import Tuner
from .hosts import CaseJob
from .journal import Journal
from .suite import Case


def make_request(case: Case, loss: float = 0.0) -> Request:
    """Return the request that a launch of a case would make, but for what its tune may leave out.

    `triton.heuristics` around the autotuner add their arguments, as they would in a launch. What is
    left out may be faster by a share of `loss`; 0 measures all.

    Raises:
        SettingsError: the case's kernel is not decorated with `cached_autotune`.
        Exception: any error of the case's arguments.
    """
    arguments = dict(case.arguments())
    kernel = case.kernel
    while not isinstance(kernel, CachedAutotuner):
        for name, heuristic in getattr(kernel, "values", {}).items():
            arguments[name] = heuristic(dict(arguments))
        kernel = getattr(kernel, "fn", None)
        if kernel is None:
            raise SettingsError(
                f"case {case.name}: its kernel is not decorated with @cached_autotune"
            )
    positional = []
    for name in kernel.arg_names:  # by position where possible, as pruning functions expect
        if name not in arguments:
            break
        positional.append(arguments.pop(name))
    request = kernel.request(*positional, grid=case.grid, warmup=False, **arguments)
    return replace(request, budget=replace(request.budget, loss=loss))


def current_record(store: Store, context: Context, scenario: Scenario) -> Record:
    """Return the record of a scenario, which may be empty."""
    stored = store.get(context, scenario, fresh=True)
    return stored.record if stored else Record(scenario=scenario)


class CaseTuner:
    """Tunes cases as a job asks for it, and tells the parent of each config before it is measured.

    Attributes:
        deadline: when the job's time is over, in seconds of `time.monotonic`.
        wait: seconds to wait for another process that tunes the scenario.
    """

    def __init__(self, job: CaseJob, parent: ParentConnection, store: Store) -> None:
        """Begin the job's time."""
        self._job = job
        self._parent = parent
        self._store = store
        seconds = math.inf if job.until is None else max(job.until - time.time(), 0.001)
        self.deadline = time.monotonic() + seconds
        self.wait = min(job.wait, seconds)

    @property
    def is_over(self) -> bool:
        """Return whether the job's time is used up."""
        return time.monotonic() > self.deadline

    @property
    def crashes(self) -> list[Measurement]:
        """The configs that took down workers, as measurements to record."""
        return [
            failed_measurement(config, Failure(kind="crash", reason=reason))
            for config, reason in self._job.crashes
        ]

    def tune(self, request: Request) -> tuple[Resolution, int]:
        """Tune a request of a case that is alone in its scenario.

        Returns:
            The resolution, and the number of configs that were measured.

        Raises:
            NoValidConfigError: every config failed.
        """
        if self.crashes:
            crashed = Record(scenario=request.scenario, measurements=tuple(self.crashes))
            self._store.put(request.context, [crashed])
        if math.isfinite(self.deadline):
            seconds = max(self.deadline - time.monotonic(), 0.001)
            request = replace(request, budget=replace(request.budget, seconds=seconds))
        resolver = Resolver(TieredStore([self._store]), Mode.TUNE, parent=self._parent)
        return resolver.resolve(request, wait=self.wait)

    def mark(self, request: Request) -> MeasurementMark:
        """Return what tells the parent which of a request's configs is about to touch the device.

        The parent replaces this process if a config ends it.
        """
        return MeasurementMark(request.context, request.scenario, self._parent)


class CaseGroup:
    """Cases of one scenario.

    Args:
        cases: the cases, in the order in which they are measured; two at least.
        store: the store of the record.
        loss: the share by which a config may be faster that is not measured in the first case.

    Raises:
        SettingsError: the cases' names cannot be recorded.
        Exception: any error of the first case's arguments.
    """

    def __init__(self, cases: Sequence[Case], store: Journal, loss: float = 0.0) -> None:
        """Make the arguments of the first case, which determine the scenario."""
        self._cases = cases
        self._names = [case.name for case in cases]
        _check_names(self._names)
        self._store = store
        self._loss = loss
        self._first: Request | None = (request := make_request(cases[0], loss))
        self._left_out: dict[str, float] = {}
        self._tried: set[tuple[str, Config]] = set()
        # What one request says of all cases is kept, but not the request, which holds arguments.
        self.context, self.scenario = request.context, request.scenario
        self._group = GroupRecord(store, self.context, self.scenario)
        self._default = describe(request.default)
        self._declared = list(request.declared)
        self._digest = request.declared.digest
        self._compares = request.check is not None
        configs = map(describe, request.autotuner.configs) if request.prunes else ()
        self._selectable = {*self._declared, *configs}

    @property
    def _has_undecided(self) -> bool:
        """Whether configs are left to measure, as far as that is clear now."""
        return any(self._undecided_configs(name, self._declared) for name in self._names)

    @property
    def _is_known(self) -> bool:
        """Whether a winner is pinned, or recorded and compared, and no config is left."""
        record = self._group.record
        if record.pinned is not None and record.pinned in self._selectable:
            return True
        if record.winner is None or self._has_undecided:
            return False
        trusted = trusted_configs(record, self._default, uncompared=not self._compares)
        return record.winner.config in trusted

    def measure(self, tuner: CaseTuner) -> dict[str, Any]:
        """Measure the cases, record the winner, and return the outcome.

        Raises:
            NoValidConfigError: every config failed in some case.
            UncomparedResultsError: in some case nothing shows whether results are right.
        """
        with self._store.lease(self.context, self.scenario, wait=tuner.wait) as is_leased:
            self._group = GroupRecord(self._store, self.context, self.scenario)
            if self._is_known:
                return {"status": "known"}
            if not is_leased:
                return {"status": "busy"}
            if tuner.crashes:
                crashes = (self._group.with_case("", crash) for crash in tuner.crashes)
                self._group.put_measurements(crashes)
            measured = self._search(tuner)
            while (best := self._best()) is not None and not self._confirm(best, tuner):
                measured += self._search(tuner)
            if best is None and not tuner.is_over:
                failures = {
                    str(entry.config): f"{entry.failure.kind}: {entry.failure.reason}"
                    for entry in self._group.record.measurements
                    if entry.failure is not None
                }
                raise NoValidConfigError(self.context.kernel.name, str(self.scenario), failures)
        is_partial = tuner.is_over and (best is None or self._has_undecided)
        status = "partial" if is_partial else "tuned" if measured else "known"
        return {"status": status, "measured": measured}

    def _undecided_configs(self, case: str, declared: Sequence[Config]) -> list[Config]:
        undecided = self._group.undecided_configs(declared, self._default, self._names, case)
        record = self._group.record
        leaves_out = self._left_out or record.omits(self._digest, self._loss)
        timed = record.times_by_case if leaves_out else undecided
        return [config for config in undecided if config in timed]

    def _untimed_configs(self, case: str) -> list[Config]:
        """Return the configs that a case has to time and that were not tried in it."""
        undecided = self._undecided_configs(case, self._declared)
        return [config for config in undecided if (case, config) not in self._tried]

    def _search(self, tuner: CaseTuner) -> int:
        """Time case after case until no config may still win; return how many were measured."""
        measured, is_over = 0, False
        while not is_over and any(map(self._untimed_configs, self._names)):
            for case in self._cases:
                is_over = tuner.is_over and bool(measured)
                if self._untimed_configs(case.name) and not is_over:
                    measured += self._time(case, tuner)
        self._group.write_scores()
        return measured

    def _time(self, case: Case, tuner: CaseTuner) -> int:
        """Time the configs of one case that may still win."""
        request, name, record = self._request(case), case.name, self._group.record
        undecided = self._undecided_configs(name, list(request.declared))
        undecided.sort(key=lambda config: config != self._default)
        search = None
        if case is self._cases[0]:
            limit = budgeted_count(request, len(undecided))
            if record.times_by_case.keys().isdisjoint(undecided):
                records = KnownRecords(TieredStore([self._store]))
                search = predicted_search(request, record, records, undecided, limit)
            undecided = undecided[:limit]
        self._tried.update((name, config) for config in self._untimed_configs(name))
        earlier = [
            record.by_config[config].model_copy(update={**_alone(times[name]), "cases": None})
            for config, times in record.times_by_case.items()
            if name in times
        ]
        measured = self._measure_configs(name, request, undecided, search, earlier, tuner)
        if search is not None and search.is_settled:
            self._left_out = {self._digest: self._loss}
        return measured

    def _measure_configs(
        self,
        case: str,
        request: Request,
        configs: Sequence[Config],
        search: PredictedSearch | None,
        earlier: Sequence[Measurement],
        tuner: CaseTuner,
    ) -> int:
        """Measure configs in a case, and return how many were measured; `earlier` ones race too.

        A search proposes others in their place.
        """
        function = find_jit_function(request.autotuner)
        in_memory = {} if function is None else keys_in_memory(function)
        with closing(tuner.mark(request)) as mark, pause_recording(request.autotuner):
            trial = Tuner(
                request.candidate_launch(),
                mark,
                until=tuner.deadline,
                loss=self._loss,
                earlier=earlier,
            )
            try:
                for measurements in trial.tune(configs, search):
                    joined = (self._group.with_case(case, one) for one in measurements)
                    self._group.put_measurements(joined)
            finally:
                if mark.crash is not None:
                    self._group.put_measurements([self._group.with_case(case, mark.crash)])
        if function is not None:
            release_later(function, in_memory, None)
        return len(trial.tried)

    def _request(self, case: Case) -> Request:
        """Make a case's arguments; those of the first case are there already at first.

        Raises:
            SettingsError: the case has another scenario than before.
        """
        request, self._first = self._first, None
        if request is None or case is not self._cases[0]:
            request = make_request(case, self._loss)
        if (request.context, request.scenario) != (self.context, self.scenario):
            raise SettingsError(
                f"case {case.name}: its scenario changes from call to call: seed what is drawn"
            )
        return request

    def _best(self) -> Config | None:
        return winner(self._group.record, self._selectable, self._default, here=True)

    def _confirm(self, best: Config, tuner: CaseTuner) -> bool:
        """Record a config as the winner if its results are right; else record its failure.

        They are compared in the first and the last case that has timed it.

        Returns:
            Whether it has won.
        """
        times = self._group.record.by_config[best].cases or {}
        timed = [case for case in self._cases if case.name in times] or self._cases
        joined: Results = {}
        launches: Sequence[RecordedLaunch] | None = None
        for case in (timed[0], *timed[1:][-1:]):
            request = self._request(case)
            results, wrong = self._compare(request, best, tuner)
            if wrong is not None:
                self._group.put_measurements([self._group.with_case(case.name, wrong)])
                return False
            joined = join_results(joined, results)
            launches = launches or tuned_launches(
                request.autotuner, request.declared[best], request.args, request.kwargs
            )
        self._group.write_winner(best, joined, launches, self._left_out)
        return True

    def _compare(
        self, request: Request, best: Config, tuner: CaseTuner
    ) -> tuple[Results, Measurement | None]:
        options = request.check if may_launch_default(request, self._group.record) else None
        with (
            closing(tuner.mark(request)) as mark,
            closing(request.result_check(options, mark)) as check,
        ):
            try:
                return check.compare(request.declared[best])
            finally:
                if mark.crash is not None:
                    self._group.put_measurements([mark.crash])


def _check_names(names: Sequence[str]) -> None:
    """Raise if a record cannot hold timings by these names, since it could not be read again."""
    try:
        Measurement(config=Config(), median=1.0, at=now(), cases=dict.fromkeys(names, 1.0))
    except ValidationError:
        raise SettingsError(
            f"{names[0][:80]!r} and {len(names) - 1} more cases have one scenario: a record holds "
            "at most 256 cases, with names of 1 to 500 printable characters"
        ) from None


class GroupRecord:
    """The record, as far as it is measured, of a scenario with several cases."""

    def __init__(self, store: Store, context: Context, scenario: Scenario) -> None:
        """Read the record; the caller holds the scenario's lease."""
        self.store = store
        self.context = context
        self.record = current_record(store, context, scenario)

    @property
    def scores(self) -> CaseScores[Config]:
        """Scores of the configs that were timed in some case."""
        return CaseScores(self.record.times_by_case)

    def undecided_configs(
        self, declared: Collection[Config], default: Config, cases: Sequence[str], case: str
    ) -> list[Config]:
        """Return the configs that a case has to time, of those that may run in it.

        They are those without any timing, if it is the first case, and those that may still win and
        were not timed in it. The default is timed in all cases.
        """
        scores, times = self.scores, self.record.times_by_case
        settled = {  # timed in the case, or failed in any
            entry.config
            for entry in self.record.measurements
            if not entry.skipped and (entry.failure is not None or case in (entry.cases or ()))
        }
        return [
            config
            for config in declared
            if config not in settled
            and (
                (config == default or scores.may_win(config, len(cases)))
                if config in times
                else case == cases[0]
            )
        ]

    def put(self, addition: Record) -> None:
        """Write an addition to the record."""
        self.record = merge_records(self.record, addition)
        self.store.put(self.context, [addition])

    def put_measurements(self, measurements: Iterable[Measurement]) -> None:
        """Write measurements, which replace earlier ones of their configs."""
        scenario = self.record.scenario
        self.put(Record(scenario=scenario, measurements=tuple(measurements)))

    def with_case(self, case: str, measurement: Measurement) -> Measurement:
        """Return a case's measurement as one of the record: with those of the other cases."""
        before = self.record.by_config.get(measurement.config)
        cases = dict(before.cases or {}) if before and before.failure is None else {}
        if before is None or not cases:
            before = measurement
        if measurement.median is None:
            return measurement.model_copy(update={"cases": cases or None})
        cases[case] = measurement.median
        logs = [math.log(max(time, SHORTEST_TIMING)) for time in cases.values()]
        mean = math.exp(math.fsum(logs) / len(logs))
        seconds = measurement.seconds + (0.0 if before is measurement else before.seconds)
        update = {**_alone(mean), "cases": cases, "seconds": seconds, "confidence": None}
        return measurement.model_copy(update=update)

    def write_scores(self) -> None:
        """Write the score of each config as its median, in which the configs are comparable."""
        scores = self.scores
        rescaled = []
        for config, measurement in self.record.by_config.items():
            if config in scores and measurement.median is not None:
                median = scores.equivalent(config)
                if median != measurement.median:
                    update = {**_alone(median), "at": now()}
                    rescaled.append(measurement.model_copy(update=update))
        if rescaled:
            self.put_measurements(rescaled)

    def write_winner(
        self,
        config: Config,
        results: Results,
        launches: Sequence[RecordedLaunch] | None,
        left_out: Mapping[str, float],
    ) -> None:
        """Write the config that was selected over all cases, and the verdicts on its results."""
        recorded = self.record.winner
        at = moment_after(recorded.at if recorded else None)
        omissions = self.record.omissions_with(left_out)
        winner = Winner(config=config, at=at, results=dict(results) or None, omissions=omissions)
        launched = None if launches is None else tuple(launches)
        scenario = self.record.scenario
        self.put(Record(scenario=scenario, winner=winner, launches=launched))


def _alone(median: float) -> Mapping[str, float | None]:
    """Return a median without quantiles: those of one case are not those of another, or of all."""
    return {"median": median, "p20": None, "p80": None}
