"""Run the cases of a suite on hosts until all are tuned."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import DejavuError
from ..model.scenario import Config
from ..model.worth import Worth
from ..system.notices import Progress, counted, logger
from ..system.workers import WorkerPool
from .hosts import CaseJob, CaseLoss, CaseOutcome, SweepHost, Task

LEASE_WAIT = 300.0
"""Seconds to wait, in the end, for a case that another sweep measures."""

LIVES = 2
"""Number of workers that one config, or one case, may take down before it is given up."""


@dataclass
class SweepReport:
    """The result of a sweep.

    Attributes:
        outcomes: the outcomes by case, in the order in which they came.
        left: cases without an outcome.
        stopped: the reason why the sweep ended early; empty if it did not.
        kept: the journals, on any machine, with measurements that the store has not accepted.
        seconds: duration of the sweep.
    """

    outcomes: dict[str, CaseOutcome] = field(default_factory=dict)
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


@dataclass(eq=False)
class Sweep:
    """Hands cases to hosts, which start at once.

    First, the hosts tell the cases' scenarios. Cases of one scenario are a group, which goes to one
    host as one case from then on; its first case stands for it.

    A case whose host is lost is tried again. A config that takes down two workers, or whose worker
    reported the crash itself, is recorded as a crash and not tried again. A case that another sweep
    measures is waited for at the end.

    Args:
        hosts: the hosts; the sweep closes them.
        measures: whether the cases are measured; else the sweep only tells which ones are due.
        budget: seconds for the sweep once a host has started; None is without limit.
        only_worthwhile: whether tunes that take longer than what they save are left out, and those
            that save most per second of their own are first; else, those that save most.
    """

    hosts: Sequence[SweepHost]
    measures: bool = True
    budget: float | None = None
    only_worthwhile: bool = False
    report: SweepReport = field(default_factory=SweepReport, init=False)
    _deadline: float = field(default=math.inf, init=False)
    _groups: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    """All cases of a scenario, by the first one."""
    _worth: dict[str, Worth | None] = field(default_factory=dict, init=False)
    """What the tune of a group is expected to save."""
    _losses: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)
    _crashes: dict[str, dict[Config, str]] = field(default_factory=dict, init=False)
    """The configs of each case that ended workers, and how."""

    def __post_init__(self) -> None:
        """Let the hosts start."""
        self._pool: WorkerPool[CaseJob] = WorkerPool(self.hosts)
        self._progress = Progress("sweep")

    def run(self) -> SweepReport:
        """Work until all cases are done, the budget is used up, or the user presses Ctrl-C.

        Raises:
            DejavuError: no host can run a job.
        """
        report = self.report
        try:
            cases = self.hosts[0].start()
            start = time.monotonic()
            self._deadline = start + (math.inf if self.budget is None else self.budget)
            try:
                self._work_on(cases)
            except KeyboardInterrupt:
                report.stopped = "interrupted"
            report.left = [case for case in cases if case not in report.outcomes]
        finally:
            for host in self.hosts:
                host.close()
            self._pool.close(1.0)
        if self._pool.errors and not report.outcomes:
            raise self._pool.errors[0]
        if (report.left or report.of("partial")) and time.monotonic() > self._deadline:
            report.stopped = report.stopped or "the budget is used up"
        for error in self._pool.errors:
            name = "" if isinstance(error, DejavuError) else f"{type(error).__name__}: "
            report.stopped = report.stopped or f"{name}{error}"
        report.kept = sorted({path for host in self.hosts for path in host.unsaved_journals()})
        report.seconds = time.monotonic() - start
        return report

    def _work_on(self, cases: Sequence[str]) -> None:
        """Identify the cases, measure the groups that have work, and note the others."""
        identified = self._work(cases, "identify")
        if len(identified) < len(cases):
            return
        due = self._form_groups([identified[case] for case in cases])
        measured = self._work(due, "measure")
        busy = [case for case, outcome in measured.items() if outcome.status == "busy"]
        self._work(busy, "measure", LEASE_WAIT)

    def _form_groups(self, identified: Sequence[CaseOutcome]) -> list[str]:
        """Divide the identified cases into groups, and return those to measure."""
        by_key: dict[str, list[CaseOutcome]] = {}
        for outcome in identified:
            has_scenario = bool(outcome.key) and outcome.status in ("due", "known")
            key = outcome.key if has_scenario else f"case {outcome.case}"
            by_key.setdefault(key, []).append(outcome)
        due = []
        for group in sorted(by_key.values(), key=lambda group: self._rank(group[0].worth)):
            first = group[0]
            self._groups[first.case] = tuple(outcome.case for outcome in group)
            self._worth[first.case] = worth = first.worth
            is_known = all(outcome.status == "known" for outcome in group)
            if not is_known and first.status == "known":
                first = first.model_copy(update={"status": "due"})
            if worth and worth.pays is False and self.only_worthwhile and not is_known:
                self._note(first.model_copy(update={"status": "unworthy"}))
            # Only its measurement tells whether a group has work, which depends on all its cases.
            elif self.measures and (first.status == "due" or len(group) > 1):
                due.append(first.case)
            else:
                self._note(first)
        return due

    def _rank(self, worth: Worth | None) -> tuple[int, float, int]:
        """Return a key that sorts tunes by what they save, or by that per second of their own."""
        if worth is None:
            return 0, 0.0, 0
        kind, saves, launches = worth.order
        return kind, saves / max(worth.takes, 0.001) if self.only_worthwhile else saves, launches

    def _work(self, cases: Sequence[str], do: Task, wait: float = 0.0) -> dict[str, CaseOutcome]:
        """Have the hosts do something with cases, and return the outcomes."""
        outcomes: dict[str, CaseOutcome] = {}
        until = (
            None if math.isinf(self._deadline) else time.time() + self._deadline - time.monotonic()
        )
        jobs = []
        for case in cases:
            group = self._groups.get(case, ())
            group = group if len(group) > 1 else ()
            job = CaseJob(do=do, case=case, group=group, wait=wait, until=until)
            compiles = self.measures and until is None  # else it would take the budget's time
            update = {"worth": self._worth.get(case), "compiles": compiles}
            jobs.append(job.model_copy(update=update))
        for job, result in self._pool.run(jobs, self._deadline):
            outcome = self._outcome_of_loss(job, result) if isinstance(result, CaseLoss) else result
            if outcome is None:
                crashes = tuple(self._crashes.get(job.case, {}).items())
                self._pool.put_back(job.model_copy(update={"crashes": crashes}))
                continue
            outcomes[job.case] = outcome
            if do == "measure":
                self._note(outcome)
            done = "tuned" if do == "measure" else "looked up"
            self._progress.show(f"{len(outcomes)} of {counted(len(jobs), 'case')} {done}")
        return outcomes

    def _outcome_of_loss(self, job: CaseJob, loss: CaseLoss) -> CaseOutcome | None:
        """Return the outcome of a case that took down its worker, or None to try it again.

        A config that is to blame becomes one of the case's crashes: the case goes on without it.
        """
        case = job.case
        logger.warning("%s: %s; another process takes it over", case, loss.reason)
        self._losses[case, str(loss.config)] += 1
        if not loss.is_convicted and self._losses[case, str(loss.config)] < LIVES:
            return None
        crashes = self._crashes.setdefault(case, {})
        if loss.config is None or loss.config in crashes:
            message = f"it took down its worker: {loss.reason}"
            return CaseOutcome(case=case, status="failed", message=message)
        crashes[loss.config] = loss.reason[:2000]
        return None

    def _note(self, outcome: CaseOutcome) -> None:
        """Set the outcome of each case of a group; the first one has the counts of all."""
        for case in self._groups[outcome.case]:
            counts = {} if case == outcome.case else {"measured": 0, "seconds": 0.0}
            noted = outcome.model_copy(update={"case": case, **counts})
            self.report.outcomes[case] = noted
