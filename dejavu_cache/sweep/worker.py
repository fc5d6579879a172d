"""The worker process of a sweep: it measures the cases that its parent names.

The parent replaces it when a config takes it down, so that nothing but that config is lost.

Measure the configs of a scenario over several cases, and select what is good in all of them.

The cases are taken one by one, since the arguments of one may fill the device. A config that is far
behind after some cases, as `case_scores.BEHIND` says, is left out of the next. If the leader turns
out to be slower than it seemed, configs that were left out are measured after all.
"""

from __future__ import annotations

import _thread
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import IO, Any

from pydantic import ValidationError

from ..errors import DejavuError, NoValidConfigError, SettingsError, StoreError
from ..model.record import Measurement, Results, join_results
from ..model.scenario import Config, Context, now
from ..model.selection import winner
from ..runtime import rules
from ..runtime.request import Request
from ..runtime.winner_check import (
    SWITCHED_OFF_BY_AUTHOR,
    WinnerCheck,
    recording_crash,
    refuse_uncompared,
)
from ..stores import open_store, wait_longer
from ..system.notices import whoami
from ..system.worker_process import ParentConnection
from ..triton_internals.config_names import describe
from ..triton_internals.environment import has_device
from ..tuning.compile_ahead import is_out_of_memory
from ..tuning.measurement_marks import MeasurementMark
from ..tuning.tuner import Tuner
from .case_store import CaseStore, CaseTuner, GroupRecord, current_record
from .hosts import CaseJob, CaseOutcome, MissedScenario, SweepSpec, Task
from .journal import Journal
from .suite import Case, cases_of_misses, load_suite, make_request, requested_scenario

__all__ = [
    "CaseGroup",
    "main",
]


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
        self._shortest = request.shortest_timing
        self._declared = list(request.declared)
        self._compares = request.check is not None
        configs = map(describe, request.autotuner.configs) if request.prunes else ()
        self._selectable = {*self._declared, *configs}

    @property
    def due(self) -> int:
        """Number of measurements that are left, as far as that is clear now."""
        return sum(len(self._undecided(name, self._declared)) for name in self._names)

    @property
    def is_known(self) -> bool:
        """Whether a winner is pinned, or recorded and compared, and no config is left."""
        record = self._group.record
        if record.pinned is not None and record.pinned in self._selectable:
            return True
        if record.winner is None or self.due:
            return False
        trusted = rules.trusted_configs(record, self._default, uncompared=not self._compares)
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
            if self.is_known:
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
        due = self.due
        is_partial = tuner.is_over and (due or best is None)
        status = "partial" if is_partial else "tuned" if measured else "known"
        return {"status": status, "measured": measured, "due": due}

    def _undecided(self, case: str, declared: Sequence[Config]) -> list[Config]:
        return self._group.undecided_configs(declared, self._default, self._names, case)

    def _has_work(self, case: str) -> bool:
        """Return whether a case has configs to time, or was never tuned to the end."""
        undecided = self._undecided(case, self._declared)
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
        undecided = self._undecided(case.name, list(request.declared))
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
        return winner(
            self._group.record,
            self._selectable,
            self._default,
            shortest=self._shortest,
            trusted=whoami(),
        )

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
        options = request.check if rules.may_launch_default(request, self._group.record) else None
        mark = MeasurementMark(self.context, self.scenario)
        check = WinnerCheck(request, options, mark.around)
        try:
            if options is not None:
                tuner.announce(self._default)
                check.prepare()
                tuner.announce(best)
            with recording_crash(best, lambda crash: self._group.put_measurements([crash])):
                results, wrong = check.compare(best)
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


SERVER_WAIT = 30.0
"""Seconds to wait for a server: measuring what it has recorded would take longer."""

DEVICE_LOST = 70
"""Exit code of a worker whose device can no longer be used."""


class SweepWorker:
    """Runs the jobs of one process.

    Args:
        spec: the subject of the sweep.
        parent: receives the events `case` (a case's measurements begin) and `config` (a config is
            about to be measured).

    Raises:
        SettingsError: the suite cannot be used, or this machine has no GPU.
        StoreError: the store cannot be used.
    """

    def __init__(self, spec: SweepSpec, parent: ParentConnection) -> None:
        self._parent = parent
        self._misses = None if spec.misses is None else set(spec.misses)
        suite = load_suite(spec.suite)
        load_cases = suite.load_cases if spec.misses is None else suite.load_all_cases
        cases = load_cases(spec.options)
        made_cases = list(cases_of_misses(suite, cases, spec.misses)) if spec.misses else []
        self._miss_of_case = {case.name: miss for case, miss in made_cases}
        self.cases = {case.name: case for case in [*(case for case, _ in made_cases), *cases]}
        if self.cases and not has_device():
            raise SettingsError(
                "Triton finds no GPU here: sweep on the machine that the results are for"
            )
        self.journal = Journal(wait_longer(open_store(spec.store), SERVER_WAIT))
        self._tasks: dict[Task, Callable[[CaseJob, Request], dict[str, Any]]] = {
            "identify": self._identify,
            "measure": self._measure,
            "plan": self._plan,
            "verify": self._verify,
        }

    def run(self, job: CaseJob) -> CaseOutcome:
        """Run a job.

        An error of the case is part of its outcome; an error of the device is raised.
        """
        start = time.perf_counter()
        unsaved_before = self.journal.unsaved
        outcome = CaseOutcome(case=job.case, status="failed")
        miss = self._miss_of_case.get(job.case)
        if miss is not None:
            outcome = _with_scenario(outcome, miss)
        try:
            subject = self._subject(job)
            miss = requested_scenario(subject.context, subject.scenario)
            key = f"{subject.context.digest}/{subject.scenario.digest}"
            outcome = _with_scenario(outcome, miss).model_copy(update={"key": key})
            if self._misses is not None and miss not in self._misses:
                changes: dict[str, Any] = {"status": "unwanted"}
            elif isinstance(subject, CaseGroup):
                changes = self._run_group(job, subject)
            else:
                changes = self._tasks[job.do](job, subject)
        except NoValidConfigError as error:
            changes = {"message": str(error)}
        except Exception as error:
            if not isinstance(error, DejavuError) and not _device_works():
                raise
            status = "skipped" if is_out_of_memory(error) else "failed"
            changes = {"status": status, "message": f"{type(error).__name__}: {error}"[:2000]}
        unsaved = self.journal.unsaved
        if unsaved is not None and unsaved is not unsaved_before:  # not of an earlier case
            message = f"its measurements are not recorded: {unsaved}"
            changes |= {"status": "failed", "message": message[:2000]}
        seconds = round(time.perf_counter() - start, 3)
        return outcome.model_copy(update={**changes, "seconds": seconds})

    def _subject(self, job: CaseJob) -> Request | CaseGroup:
        if job.group:
            return CaseGroup([self.cases[name] for name in job.group], self.journal)
        return make_request(self.cases[job.case])

    def _run_group(self, job: CaseJob, group: CaseGroup) -> dict[str, Any]:
        if job.do == "measure":
            changes = group.measure(CaseTuner(job, self._parent), job.wait)
        else:
            status = "known" if group.is_known else "due"
            estimate = self._estimate_seconds(group.context, group.due)
            changes = {"status": status, "due": group.due, "estimate": estimate}
        return {**changes, "cases": len(job.group)}

    def _identify(self, job: CaseJob, request: Request) -> dict[str, Any]:
        record = current_record(request, self.journal)
        best = rules.best_config(request, record)
        is_due = rules.has_work(request, record) or not (
            best is None or record.pinned or rules.is_trusted(request, record, best)
        )
        return {"status": "due" if is_due else "known"}

    def _plan(self, job: CaseJob, request: Request) -> dict[str, Any]:
        record = current_record(request, self.journal)
        due = rules.budgeted_count(request, len(rules.due_configs(request, record)))
        return {
            "status": "due" if due else "known",
            "due": due,
            "estimate": self._estimate_seconds(request.context, due),
        }

    def _measure(self, job: CaseJob, request: Request) -> dict[str, Any]:
        tuner = CaseTuner(job, self._parent)
        resolution, measured = tuner.tune(job.case, request, self.journal)
        record = current_record(request, self.journal)
        pinned = resolution.how == "pinned"
        due = 0 if pinned else len(rules.due_configs(request, record))
        # Another process that held the lease may have finished the record since.
        if resolution.how == "default" and not due and rules.best_config(request, record) is None:
            message = "no config has a usable timing: `dejavu-cache show` lists the failures"
            return {"status": "failed", "measured": measured, "message": message}
        status = "tuned" if measured else "known"
        is_untouched = not (measured or pinned) and resolution.how != "tuned"
        if is_untouched and rules.has_work(request, record):
            status = "busy"  # another process holds the lease
        elif due and job.seconds is not None:
            status = "partial"
        return {"status": status, "measured": measured, "due": due}

    def _verify(self, job: CaseJob, request: Request) -> dict[str, Any]:
        """Measure the winner again without recording the result."""
        record = current_record(request, self.journal)
        best = rules.best_config(request, record)
        recorded = None if best is None else _time_in_case(record.by_config[best], job.case)
        if best is None or recorded is None:
            return {"status": "due", "due": len(request.declared)}
        measurements: list[Measurement] = []
        before = CaseTuner(job, self._parent).announce
        launch = request.candidate_launch(default=best)
        Tuner(launch, measurements.append, before=before).remeasure(best)
        measurement = measurements[-1]
        if measurement.failure is not None:
            return {
                "status": "skipped" if measurement.skipped else "failed",
                "message": f"{best}: {measurement.failure.kind}: {measurement.failure.reason}",
            }
        return {
            "status": "verified",
            "recorded": recorded,
            "again": measurement.median,
            "message": str(best),
        }

    def _estimate_seconds(self, context: Context, due: int) -> float | None:
        """Return the time that some configs will take if they take the mean of those measured."""
        seconds = [
            measurement.seconds
            for record in self.journal.records(context)
            for measurement in record.measurements
            if not measurement.skipped
        ]
        return due * sum(seconds) / len(seconds) if seconds else None


def _with_scenario(outcome: CaseOutcome, miss: MissedScenario) -> CaseOutcome:
    return outcome.model_copy(
        update={"kernel": miss.kernel, "device": miss.device, "scenario": str(miss.scenario)}
    )


def _time_in_case(measurement: Measurement, case: str) -> float | None:
    """Return the time that a record has of a config in a case, or None."""
    return measurement.median if measurement.cases is None else measurement.cases.get(case)


def _device_works() -> bool:
    """Return whether this process's device can still be used after an error."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return True
    try:
        torch.cuda.synchronize()
    except Exception:
        return False
    return True


class _JobReader:
    """Yields the jobs of the parent, and interrupts the current one when the parent goes away."""

    def __init__(self, lines: IO[str]) -> None:
        self._lines = lines
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._busy = False
        threading.Thread(target=self._read, name="dejavu-cache jobs", daemon=True).start()

    def _read(self) -> None:
        for line in self._lines:
            self._queue.put(line)
        self._queue.put(None)
        if self._busy:
            _thread.interrupt_main()

    def __iter__(self) -> Iterator[CaseJob]:
        while (line := self._queue.get()) is not None:
            self._busy = True
            yield CaseJob.model_validate_json(line)
            self._busy = False


def main(parent: ParentConnection) -> int:
    """Read a spec, then jobs until the parent closes the connection; return the exit code."""
    try:
        spec = SweepSpec.model_validate_json(parent.requests.readline())
        worker = SweepWorker(spec, parent)
    except Exception as error:
        message = str(error)
        if not isinstance(error, DejavuError):
            message = f"{type(error).__name__}: {message}"
        parent.send("refused", message=message, store=isinstance(error, StoreError | OSError))
        return 2
    parent.send("ready", cases=list(worker.cases))
    with worker.journal, suppress(KeyboardInterrupt):
        for job in _JobReader(parent.requests):
            try:
                outcome = worker.run(job)
            except Exception as error:
                parent.send("crash", reason=f"{type(error).__name__}: {error}"[:2000])
                return DEVICE_LOST
            parent.send("outcome", outcome=outcome.model_dump())
    return 0


def _interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    exit_code = main(ParentConnection.take_standard_streams())
    sys.stderr.flush()
    # A device in a bad state, or a thread that waits for it, would hold up an orderly exit.
    os._exit(exit_code)
