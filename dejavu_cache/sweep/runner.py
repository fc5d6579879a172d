"""Run the cases of a suite on hosts until all are tuned."""

from __future__ import annotations

import itertools
import math
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import DejavuError, SettingsError
from .hosts import HostLostError, OnEvent, SweepHost
from .messages import CaseJob, CaseOutcome, ConfigCrash, Task

__all__ = ["Sweep", "SweepReport", "shard_of"]

LEASE_WAIT = 2.0
"""Seconds to wait in each attempt for a case that another sweep measures."""

PATIENCE = 900.0
"""Seconds without progress after which cases that another sweep measures are left to it."""

LIVES = 2
"""Number of workers that one config, or one case, may take down before it is given up."""

MACHINE_LIVES = 10
"""Number of times that a machine may be lost under one case before the case is given up."""


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


def _split_evenly(cases: Sequence[str], parts: int) -> list[Sequence[str]]:
    """Split the cases into consecutive parts of about equal length."""
    edges = [number * len(cases) // parts for number in range(parts + 1)]
    return [cases[start:end] for start, end in itertools.pairwise(edges)]


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


class Sweep:
    """Hands cases to hosts, with one thread per host.

    The hosts first tell the cases' scenarios. Cases of one scenario are a group, which goes to one
    host as one case.

    A case whose host is lost is tried again. A config that takes down two workers, or whose worker
    reported the crash itself, is recorded as a crash and not tried again. A case that another sweep
    measures is tried again at the end.

    Each host works through a part of the cases of its own, then helps where most are left.
    Neighbours in a suite mostly share their binaries, and two hosts that took turns would both
    compile all of them.

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
        self._identified: dict[str, CaseOutcome] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        self._is_identifying = do != "verify" and (len(cases) > 1 or bool(shard))
        self._on_event = on_event
        self._deadline = math.inf if budget is None else time.monotonic() + budget
        self._parts = [deque(part) for part in _split_evenly(cases, len(hosts))]
        self._running = 0
        self._busy_elsewhere: deque[str] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._crashes: dict[str, list[ConfigCrash]] = {}
        self._losses: Counter[tuple[str, str]] = Counter()
        self._last_progress = time.monotonic()
        self._errors: list[Exception] = []
        self.report = SweepReport(total=len(cases), workers=len(hosts))

    def run(self) -> SweepReport:
        """Work until all cases are done, the budget is used up, or the user presses Ctrl-C.

        Raises:
            DejavuError: no host can run a job.
        """
        start = time.monotonic()
        threads = [
            threading.Thread(target=self._serve_host, args=(host, part), daemon=True)
            for host, part in zip(self._hosts, self._parts, strict=True)
        ]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads) and not self._is_done:
                time.sleep(0.05)
        except KeyboardInterrupt:
            self.report.stopped = "interrupted"
        finally:
            self._stopping = True
            for host in self._hosts:
                host.close()
            for thread in threads:
                thread.join(1.0)
            for host in self._hosts:  # a worker may have been started meanwhile
                host.close()
        if self._errors and not self.report.outcomes:
            raise self._errors[0]
        is_unfinished = self._waiting_cases or self._busy_elsewhere or self._is_identifying
        if time.monotonic() > self._deadline and is_unfinished:
            self.report.stopped = self.report.stopped or "the budget is used up"
        if self._errors:
            self.report.stopped = self.report.stopped or _describe(self._errors[0])
        self.report.left = [case for case in self._cases if case not in self.report.outcomes]
        self.report.kept = sorted(
            {path for host in self._hosts for path in host.unsaved_journals()}
        )
        self.report.seconds = time.monotonic() - start
        return self.report

    @property
    def _waiting_cases(self) -> list[str]:
        return [case for part in self._parts for case in part]

    @property
    def _is_done(self) -> bool:
        """Whether no case is left, even if a host is still starting its worker."""
        with self._changed:
            return not (
                self._waiting_cases or self._busy_elsewhere or self._running or self._is_identifying
            )

    def _serve_host(self, host: SweepHost, own_part: deque[str]) -> None:
        """Hand cases to one host until none is left."""
        while not self._is_done:
            try:
                # Start the worker before taking a case, so that no case waits for it.
                host.cases()
            except Exception as error:
                if not self._stopping:
                    self._errors.append(error)
                return
            task = self._take_case(own_part)
            if task is None:
                return
            case, wait = task
            outcome = None
            try:
                outcome = self._attempt(host, case, wait)
            except Exception as error:
                self._errors.append(error)
                return
            finally:  # on any error too, or other threads would wait for this case
                self._record_outcome(case, outcome, own_part)

    def _take_case(self, own_part: deque[str]) -> tuple[str, float] | None:
        """Return the next case and the seconds to wait for its lease, or None at the end."""
        with self._changed:
            while not self._stopping and time.monotonic() < self._deadline:
                if self._waiting_cases:
                    self._running += 1
                    case = own_part.popleft() if own_part else max(self._parts, key=len).pop()
                    return case, 0.0
                if self._busy_elsewhere and time.monotonic() < self._last_progress + PATIENCE:
                    self._running += 1
                    return self._busy_elsewhere.popleft(), LEASE_WAIT
                if not self._running:
                    if not self._is_identifying:
                        return None
                    self._form_groups()
                    continue
                self._changed.wait(0.2)  # a lost host returns its case
            return None

    def _attempt(self, host: SweepHost, case: str, wait: float) -> CaseOutcome | None:
        """Return a case's outcome, or None if the case must be tried again."""
        seconds_left = max(self._deadline - time.monotonic(), 0.001)
        try:
            job = CaseJob(
                do=self._identifying_task if self._is_identifying else self._do,
                case=case,
                group=self._groups.get(case, ()),
                wait=wait,
                seconds=None if math.isinf(seconds_left) else seconds_left,
                crashes=tuple(self._crashes.get(case, ())),
            )
            return host.run(job, self._emit)
        except HostLostError as error:
            if self._stopping:
                return None
            self._emit({"event": "lost", "case": case, "reason": error.reason})
            return self._after_loss(case, error)
        except Exception as error:
            if self._is_identifying and self._do == "measure":
                # Its measurement will fail likewise, after those of the other cases.
                return CaseOutcome.model_construct(case=case, status="due")
            return CaseOutcome(
                case=case, status="failed", message=f"{type(error).__name__}: {error}"[:2000]
            )

    def _emit(self, event: Mapping[str, Any]) -> None:
        """Pass on an event; if the listener raises, let running cases finish but begin none."""
        try:
            self._on_event(event)
        except Exception as error:
            self._errors.append(error)
            self._stopping = True

    def _after_loss(self, case: str, error: HostLostError) -> CaseOutcome | None:
        """Return the outcome of a case that took down its worker, or None to try it again."""
        if error.blame == "machine":
            return self._after_lost_machine(case, error)
        self._losses[case, str(error.config)] += 1
        to_blame = error.blame == "config" or self._losses[case, str(error.config)] >= LIVES
        if not to_blame:
            return None
        if error.config is None or self._do != "measure" or self._is_identifying:
            return CaseOutcome(
                case=case, status="failed", message=f"it took down its worker: {error.reason}"
            )
        self._crashes.setdefault(case, []).append(
            ConfigCrash(config=error.config, reason=error.reason[:2000])
        )
        return None

    def _after_lost_machine(self, case: str, error: HostLostError) -> CaseOutcome | None:
        self._losses[case, "machine"] += 1
        if self._losses[case, "machine"] < MACHINE_LIVES:
            return None
        return CaseOutcome(case=case, status="failed", message=error.reason)

    def _record_outcome(self, case: str, outcome: CaseOutcome | None, own_part: deque[str]) -> None:
        with self._changed:
            self._running -= 1
            if outcome is None:
                own_part.appendleft(case)
            elif self._is_identifying:
                self._identified[case] = outcome
            else:
                self._count_outcome(case, outcome)
            is_final = not self._is_identifying and outcome and outcome.status != "busy"
            self._changed.notify_all()
        if is_final:
            self._emit_outcomes(case)

    def _count_outcome(self, case: str, outcome: CaseOutcome) -> None:
        """Report a case's outcome; one that another process tunes is tried again later."""
        if outcome.status == "busy":
            self._busy_elsewhere.append(case)
        else:
            self._last_progress = time.monotonic()
            previous = self.report.outcomes.get(case)
            if previous is not None and previous.status == "busy" and outcome.status == "known":
                outcome = outcome.model_copy(update={"message": "measured by another sweep"})
        self._note_outcome(case, outcome)

    @property
    def _identifying_task(self) -> Task:
        """The first task for each case: a plan of a case alone needs no second one."""
        return "plan" if self._do == "plan" else "identify"

    def _form_groups(self) -> None:
        """Divide the identified cases into groups, and hand out those with work."""
        names_by_key: dict[str, list[str]] = {}
        for case in self._cases:
            outcome = self._identified[case]
            has_scenario = bool(outcome.key) and outcome.status in ("due", "known")
            key = outcome.key if has_scenario else f"case {case}"
            names_by_key.setdefault(key, []).append(case)
        groups = {names[0]: tuple(names) for names in names_by_key.values()}
        if self._shard:
            groups = {name: groups[name] for name in shard_of(list(groups), self._shard)}
        chosen = {case for group in groups.values() for case in group}
        self._cases = [case for case in self._cases if case in chosen]
        self._groups = {name: group for name, group in groups.items() if len(group) > 1}
        waiting = []
        for name in groups:
            outcome = self._identified[name]
            is_due = self._do == "measure" and outcome.status == "due"
            if name in self._groups or is_due:
                waiting.append(name)
            else:
                self._note_outcome(name, outcome)
                self._emit_outcomes(name)
        for part, names in zip(self._parts, _split_evenly(waiting, len(self._parts)), strict=True):
            part.extend(names)
        self._is_identifying = False

    def _note_outcome(self, case: str, outcome: CaseOutcome) -> None:
        """Put an outcome into the report for each case of its group; the first has its counts."""
        for name in self._groups.get(case, (case,)):
            update: dict[str, Any] = {"case": name}
            if name != case:
                update.update(measured=0, due=0, seconds=0.0, estimate=None)
            self.report.outcomes.pop(name, None)
            self.report.outcomes[name] = outcome.model_copy(update=update)

    def _emit_outcomes(self, case: str) -> None:
        for name in self._groups.get(case, (case,)):
            self._emit({"event": "outcome", "outcome": self.report.outcomes[name]})


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, DejavuError) else f"{type(error).__name__}: {error}"
