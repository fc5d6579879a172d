"""Run the cases of a suite on hosts until all are tuned."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import DejavuError, SettingsError
from .case_queue import CaseQueue, TakenCase
from .hosts import HostLostError, OnEvent, SweepHost
from .lost_workers import LostWorkers
from .messages import CaseJob, CaseOutcome, Task
from .sweep_report import SweepReport

__all__ = ["Sweep", "shard_of"]


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
