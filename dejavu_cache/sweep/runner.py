"""Run the cases of a suite on hosts until all are tuned.

The workers that were lost under a sweep's cases, and what follows for these.

The cases that a sweep has left, as the threads of its hosts take them.

The result of a sweep.
"""

from __future__ import annotations

import itertools
import math
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import DejavuError, SettingsError
from ..system.fork_lock import ForkCondition
from .hosts import CaseJob, CaseOutcome, ConfigCrash, HostLostError, OnEvent, SweepHost, Task

__all__ = [
    "CaseQueue",
    "LostWorkers",
    "Sweep",
    "SweepReport",
    "TakenCase",
    "shard_of",
]


LIVES = 2
"""Number of workers that one config, or one case, may take down before it is given up."""

MACHINE_LIVES = 10
"""Number of times that a machine may be lost under one case before the case is given up."""


class LostWorkers:
    """Counts the workers that were lost, by case and config."""

    def __init__(self) -> None:
        """Begin without any."""
        self._losses: Counter[tuple[str, str]] = Counter()
        self._crashes: dict[str, list[ConfigCrash]] = {}

    def crashes_of(self, case: str) -> tuple[ConfigCrash, ...]:
        """Return the configs of a case that are not to be tried again."""
        return tuple(self._crashes.get(case, ()))

    def note(self, case: str, error: HostLostError, *, measures: bool) -> CaseOutcome | None:
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
        self._crashes.setdefault(case, []).append(crash)
        return None


LEASE_WAIT = 2.0
"""Seconds to wait in each attempt for a case that another sweep measures."""

PATIENCE = 900.0
"""Seconds without progress after which cases that another sweep measures are left to it."""


class TakenCase(NamedTuple):
    """A case that a host works on.

    Attributes:
        name: the name of the case.
        host: the number of the host.
        wait: seconds to wait for the case's lease.
    """

    name: str
    host: int
    wait: float


class CaseQueue:
    """Cases on their way through a sweep.

    A case *waits* until a host takes it. It then *runs*, until it is finished, put back because its
    host was lost, or postponed because another sweep measures it. Postponed cases are tried again
    when none waits.

    Each host works through a part of the cases of its own, then helps where most are left.
    Neighbours in a suite mostly share their binaries, and two hosts that took turns would both
    compile all of them.

    Args:
        cases: the cases, in order.
        hosts: the number of hosts.
        deadline: when no case is handed out any more, in seconds of `time.monotonic`.
        next_phase: is called once, when all cases are finished; returns more of them.
    """

    def __init__(
        self,
        cases: Sequence[str],
        hosts: int,
        deadline: float,
        next_phase: Callable[[], Sequence[str]] | None,
    ) -> None:
        """Let the cases wait; the arguments are described at the class."""
        self._deadline = deadline
        self._next_phase = next_phase
        self._parts: list[deque[str]] = [deque() for _ in range(hosts)]
        self._deal_out(cases)
        self._postponed: deque[str] = deque()
        self._running = 0
        self._last_progress = time.monotonic()
        self._is_stopped = False
        self._changed = ForkCondition()

    def take(self, host: int) -> TakenCase | None:
        """Return the next case for a host, or None at the end; wait while one may be put back."""
        with self._changed:
            while not self._is_stopped and time.monotonic() < self._deadline:
                if any(self._parts):
                    own = self._parts[host]
                    case = own.popleft() if own else max(self._parts, key=len).pop()
                    return self._run(TakenCase(case, host, 0.0))
                if self._postponed and time.monotonic() < self._last_progress + PATIENCE:
                    return self._run(TakenCase(self._postponed.popleft(), host, LEASE_WAIT))
                if self._running:
                    self._changed.wait(0.2)
                elif self._next_phase is None:
                    return None
                else:
                    self._deal_out(self._next_phase())
                    self._next_phase = None
            return None

    def put_back(self, case: TakenCase) -> None:
        """Let a case wait again, since its host was lost."""
        with self._changed:
            self._parts[case.host].appendleft(case.name)
            self._end()

    def postpone(self, case: TakenCase) -> None:
        """Try a case again at the end, since another sweep measures it."""
        with self._changed:
            self._postponed.append(case.name)
            self._end()

    def finish(self) -> None:
        """Note that a running case has its outcome."""
        with self._changed:
            self._last_progress = time.monotonic()
            self._end()

    def stop(self) -> None:
        """Hand out no case any more."""
        self._is_stopped = True

    @property
    def is_stopped(self) -> bool:
        """Whether no case is handed out any more."""
        return self._is_stopped

    @property
    def is_done(self) -> bool:
        """Whether all cases are finished."""
        with self._changed:
            return not (self._running or self.has_cases)

    @property
    def has_cases(self) -> bool:
        """Whether cases are left that do not run."""
        return bool(any(self._parts) or self._postponed or self._next_phase)

    def _deal_out(self, cases: Sequence[str]) -> None:
        """Split cases into consecutive parts of about equal length, one for each host."""
        hosts = len(self._parts)
        edges = [number * len(cases) // hosts for number in range(hosts + 1)]
        for part, (start, end) in zip(self._parts, itertools.pairwise(edges), strict=True):
            part.extend(cases[start:end])

    def _run(self, case: TakenCase) -> TakenCase:
        self._running += 1
        return case

    def _end(self) -> None:
        self._running -= 1
        self._changed.notify_all()


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
    """Hands cases to hosts, with one thread per host.

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
        self._is_identifying = do != "verify" and (len(cases) > 1 or bool(shard))
        self._identified: dict[str, CaseOutcome] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        """All cases of a scenario, by the first one, which stands for them in the queue."""
        next_phase = self._form_groups if self._is_identifying else None
        self._queue = CaseQueue(cases, len(hosts), self._deadline, next_phase)
        self._lost_workers = LostWorkers()
        self._errors: list[Exception] = []
        self.report = SweepReport(total=len(cases), workers=len(hosts))

    def run(self) -> SweepReport:
        """Work until all cases are done, the budget is used up, or the user presses Ctrl-C.

        Raises:
            DejavuError: no host can run a job.
        """
        start = time.monotonic()
        self._serve_hosts()
        if self._errors and not self.report.outcomes:
            raise self._errors[0]
        self._complete_report(time.monotonic() - start)
        return self.report

    def _serve_hosts(self) -> None:
        """Serve each host in a thread until all cases are done, then close the hosts."""
        threads = [
            threading.Thread(target=self._serve_host, args=(number, host), daemon=True)
            for number, host in enumerate(self._hosts)
        ]
        try:
            for thread in threads:
                thread.start()
            # When no case is left, a host may still be starting its worker.
            while any(thread.is_alive() for thread in threads) and not self._queue.is_done:
                time.sleep(0.05)
        except KeyboardInterrupt:
            self.report.stopped = "interrupted"
        finally:
            self._queue.stop()
            for host in self._hosts:
                host.close()
            for thread in threads:
                thread.join(1.0)
            for host in self._hosts:  # a worker may have been started meanwhile
                host.close()

    def _complete_report(self, seconds: float) -> None:
        report = self.report
        if time.monotonic() > self._deadline and self._queue.has_cases:
            report.stopped = report.stopped or "the budget is used up"
        if self._errors:
            report.stopped = report.stopped or _describe(self._errors[0])
        report.left = [case for case in self._cases if case not in report.outcomes]
        report.kept = sorted({path for host in self._hosts for path in host.unsaved_journals()})
        report.seconds = seconds

    def _serve_host(self, number: int, host: SweepHost) -> None:
        """Hand cases to one host until none is left."""
        while not self._queue.is_done:
            try:
                # Start the worker before taking a case, so that no case waits for it.
                host.cases()
            except Exception as error:
                if not self._queue.is_stopped:
                    self._errors.append(error)
                return
            case = self._queue.take(number)
            if case is None:
                return
            outcome = None
            try:
                outcome = self._attempt(host, case)
            except Exception as error:
                self._errors.append(error)
                return
            finally:  # on any error too, or other threads would wait for this case
                self._record_outcome(case, outcome)

    def _attempt(self, host: SweepHost, case: TakenCase) -> CaseOutcome | None:
        """Return a case's outcome, or None if the case must be tried again."""
        seconds_left = max(self._deadline - time.monotonic(), 0.001)
        name = case.name
        try:
            job = CaseJob(
                do=self._identifying_task if self._is_identifying else self._do,
                case=name,
                group=self._groups.get(name, ()),
                wait=case.wait,
                seconds=None if math.isinf(seconds_left) else seconds_left,
                crashes=self._lost_workers.crashes_of(name),
            )
            return host.run(job, self._emit)
        except HostLostError as error:
            if self._queue.is_stopped:
                return None
            self._emit({"event": "lost", "case": name, "reason": error.reason})
            measures = self._do == "measure" and not self._is_identifying
            return self._lost_workers.note(name, error, measures=measures)
        except Exception as error:
            if self._is_identifying and self._do == "measure":
                # Its measurement will fail likewise, after those of the other cases.
                return CaseOutcome.model_construct(case=name, status="due")
            message = f"{type(error).__name__}: {error}"[:2000]
            return CaseOutcome(case=name, status="failed", message=message)

    @property
    def _identifying_task(self) -> Task:
        """The first task for each case: a plan of a case alone needs no second one."""
        return "plan" if self._do == "plan" else "identify"

    def _record_outcome(self, case: TakenCase, outcome: CaseOutcome | None) -> None:
        if outcome is None:
            self._queue.put_back(case)
        elif self._is_identifying:
            self._identified[case.name] = outcome
            self._queue.finish()
        elif outcome.status == "busy":
            self._note_outcome(case.name, outcome)
            self._queue.postpone(case)
        else:
            previous = self.report.outcomes.get(case.name)
            if previous is not None and previous.status == "busy" and outcome.status == "known":
                outcome = outcome.model_copy(update={"message": "measured by another sweep"})
            self._note_outcome(case.name, outcome)
            self._queue.finish()
            self._emit_outcomes(case.name)

    def _form_groups(self) -> list[str]:
        """Divide the identified cases into groups, and return those with work."""
        groups = {names[0]: names for names in self._cases_by_scenario()}
        if self._shard:
            groups = {name: groups[name] for name in shard_of(list(groups), self._shard)}
        chosen = {case for group in groups.values() for case in group}
        self._cases = [case for case in self._cases if case in chosen]
        self._groups = {name: group for name, group in groups.items() if len(group) > 1}
        self._is_identifying = False
        waiting = []
        for name in groups:
            outcome = self._identified[name]
            is_due = self._do == "measure" and outcome.status == "due"
            if name in self._groups or is_due:
                waiting.append(name)
            else:
                self._note_outcome(name, outcome)
                self._emit_outcomes(name)
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

    def _note_outcome(self, case: str, outcome: CaseOutcome) -> None:
        self.report.note(self._groups.get(case, (case,)), outcome)

    def _emit_outcomes(self, case: str) -> None:
        for name in self._groups.get(case, (case,)):
            self._emit({"event": "outcome", "outcome": self.report.outcomes[name]})

    def _emit(self, event: Mapping[str, Any]) -> None:
        """Pass on an event; if the listener raises, let running cases finish but begin none."""
        try:
            self._on_event(event)
        except Exception as error:
            self._errors.append(error)
            self._queue.stop()


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, DejavuError) else f"{type(error).__name__}: {error}"
