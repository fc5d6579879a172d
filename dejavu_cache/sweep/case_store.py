"""The record of a scenario of several cases, and each case's part of it as a store.

A tune of one case reads and writes plain timings; in the record they are that case's.

Tune one case of a sweep into a store.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ..model.merge import OnConflict, merge_records
from ..model.record import Failure, Measurement, Record, Results, Winner
from ..model.resolution import Resolution
from ..model.scenario import Config, Context, Scenario, moment_after, now
from ..model.selection import SHORTEST_TIMING, CaseScores
from ..runtime.request import Request
from ..runtime.resolver import Resolver
from ..runtime.rules import due_configs
from ..settings import Mode, current_settings
from ..stores import Found, Store, TieredStore
from ..system.worker_process import ParentConnection
from ..tuning.compile_ahead import failed_measurement
from .hosts import CaseJob

__all__ = [
    "CaseStore",
    "CaseTuner",
    "GroupRecord",
    "current_record",
]


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
        median = math.exp(math.fsum(logs) / len(logs))
        quantiles = _scaled_quantiles(median, [before, measurement])
        seconds = measurement.seconds + (0.0 if before is measurement else before.seconds)
        update = {**quantiles, "cases": cases, "seconds": seconds, "confidence": None}
        return measurement.model_copy(update=update)

    def write_scores(self) -> None:
        """Write the score of each config as its median, in which the configs are comparable."""
        scores = self.scores
        rescaled = []
        for config, measurement in self.record.by_config.items():
            if config in scores and measurement.median is not None:
                update = _scaled_quantiles(scores.equivalent(config), [measurement])
                if update["median"] != measurement.median:
                    rescaled.append(measurement.model_copy(update={**update, "at": now()}))
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
        update = _scaled_quantiles(median, [measurement])
        return measurement.model_copy(update={**update, "cases": None})

    def put(
        self, context: Context, records: Iterable[Record], on_conflict: OnConflict = "newest"
    ) -> None:
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


def _scaled_quantiles(
    median: float, measurements: Sequence[Measurement]
) -> Mapping[str, float | None]:
    """Return a median with quantiles whose spread is the widest of some measurements'."""
    low = [item.p20 / item.median for item in measurements if item.median and item.p20 is not None]
    high = [item.p80 / item.median for item in measurements if item.median and item.p80 is not None]
    return {
        "median": median,
        "p20": median * min(low) if low else None,
        "p80": median * max(high) if high else None,
    }


def current_record(request: Request, store: Store) -> Record:
    """Return the record of a request's scenario, which may be empty."""
    stored = store.get(request.context, request.scenario, fresh=True)
    return stored.record if stored else Record(scenario=request.scenario)


class CaseTuner:
    """Tunes requests as a job asks for it.

    Args:
        job: the job, with its limit of time and the configs that took down its workers.
        parent: receives the events `case` (a case's measurements begin) and `config` (a config is
            about to be measured).
    """

    def __init__(self, job: CaseJob, parent: ParentConnection) -> None:
        """Begin the job's time."""
        self._job = job
        self._parent = parent
        self._deadline = time.monotonic() + (math.inf if job.seconds is None else job.seconds)

    @property
    def is_over(self) -> bool:
        """Return whether the job's time is used up."""
        return time.monotonic() > self._deadline

    def tune(self, case: str, request: Request, store: Store) -> tuple[Resolution, int]:
        """Tune a case's request into a store.

        Returns:
            The resolution, and the number of configs that were measured.

        Raises:
            NoValidConfigError: every config failed.
        """
        self._record_crashes(request, store)
        record = current_record(request, store)
        # A config that has a timing and still took a process down did so in the final race of the
        # best configs, and would do so again.
        timed = {entry.config for entry in record.measurements if entry.median is not None}
        race = timed.isdisjoint(crash.config for crash in self._job.crashes)
        seconds = request.budget.seconds
        if self._job.seconds is not None:
            seconds = max(self._deadline - time.monotonic(), 0.001)
        request = replace(request, budget=replace(request.budget, seconds=seconds, race=race))
        self._parent.send("case", case=case, due=len(due_configs(request, record)))
        resolver = Resolver(
            TieredStore([store]),
            Mode.TUNE,
            0.0,
            current_settings(),
            before=self.announce,
            expendable=True,
        )
        return resolver.resolve(request, wait=self._job.wait)

    def announce(self, config: Config) -> None:
        """Tell the parent which config is about to touch the device."""
        self._parent.send("config", config=config.model_dump())

    def _record_crashes(self, request: Request, store: Store) -> None:
        due = set(due_configs(request, current_record(request, store)))
        failures = tuple(
            failed_measurement(crash.config, Failure(kind="crash", reason=crash.reason))
            for crash in self._job.crashes
            if crash.config in due
        )
        if failures:
            store.put(request.context, [Record(scenario=request.scenario, measurements=failures)])
