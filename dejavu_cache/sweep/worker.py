"""The worker process of a sweep: it measures the cases that its parent names.

The parent replaces it when a config takes it down, so that nothing but that config is lost.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from ..errors import DejavuError, NoValidConfigError, SettingsError
from ..model.record import Measurement
from ..model.scenario import Context
from ..runtime import rules
from ..runtime.request import Request
from ..stores import open_store, wait_longer
from ..system.worker_process import ParentConnection, serve
from ..triton_internals.environment import has_device
from ..tuning.compile_ahead import is_out_of_memory
from ..tuning.tuner import Tuner
from .case_group import CaseGroup
from .case_tuner import (
    CaseTuner,
    cases_of_misses,
    current_record,
    make_request,
    requested_scenario,
)
from .hosts import CaseJob, CaseOutcome, MissedScenario, SweepSpec
from .journal import Journal
from .suite import load_suite

__all__ = ["SweepWorker", "main"]

SERVER_WAIT = 30.0
"""Seconds to wait for a server: measuring what it has recorded would take longer."""


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
        """Load the suite and open the store."""
        self._parent = parent
        self._misses = None if spec.misses is None else set(spec.misses)
        suite = load_suite(spec.suite)
        load_cases = suite.load_cases if spec.misses is None else suite.load_all_cases
        cases = load_cases(spec.options)
        made_cases = list(cases_of_misses(suite, cases, spec.misses)) if spec.misses else []
        self._miss_of_case = {case.name: miss for case, miss in made_cases}
        self._cases = {case.name: case for case in [*(case for case, _ in made_cases), *cases]}
        if self._cases and not has_device():
            raise SettingsError(
                "Triton finds no GPU here: sweep on the machine that the results are for"
            )
        self.journal = Journal(wait_longer(open_store(spec.store), SERVER_WAIT))

    @property
    def ready(self) -> dict[str, Any]:
        """The names of all cases."""
        return {"cases": list(self._cases)}

    def close(self) -> None:
        """Hand what the journal has to the store."""
        self.journal.close()

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
            else:
                changes = self._outcome_of(job, subject)
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
            return CaseGroup([self._cases[name] for name in job.group], self.journal)
        return make_request(self._cases[job.case])

    def _outcome_of(self, job: CaseJob, subject: Request | CaseGroup) -> dict[str, Any]:
        if isinstance(subject, CaseGroup):
            if job.do == "measure":
                changes = subject.measure(CaseTuner(job, self._parent), job.wait)
            else:
                changes = self._plan(subject.context, subject.due, is_known=subject.is_known)
            return {**changes, "cases": len(job.group)}
        if job.do == "measure":
            return self._measure(job, subject)
        if job.do == "verify":
            return self._verify(job, subject)
        record = current_record(subject, self.journal)
        if job.do == "plan":
            due = rules.budgeted_count(subject, len(rules.due_configs(subject, record)))
            return self._plan(subject.context, due, is_known=not due)
        best = rules.best_config(subject, record)
        is_due = rules.has_work(subject, record) or not (
            best is None or record.pinned or rules.is_trusted(subject, record, best)
        )
        return {"status": "due" if is_due else "known"}

    def _plan(self, context: Context, due: int, *, is_known: bool) -> dict[str, Any]:
        """Return how many configs are left, and how long they take if they take the mean time."""
        seconds = [
            measurement.seconds
            for record in self.journal.records(context)
            for measurement in record.measurements
            if not measurement.skipped
        ]
        estimate = due * sum(seconds) / len(seconds) if seconds else None
        return {"status": "known" if is_known else "due", "due": due, "estimate": estimate}

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
        if (
            not (measured or pinned)
            and resolution.how != "tuned"
            and rules.has_work(request, record)
        ):
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
        CaseTuner(job, self._parent).announce(best)
        launch = request.candidate_launch(default=best)
        Tuner(launch, measurements.extend).remeasure(best)
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


def main() -> None:
    """Serve the parent."""
    serve(SweepWorker, SweepSpec, CaseJob)
