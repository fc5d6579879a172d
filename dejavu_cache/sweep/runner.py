"""Run the cases of a suite on hosts until all are tuned."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from ..errors import DejavuError
from ..model.scenario import Config
from ..system.worker_pool import WorkerPool
from ..system.worker_process import OnEvent
from .hosts import CaseJob, CaseLoss, CaseOutcome, SweepHost, Task

__all__ = ["Goal", "Sweep", "SweepReport"]

Goal = Literal["measure", "plan", "verify"]
"""What a sweep does with its cases: tune them, only tell which ones are due, or measure winners
again and tune anew what no longer holds."""

LEASE_WAIT = 300.0
"""Seconds to wait, in the end, for a case that another sweep measures."""

LIVES = 2
"""Number of workers that one config, or one case, may take down before it is given up."""


@dataclass
class SweepReport:
    """The result of a sweep.

    Attributes:
        outcomes: the outcomes by case, in the order in which they came.
        lost: what no longer held of the winners of cases that were verified.
        left: cases without an outcome.
        stopped: the reason why the sweep ended early; empty if it did not.
        kept: the journals, on any machine, with measurements that the store has not accepted.
        seconds: duration of the sweep.
    """

    outcomes: dict[str, CaseOutcome] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    stopped: str = ""
    kept: list[str] = field(default_factory=list)
    seconds: float = 0.0

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
        unfinished = self.of("failed", "skipped", "partial", "busy")
        return not (self.left or self.stopped or self.kept or unfinished)


class Sweep:
    """Hands cases to hosts.

    First, the hosts tell the cases' scenarios. Cases of one scenario are a group, which goes to one
    host as one case from then on; its first case stands for it.

    A case whose host is lost is tried again. A config that takes down two workers, or whose worker
    reported the crash itself, is recorded as a crash and not tried again. A case that another sweep
    measures is waited for at the end.

    Args:
        hosts: the hosts; the sweep closes them.
        cases: names of the cases, in order.
        do: what the sweep does with them.
        sample: number of winners to verify.
        budget: seconds for the whole sweep; None is without limit.
        on_event: receives the events `case`, `config`, `outcome` and `lost`, from any thread. If it
            raises, the sweep stops.
    """

    def __init__(
        self,
        hosts: Sequence[SweepHost],
        cases: Sequence[str],
        *,
        do: Goal = "measure",
        sample: int = 0,
        budget: float | None = None,
        on_event: OnEvent = lambda event: None,
    ) -> None:
        """Set up the run; the arguments are described at the class."""
        self._hosts = hosts
        self._cases = cases
        self._do = do
        self._sample = sample
        self._on_event = on_event
        self._deadline = math.inf if budget is None else time.monotonic() + budget
        self._pools: list[WorkerPool[SweepHost, str]] = []
        """One for each phase that has begun."""
        self._identified: dict[str, CaseOutcome] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        """All cases of a scenario, by the first one."""
        self._losses: Counter[tuple[str, str]] = Counter()
        self._crashes: dict[str, dict[Config, str]] = {}
        """The configs of each case that ended workers, and how."""
        self._errors: list[Exception] = []
        self.report = SweepReport()

    def run(self) -> SweepReport:
        """Work until all cases are done, the budget is used up, or the user presses Ctrl-C.

        Raises:
            DejavuError: no host can run a job.
        """
        start = time.monotonic()
        try:
            if self._work(self._cases, "identify"):
                self._work_on_groups()
        except KeyboardInterrupt:
            self.report.stopped = "interrupted"
        finally:
            self._close_hosts()
        self._errors.extend(error for pool in self._pools for error in pool.errors)
        if self._errors and not self.report.outcomes:
            raise self._errors[0]
        self._complete_report(time.monotonic() - start)
        return self.report

    def _work(self, cases: Sequence[str], do: Task, wait: float = 0.0) -> bool:
        """Have the hosts work through cases; return whether the sweep may go on."""
        attempt = partial(self._attempt, do=do, wait=wait)
        pool = WorkerPool(self._hosts, cases, attempt, self._deadline)
        self._pools.append(pool)
        pool.run()
        return pool.is_done and not self._errors

    def _work_on_groups(self) -> None:
        """Do what the sweep is for with the groups that have work, and note the others."""
        due = self._form_groups()
        if self._do == "plan":
            return
        if self._do == "verify":
            known = [outcome.case for outcome in self.report.of("known")]
            known = [case for case in known if case in self._groups]
            self._cases = random.sample(known, min(self._sample, len(known)))
            self.report.outcomes = {}
            if not self._work(self._cases, "verify"):
                return
            self.report.lost = {lost.case: lost.message for lost in self.report.of("lost")}
            due = [name for name in self._cases if name in self.report.lost]
        if self._work(due, "measure"):
            busy = [name for name in due if self.report.outcomes[name].status == "busy"]
            self._work(busy, "measure", LEASE_WAIT)

    def _form_groups(self) -> list[str]:
        """Divide the identified cases into groups, and return those with work."""
        names_by_key: dict[str, list[str]] = {}
        for case in self._cases:
            outcome = self._identified[case]
            has_scenario = bool(outcome.key) and outcome.status in ("due", "known")
            key = outcome.key if has_scenario else f"case {case}"
            names_by_key.setdefault(key, []).append(case)
        self._groups = {names[0]: tuple(names) for names in names_by_key.values()}
        due = []
        for name, group in self._groups.items():
            is_known = all(self._identified[case].status == "known" for case in group)
            outcome = self._identified[name]
            if not is_known and outcome.status == "known":
                outcome = outcome.model_copy(update={"status": "due"})
            # Only its measurement tells whether a group has work, which depends on all its cases.
            if self._do == "measure" and (outcome.status == "due" or len(group) > 1):
                due.append(name)
            else:
                self._note(name, outcome)
        return due

    def _attempt(self, host: SweepHost, case: str, *, do: Task, wait: float = 0.0) -> bool:
        """Have a host do something with a case; return whether that led to an outcome."""
        outcome = self._outcome(host, do, case, wait)
        if outcome is not None and do == "identify":
            self._identified[case] = outcome
        elif outcome is not None:
            self._note(case, outcome)
        return outcome is not None

    def _outcome(
        self, host: SweepHost, do: Task, case: str, wait: float = 0.0
    ) -> CaseOutcome | None:
        """Return a case's outcome, or None if the case must be tried again."""
        seconds_left = max(self._deadline - time.monotonic(), 0.001)
        group = self._groups.get(case, ())
        try:
            job = CaseJob(
                do=do,
                case=case,
                group=group if len(group) > 1 else (),
                wait=min(wait, seconds_left),
                seconds=None if math.isinf(seconds_left) else seconds_left,
                crashes=tuple(self._crashes.get(case, {}).items()),
            )
            outcome = host.run(job, self._emit)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"[:2000]
            return CaseOutcome(case=case, status="failed", message=message)
        if isinstance(outcome, CaseOutcome):
            return outcome
        if self._pools[-1].is_stopped:
            return None
        self._emit({"event": "lost", "case": case, "reason": outcome.reason})
        return self._outcome_of_loss(case, outcome)

    def _outcome_of_loss(self, case: str, loss: CaseLoss) -> CaseOutcome | None:
        """Return the outcome of a case that took down its worker, or None to try it again.

        A config that is to blame becomes one of the case's crashes: the case goes on without it.
        """
        culprit = case, str(loss.config)
        self._losses[culprit] += 1
        if not loss.is_convicted and self._losses[culprit] < LIVES:
            return None
        crashes = self._crashes.setdefault(case, {})
        if loss.config is None or loss.config in crashes:
            message = f"it took down its worker: {loss.reason}"
            return CaseOutcome(case=case, status="failed", message=message)
        crashes[loss.config] = loss.reason[:2000]
        return None

    def _note(self, name: str, outcome: CaseOutcome) -> None:
        """Set the outcome of each case of a group, and tell the listener.

        The first case has the counts of all. One that waits for another sweep is not done yet.
        """
        for case in self._groups[name]:
            counts = {} if case == name else {"measured": 0, "seconds": 0.0}
            self.report.outcomes.pop(case, None)
            noted = outcome.model_copy(update={"case": case, **counts})
            self.report.outcomes[case] = noted
            if outcome.status not in ("busy", "lost"):
                self._emit({"event": "outcome", "outcome": noted})

    def _emit(self, event: Mapping[str, Any]) -> None:
        """Pass on an event; if the listener raises, let running cases finish but begin none."""
        try:
            self._on_event(event)
        except Exception as error:
            self._errors.append(error)
            self._pools[-1].stop()

    def _close_hosts(self) -> None:
        for host in self._hosts:
            host.close()
        for pool in self._pools:
            pool.join(1.0)
        for host in self._hosts:  # a worker may have been started meanwhile
            host.close()

    def _complete_report(self, seconds: float) -> None:
        report = self.report
        is_done = all(pool.is_done for pool in self._pools)
        if time.monotonic() > self._deadline and not is_done:
            report.stopped = report.stopped or "the budget is used up"
        if self._errors:
            error = self._errors[0]
            name = "" if isinstance(error, DejavuError) else f"{type(error).__name__}: "
            reason = f"{name}{error}"
            report.stopped = report.stopped or reason
        report.left = [case for case in self._cases if case not in report.outcomes]
        report.kept = sorted({path for host in self._hosts for path in host.unsaved_journals()})
        report.seconds = seconds
