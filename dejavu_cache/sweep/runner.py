"""Run the cases of a suite on hosts until all are tuned."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import DejavuError, SettingsError
from ..system.worker_pool import Attempt, WorkerPool
from ..system.worker_process import OnEvent
from .hosts import CaseJob, CaseOutcome, ConfigCrash, HostLostError, SweepHost, Task

__all__ = ["Sweep", "SweepReport", "shard_of"]

LEASE_WAIT = 2.0
"""Seconds to wait in each further attempt for a case that another sweep measures."""

LIVES = 2
"""Number of workers that one config, or one case, may take down before it is given up."""

MACHINE_LIVES = 10
"""Number of times that a machine may be lost under one case before the case is given up."""


@dataclass
class SweepReport:
    """The result of a sweep.

    Attributes:
        total: number of the suite's cases, those of other shards included.
        outcomes: the outcomes by case, in the order in which they came.
        left: cases without an outcome.
        stopped: the reason why the sweep ended early; empty if it did not.
        kept: the journals, on any machine, with measurements that the store has not accepted.
        seconds: duration of the sweep.
        workers: number of workers at once.
    """

    total: int = 0
    outcomes: dict[str, CaseOutcome] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    stopped: str = ""
    kept: list[str] = field(default_factory=list)
    seconds: float = 0.0
    workers: int = 1

    def note(self, group: Sequence[str], outcome: CaseOutcome) -> None:
        """Set the outcome of each case of a group; the first case has the counts of all."""
        for case in group:
            update: dict[str, Any] = {"case": case}
            if case != group[0]:
                update.update(measured=0, due=0, seconds=0.0, estimate=None)
            self.outcomes.pop(case, None)
            self.outcomes[case] = outcome.model_copy(update=update)

    def of(self, *statuses: str) -> list[CaseOutcome]:
        """Return the outcomes with these statuses."""
        return [outcome for outcome in self.outcomes.values() if outcome.status in statuses]

    @property
    def measured(self) -> int:
        """Number of configs that were measured."""
        return sum(outcome.measured for outcome in self.outcomes.values())

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do or to hand over."""
        return not (
            self.left
            or self.stopped
            or self.kept
            or self.of("failed", "skipped", "partial", "busy")
        )


def shard_of(cases: Sequence[str], shard: str) -> list[str]:
    """Return one part of the cases; the parts are disjoint and together have all cases.

    Args:
        cases: names of the cases.
        shard: `i/n` for the i-th of n parts, counted from 1.

    Raises:
        SettingsError: the shard is not of this form.
    """
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", shard)
    number, parts = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= parts:
        raise SettingsError(f"--shard {shard!r}: write i/n with i from 1 to n, as in 2/8")
    return list(cases[number - 1 :: parts])


class Sweep:
    """Hands cases to hosts.

    A sweep has two phases. In the first one, the hosts tell the cases' scenarios. Cases of one
    scenario are a group, which goes to one host as one case in the second phase. That is the only
    one where there is nothing to group, and in verifications.

    A case whose host is lost is tried again. A config that takes down two workers, or whose worker
    reported the crash itself, is recorded as a crash and not tried again. A case that another sweep
    measures is tried again at the end.

    Args:
        hosts: the hosts; the sweep closes them.
        cases: names of the cases, in order.
        do: the task for each case.
        shard: `i/n` for the i-th of n parts of the groups; empty for all of them.
        budget: seconds for the whole sweep; None is without limit.
        on_event: receives the events `case`, `config`, `outcome` and `lost`, from any thread. If it
            raises, the sweep stops.
    """

    def __init__(
        self,
        hosts: Sequence[SweepHost],
        cases: Sequence[str],
        *,
        do: Task = "measure",
        shard: str = "",
        budget: float | None = None,
        on_event: OnEvent = lambda event: None,
    ) -> None:
        """Set up the run; the arguments are described at the class."""
        if shard:
            shard_of((), shard)
        self._hosts = hosts
        self._cases = cases
        self._do = do
        self._shard = shard
        self._on_event = on_event
        self._deadline = math.inf if budget is None else time.monotonic() + budget
        self._pools: list[WorkerPool[SweepHost, str]] = []
        """One for each phase that has begun."""
        self._identified: dict[str, CaseOutcome] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        """All cases of a scenario, by the first one, which stands for them in the second phase."""
        self._losses: Counter[tuple[str, str]] = Counter()
        self._crashes: dict[str, tuple[ConfigCrash, ...]] = {}
        """The configs of each case that are not to be tried again."""
        self._errors: list[Exception] = []
        self.report = SweepReport(total=len(cases), workers=len(hosts))

    def run(self) -> SweepReport:
        """Work until all cases are done, the budget is used up, or the user presses Ctrl-C.

        Raises:
            DejavuError: no host can run a job.
        """
        start = time.monotonic()
        try:
            if self._do == "verify" or not (len(self._cases) > 1 or self._shard):
                self._work(self._cases, self._attempt)
            elif self._work(self._cases, self._identify):
                self._work(self._form_groups(), self._attempt)
        except KeyboardInterrupt:
            self.report.stopped = "interrupted"
        finally:
            self._close_hosts()
        self._errors.extend(error for pool in self._pools for error in pool.errors)
        if self._errors and not self.report.outcomes:
            raise self._errors[0]
        self._complete_report(time.monotonic() - start)
        return self.report

    def _work(self, cases: Sequence[str], attempt: Callable[[SweepHost, str], Attempt]) -> bool:
        """Have the hosts work through cases; return whether the sweep may go on."""
        pool = WorkerPool(self._hosts, cases, attempt, self._deadline)
        self._pools.append(pool)
        pool.run()
        return pool.is_done and not self._errors

    def _close_hosts(self) -> None:
        for host in self._hosts:
            host.close()
        for pool in self._pools:
            pool.join(1.0)
        for host in self._hosts:  # a worker may have been started meanwhile
            host.close()

    def _complete_report(self, seconds: float) -> None:
        report = self.report
        if time.monotonic() > self._deadline and not all(pool.is_done for pool in self._pools):
            report.stopped = report.stopped or "the budget is used up"
        if self._errors:
            report.stopped = report.stopped or _describe(self._errors[0])
        report.left = [case for case in self._cases if case not in report.outcomes]
        report.kept = sorted({path for host in self._hosts for path in host.unsaved_journals()})
        report.seconds = seconds

    def _identify(self, host: SweepHost, case: str) -> Attempt:
        """Learn a case's scenario; a plan of a case alone needs no second task."""
        outcome = self._outcome(host, "plan" if self._do == "plan" else "identify", case)
        if outcome is None:
            return "again"
        self._identified[case] = outcome
        return "done"

    def _attempt(self, host: SweepHost, case: str) -> Attempt:
        """Do the sweep's task with a case, and note the outcome."""
        was_busy = case in self.report.outcomes
        outcome = self._outcome(host, self._do, case, wait=LEASE_WAIT if was_busy else 0.0)
        if outcome is None:
            return "again"
        if was_busy and outcome.status == "known":
            outcome = outcome.model_copy(update={"message": "measured by another sweep"})
        if outcome.status == "busy":
            self._note(case, outcome)
            return "later"
        self._note_and_tell(case, outcome)
        return "done"

    def _outcome(
        self, host: SweepHost, do: Task, case: str, wait: float = 0.0
    ) -> CaseOutcome | None:
        """Return a case's outcome, or None if the case must be tried again."""
        seconds_left = max(self._deadline - time.monotonic(), 0.001)
        try:
            job = CaseJob(
                do=do,
                case=case,
                group=self._groups.get(case, ()),
                wait=wait,
                seconds=None if math.isinf(seconds_left) else seconds_left,
                crashes=self._crashes.get(case, ()),
            )
            return host.run(job, self._emit)
        except HostLostError as error:
            if self._pools[-1].is_stopped:
                return None
            self._emit({"event": "lost", "case": case, "reason": error.reason})
            return self._outcome_of_loss(case, error, measures=do == "measure")
        except Exception as error:
            if do == "identify":
                # Its measurement will fail likewise, after those of the other cases.
                return CaseOutcome.model_construct(case=case, status="due")
            message = f"{type(error).__name__}: {error}"[:2000]
            return CaseOutcome(case=case, status="failed", message=message)

    def _outcome_of_loss(
        self, case: str, error: HostLostError, *, measures: bool
    ) -> CaseOutcome | None:
        """Return the outcome of a case that took down its worker, or None to try it again.

        A config that is to blame becomes one of the case's crashes: the case goes on without it.

        Args:
            case: the case.
            error: what happened to the worker.
            measures: whether the worker measured the case, so that a crash can be recorded.
        """
        culprit, lives = str(error.config), LIVES
        if error.blame == "machine":
            culprit, lives = "machine", MACHINE_LIVES
        self._losses[case, culprit] += 1
        if error.blame != "config" and self._losses[case, culprit] < lives:
            return None
        if error.blame == "machine":
            return CaseOutcome(case=case, status="failed", message=error.reason)
        if error.config is None or not measures:
            message = f"it took down its worker: {error.reason}"
            return CaseOutcome(case=case, status="failed", message=message)
        crash = ConfigCrash(config=error.config, reason=error.reason[:2000])
        self._crashes[case] = (*self._crashes.get(case, ()), crash)
        return None

    def _form_groups(self) -> list[str]:
        """Divide the identified cases into groups, and return those with work."""
        groups = {names[0]: names for names in self._cases_by_scenario()}
        if self._shard:
            groups = {name: groups[name] for name in shard_of(list(groups), self._shard)}
        chosen = {case for group in groups.values() for case in group}
        self._cases = [case for case in self._cases if case in chosen]
        self._groups = {name: group for name, group in groups.items() if len(group) > 1}
        waiting = []
        for name in groups:
            outcome = self._identified[name]
            if name in self._groups or (self._do == "measure" and outcome.status == "due"):
                waiting.append(name)
            else:
                self._note_and_tell(name, outcome)
        return waiting

    def _cases_by_scenario(self) -> list[tuple[str, ...]]:
        """Return the cases of each scenario; one whose scenario is not known stands alone."""
        names_by_key: dict[str, list[str]] = {}
        for case in self._cases:
            outcome = self._identified[case]
            has_scenario = bool(outcome.key) and outcome.status in ("due", "known")
            key = outcome.key if has_scenario else f"case {case}"
            names_by_key.setdefault(key, []).append(case)
        return list(map(tuple, names_by_key.values()))

    def _note(self, case: str, outcome: CaseOutcome) -> None:
        self.report.note(self._groups.get(case, (case,)), outcome)

    def _note_and_tell(self, case: str, outcome: CaseOutcome) -> None:
        self._note(case, outcome)
        for name in self._groups.get(case, (case,)):
            self._emit({"event": "outcome", "outcome": self.report.outcomes[name]})

    def _emit(self, event: Mapping[str, Any]) -> None:
        """Pass on an event; if the listener raises, let running cases finish but begin none."""
        try:
            self._on_event(event)
        except Exception as error:
            self._errors.append(error)
            self._pools[-1].stop()


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, DejavuError) else f"{type(error).__name__}: {error}"
