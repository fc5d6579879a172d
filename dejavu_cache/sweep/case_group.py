"""Measure the configs of a scenario over several cases, and select what is good in all of them.

The cases are taken one by one, since the arguments of one may fill the device. A config that is far
behind after some cases, as `selection.BEHIND` says, is left out of the next. If the leader turns
out to be slower than it seemed, configs that were left out are measured after all.

A tune of one case reads and writes plain timings; in the record they are that case's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from ..errors import NoValidConfigError, SettingsError
from ..model.merge import merge_records
from ..model.record import Measurement, Record, Results, Winner, join_results
from ..model.scenario import Config, Context, Scenario, moment_after, now
from ..model.selection import SHORTEST_TIMING, CaseScores, winner
from ..runtime.request import Request
from ..runtime.rules import may_launch_default, trusted_configs
from ..stores import Found, Store
from ..system.notices import whoami
from ..triton_internals.config_names import describe
from ..tuning.measurement_marks import MeasurementMark
from ..tuning.result_check import (
    SWITCHED_OFF_BY_AUTHOR,
    recording_crash,
    refuse_uncompared,
)
from .case_tuner import CaseTuner, make_request
from .journal import Journal
from .suite import Case

__all__ = ["CaseGroup", "CaseStore", "GroupRecord"]


class CaseGroup:
    """Cases of one scenario.

    Args:
        cases: the cases, in the order in which they are measured; two at least.
        store: the store of the record.

    Raises:
        SettingsError: the cases' names cannot be recorded.
        Exception: any error of the first case's arguments.
    """

    def __init__(self, cases: Sequence[Case], store: Journal) -> None:
        """Make the arguments of the first case, which determine the scenario."""
        self._cases = cases
        self._names = [case.name for case in cases]
        _check_names(self._names)
        self._store = store
        self._first: Request | None = make_request(cases[0])
        self._describe(self._first)
        self._attempted: set[tuple[str, Config]] = set()
        self._tuned: set[str] = set()
        self._group = GroupRecord(store, self.context, self.scenario)

    def _describe(self, request: Request) -> None:
        """Keep what one request says of all cases, but not the request, which holds arguments."""
        self.context, self.scenario = request.context, request.scenario
        self._default = describe(request.default)
        self._declared = list(request.declared)
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

    def measure(self, tuner: CaseTuner, wait: float) -> dict[str, Any]:
        """Measure the cases, record the winner, and return the outcome.

        Args:
            tuner: tunes one case.
            wait: seconds to wait for another process that tunes the scenario.

        Raises:
            NoValidConfigError: every config failed in some case.
            UncomparedResultsError: in some case nothing shows whether results are right.
        """
        with self._store.lease(self.context, self.scenario, wait=wait) as is_leased:
            self._group = GroupRecord(self._store, self.context, self.scenario)
            if self._is_known:
                return {"status": "known"}
            if not is_leased:
                return {"status": "busy"}
            measured = self._search(tuner)
            while (best := self._best()) is not None:
                results, wrong = self._compare_in_cases(best, tuner)
                if wrong is None:
                    self._group.write_winner(best, results)
                    break
                self._group.put_measurements([wrong])
                measured += self._search(tuner)
            if best is None and not tuner.is_over:
                raise NoValidConfigError(
                    self.context.kernel.name, str(self.scenario), self._failures()
                )
        is_partial = tuner.is_over and (best is None or self._has_undecided)
        status = "partial" if is_partial else "tuned" if measured else "known"
        return {"status": status, "measured": measured}

    def _undecided_configs(self, case: str, declared: Sequence[Config]) -> list[Config]:
        return self._group.undecided_configs(declared, self._default, self._names, case)

    def _has_work(self, case: str) -> bool:
        """Return whether a case has configs to time, or was never tuned to the end."""
        undecided = self._undecided_configs(case, self._declared)
        if any((case, config) not in self._attempted for config in undecided):
            return True
        return self._group.record.winner is None and case not in self._tuned

    def _search(self, tuner: CaseTuner) -> int:
        """Tune case after case until no config may still win; return how many were measured."""
        measured = 0
        while not tuner.is_over and any(map(self._has_work, self._names)):
            for case in self._cases:
                if self._has_work(case.name) and not (tuner.is_over and measured):
                    measured += self._tune(case, tuner)
        self._group.write_scores()
        return measured

    def _tune(self, case: Case, tuner: CaseTuner) -> int:
        request = self._request(case)
        undecided = self._undecided_configs(case.name, list(request.declared))
        self._tuned.add(case.name)
        self._attempted.update((case.name, config) for config in undecided)
        if case is not self._cases[0]:  # A search of its own chose the configs in the first case.
            budget = replace(request.budget, strategy="exhaustive", configs=None)
            request = replace(request, budget=budget)
        settled = self._group.settled_configs(case.name)
        rest = [c for c in request.declared if c not in undecided and c not in settled]
        store = CaseStore(self._group, case.name)
        try:
            return tuner.tune(case.name, request.without(rest), store)[1]
        except NoValidConfigError:  # Configs that were left out before may run here.
            return 0

    def _request(self, case: Case) -> Request:
        """Make a case's arguments; those of the first case are there already at first.

        Raises:
            SettingsError: the case has another scenario than before.
        """
        first, self._first = self._first, None
        request = first if first is not None and case is self._cases[0] else make_request(case)
        if (request.context, request.scenario) != (self.context, self.scenario):
            raise SettingsError(
                f"case {case.name}: its scenario changes from call to call: seed what is drawn"
            )
        return request

    def _best(self) -> Config | None:
        return winner(self._group.record, self._selectable, self._default, trusted=whoami())

    def _compare_in_cases(
        self, best: Config, tuner: CaseTuner
    ) -> tuple[Results, Measurement | None]:
        """Compare a config's results in the first and last case; return its failure if wrong there.

        The winner of a case has been compared there already.
        """
        if not self._compares:
            return SWITCHED_OFF_BY_AUTHOR, None
        joined: Results = {}
        for case in (self._cases[0], self._cases[-1]):
            winner = self._group.winners.get(case.name)
            if winner is not None and winner.config == best and winner.results:
                joined = join_results(joined, winner.results)
                continue
            request = self._request(case)
            if best not in request.declared:
                continue
            results, wrong = self._compare(case.name, request, best, tuner)
            if wrong is not None:
                return results, wrong
            joined = join_results(joined, results)
        return joined, None

    def _compare(
        self, case: str, request: Request, best: Config, tuner: CaseTuner
    ) -> tuple[Results, Measurement | None]:
        options = request.check if may_launch_default(request, self._group.record) else None
        mark = MeasurementMark(self.context, self.scenario)
        check = request.result_check(options, mark.around)
        try:
            if options is not None:
                tuner.announce(self._default)
                check.prepare()
                tuner.announce(best)
            with recording_crash(best, lambda crash: self._group.put_measurements([crash])):
                results, wrong = check.compare(request.declared[best])
            if wrong is None:
                refuse_uncompared(results)
            return results, None if wrong is None else self._group.with_case(case, wrong)
        finally:
            check.close()
            mark.close()

    def _failures(self) -> dict[str, str]:
        return {
            str(measurement.config): f"{measurement.failure.kind}: {measurement.failure.reason}"
            for measurement in self._group.record.measurements
            if measurement.failure is not None
        }


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
    """The record of a scenario whose configs are measured over several cases.

    Attributes:
        record: the record as far as it is measured.
        winners: the winner of each case that was tuned, with what comparing its results there has
            shown.
    """

    def __init__(self, store: Store, context: Context, scenario: Scenario) -> None:
        """Read the record; the caller holds the scenario's lease."""
        self.store = store
        self.context = context
        stored = store.get(context, scenario, fresh=True)
        self.record = stored.record if stored else Record(scenario=scenario)
        self.winners: dict[str, Winner] = {}

    @property
    def scores(self) -> CaseScores[Config]:
        """Scores of the configs that were timed in some case."""
        return CaseScores(self.record.times_by_case)

    def undecided_configs(
        self, declared: Collection[Config], default: Config, cases: Sequence[str], case: str
    ) -> list[Config]:
        """Return the configs that a case has to time.

        They are those without any timing, if it is the first case, and those that may still win and
        were not timed in it. The default is timed in all cases.

        Args:
            declared: the configs that may run in the case.
            default: the config of last resort.
            cases: names of all cases, in order.
            case: the case in question.
        """
        scores, times = self.scores, self.record.times_by_case
        settled = self.settled_configs(case)
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

    def settled_configs(self, case: str) -> set[Config]:
        """Return the configs that a case has timed, and those that failed in any."""
        return {
            measurement.config
            for measurement in self.record.measurements
            if not measurement.skipped
            and (measurement.failure is not None or case in (measurement.cases or ()))
        }

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

    def write_winner(self, config: Config, results: Results) -> None:
        """Write the config that was selected over all cases, and the verdicts on its results."""
        recorded = self.record.winner
        at = moment_after(recorded.at if recorded else None)
        winner = Winner(config=config, at=at, results=dict(results) or None)
        self.put(Record(scenario=self.record.scenario, winner=winner))


class CaseStore(Store):
    """One case's part of a group's record, as a store of plain timings.

    It has no winner, so that a tune races the close configs. The lease is the group's.
    """

    def __init__(self, group: GroupRecord, case: str) -> None:
        """Set up the view of a group's record that one case has."""
        self.url = group.store.url
        self._group = group
        self._case = case

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return the record as the case alone would have it."""
        record = self._group.record
        measurements = tuple(
            measurement
            for measurement in map(self._of_case, record.measurements)
            if measurement is not None
        )
        update = {"measurements": measurements, "winner": None, "pin": None}
        return Found(record.model_copy(update=update), self.url)

    def _of_case(self, measurement: Measurement) -> Measurement | None:
        if measurement.failure is not None:
            return measurement.model_copy(update={"cases": None})
        median = (measurement.cases or {}).get(self._case)
        if median is None:
            return None
        return measurement.model_copy(update={**_alone(median), "cases": None})

    def put(self, context: Context, records: Iterable[Record]) -> None:
        """Write measurements and launches as the group's; remember the winner of the case."""
        for record in records:
            measurements = tuple(
                self._group.with_case(self._case, measurement)
                for measurement in record.measurements
            )
            if record.winner is not None:
                self._group.winners[self._case] = record.winner
            self._group.put(
                record.model_copy(update={"measurements": measurements, "winner": None})
            )

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        """Yield True, since the group holds the lease."""
        yield True

    def records(self, context: Context) -> Iterator[Record]:
        """Return nothing: no other scenario is part of the case."""
        return iter(())

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Return nothing: no other context is part of the case."""
        return iter(())

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Delete nothing: a tune only adds."""
        return 0


def _alone(median: float) -> Mapping[str, float | None]:
    """Return a median without quantiles: those of one case are not those of another, or of all."""
    return {"median": median, "p20": None, "p80": None}
