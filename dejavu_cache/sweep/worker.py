"""The worker process of a sweep: it measures the cases that its parent names.

The parent replaces it when a config takes it down, so that nothing but that config is lost.
"""

from __future__ import annotations

import _thread
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO, Any

from ..errors import DejavuError, NoValidConfigError, SettingsError, StoreError
from ..model.record import Measurement
from ..model.scenario import Context
from ..runtime.record_lookup import best_config, is_trusted
from ..runtime.request import Request
from ..stores import open_store, wait_longer
from ..system.worker_connection import ParentConnection
from ..triton_internals.environment import has_device
from ..tuning.config_failures import is_out_of_memory
from ..tuning.tuner import Tuner
from .case_group import CaseGroup
from .case_tuner import CaseTuner, current_record
from .journal import Journal
from .messages import CaseJob, CaseOutcome, MissedScenario, SweepSpec, Task
from .requests import cases_of_misses, make_request, requested_scenario
from .suite import load_suite

__all__ = ["main"]

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
        best = best_config(request, record)
        is_due = request.has_work(record) or not (
            best is None or record.pinned or is_trusted(request, record, best)
        )
        return {"status": "due" if is_due else "known"}

    def _plan(self, job: CaseJob, request: Request) -> dict[str, Any]:
        record = current_record(request, self.journal)
        due = request.budgeted_count(len(request.due_configs(record)))
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
        due = 0 if pinned else len(request.due_configs(record))
        # Another process that held the lease may have finished the record since.
        if resolution.how == "default" and not due and best_config(request, record) is None:
            message = "no config has a usable timing: `dejavu-cache show` lists the failures"
            return {"status": "failed", "measured": measured, "message": message}
        status = "tuned" if measured else "known"
        if not (measured or pinned) and resolution.how != "tuned" and request.has_work(record):
            status = "busy"  # another process holds the lease
        elif due and job.seconds is not None:
            status = "partial"
        return {"status": status, "measured": measured, "due": due}

    def _verify(self, job: CaseJob, request: Request) -> dict[str, Any]:
        """Measure the winner again without recording the result."""
        record = current_record(request, self.journal)
        best = best_config(request, record)
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
