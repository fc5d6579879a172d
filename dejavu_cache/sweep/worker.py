"""The process that measures: it reads jobs from standard input and tells what happens, a JSON document a line.

It is replaced when a config takes it down, so that nothing but that config is lost.
"""

from __future__ import annotations

import _thread
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import IO, Any

from ..errors import DejavuError, NoValidConfigError, SettingsError, StoreError
from ..model.record import Failure, Measurement, Record
from ..model.scenario import Config, now
from ..model.selection import winner
from ..provenance import whoami
from ..runtime.autotuner import CachedAutotuner
from ..runtime.request import Request
from ..runtime.resolver import Resolver
from ..settings import Mode, current_settings
from ..stores import Store, TieredStore, open_store
from ..triton_internals.config_names import describe
from ..triton_internals.environment import (
    INTERPRETER_INDEX,
    current_device,
    current_environment,
    is_interpreting,
)
from ..triton_internals.source_hash import kernel_name
from ..tuning.benchmark_methods import is_out_of_memory
from ..tuning.tuner import CandidateLaunch, Tuner
from .journal import Journal
from .messages import CaseJob, CaseOutcome, ConfigCrash, MissedScenario, SweepSpec
from .suite import Case, Suite, load_suite

__all__ = ["main"]

SERVER_WAIT = 30.0
"""Seconds that a server may take to answer."""

FATAL = 70
"""The exit code of a worker whose device can no longer be used."""


class SweepWorker:
    """One process's part of a sweep.

    Args:
        tell: sends an event to the parent.
    """

    def __init__(self, spec: SweepSpec, tell: Callable[[Mapping[str, Any]], None]) -> None:
        self._tell = tell
        self._misses = None if spec.misses is None else set(spec.misses)
        self._told: Mapping[str, str] = {}
        suite = load_suite(spec.suite)
        cases = suite.listed(spec.options)
        missed = list(_missed(suite, cases, spec.misses)) if spec.misses else []
        self._made_for = {case.name: miss for case, miss in missed}
        self.cases = {case.name: case for case in [*(case for case, _ in missed), *cases]}
        self.journal = Journal(_patient(open_store(spec.store)))

    def do(self, job: CaseJob) -> CaseOutcome:
        """Does a job; what goes wrong with the case is the outcome, what goes wrong with the device is raised."""
        start = time.perf_counter()
        miss = self._made_for.get(job.case)
        self._told = {"case": job.case, **(_told(miss) if miss else {})}
        try:
            outcome = self._do(job)
        except NoValidConfigError as error:
            outcome = CaseOutcome(status="failed", message=str(error), **self._told)
        except Exception as error:
            if not isinstance(error, DejavuError) and not _device_works():
                raise
            status = "skipped" if is_out_of_memory(error) else "failed"
            outcome = CaseOutcome(
                status=status, message=f"{type(error).__name__}: {error}"[:2000], **self._told
            )
        return outcome.model_copy(update={"seconds": round(time.perf_counter() - start, 3)})

    def _do(self, job: CaseJob) -> CaseOutcome:
        case = self.cases[job.case]
        request = _request(case)
        miss = _miss(request)
        self._told = told = {"case": job.case, **_told(miss)}
        if self._misses is not None and miss not in self._misses:
            return CaseOutcome(status="unwanted", **told)
        if job.do == "plan":
            due = request.budgeted_count(len(self._due(request)))
            return CaseOutcome(
                status="due" if due else "known",
                due=due,
                estimate=self._estimate(request, due),
                **told,
            )
        if job.do == "verify":
            return self._verify(job, request, told)
        return self._measure(job, request, told)

    def _measure(self, job: CaseJob, request: Request, told: Mapping[str, str]) -> CaseOutcome:
        self._note_crashes(request, job.crashes)
        known = self._recorded(request)
        # What has a timing and took a process down did so in the race, and would again.
        timed = {each.config for each in known.measurements if each.median is not None}
        race = timed.isdisjoint(each.config for each in job.crashes)
        seconds = job.seconds or request.budget.seconds
        request = replace(request, budget=replace(request.budget, seconds=seconds, race=race))
        self._tell({"event": "case", "case": job.case, "due": len(request.due_configs(known))})
        resolver = Resolver(
            TieredStore([self.journal]), Mode.TUNE, 0.0, current_settings(), before=self._before
        )
        resolution, measured = resolver.resolve(request, wait=job.wait)
        known = self._recorded(request)
        pinned = resolution.how == "pinned"
        due = 0 if pinned else len(request.due_configs(known))
        status = "tuned" if measured else "known"
        if not (measured or pinned) and resolution.how != "tuned" and request.has_work(known):
            status = "busy"  # another process holds the lease
        elif due and job.seconds is not None:
            status = "partial"
        return CaseOutcome(status=status, measured=measured, due=due, **told)

    def _recorded(self, request: Request) -> Record:
        found = self.journal.get(request.context, request.scenario, fresh=True)
        return found.record if found else Record(scenario=request.scenario)

    def _before(self, config: Config) -> None:
        self._tell({"event": "config", "config": config.model_dump()})

    def _due(self, request: Request) -> list[Config]:
        return request.due_configs(self._recorded(request))

    def _estimate(self, request: Request, due: int) -> float | None:
        records = self.journal.records(request.context)
        taken = [
            each.seconds for record in records for each in record.measurements if not each.skipped
        ]
        return due * sum(taken) / len(taken) if taken else None

    def _note_crashes(self, request: Request, crashes: tuple[ConfigCrash, ...]) -> None:
        due = set(self._due(request))
        taken = tuple(
            Measurement(
                config=each.config,
                failure=Failure(kind="crash", reason=each.reason),
                at=now(),
                by=whoami(),
            )
            for each in crashes
            if each.config in due
        )
        if taken:
            self.journal.put(
                request.context, [Record(scenario=request.scenario, measurements=taken)]
            )

    def _verify(self, job: CaseJob, request: Request, told: Mapping[str, str]) -> CaseOutcome:
        """Measures the winner again, and keeps nothing of it."""
        found = self.journal.get(request.context, request.scenario, fresh=True)
        best = found and winner(found.record, set(request.declared), describe(request.default))
        if found is None or best is None:
            return CaseOutcome(status="due", due=len(request.declared), **told)
        again: list[Measurement] = []
        launch = CandidateLaunch(
            request.autotuner, request.declared, best, request.args, request.kwargs
        )
        Tuner(launch, again.append, before=self._before).remeasure(best)
        taken, recorded = again[-1], found.record.by_config[best].median
        if taken.failure is not None:
            status = "skipped" if taken.skipped else "failed"
            return CaseOutcome(
                status=status,
                message=f"{best}: {taken.failure.kind}: {taken.failure.reason}",
                **told,
            )
        return CaseOutcome(
            status="verified", recorded=recorded, again=taken.median, message=str(best), **told
        )


def _patient(store: Store) -> Store:
    """A launch waits a moment for a server; a sweep would rather wait than measure what is known."""
    for tier in store.tiers if isinstance(store, TieredStore) else [store]:
        if hasattr(tier, "wait"):
            tier.wait = SERVER_WAIT
    return store


def _missed(
    suite: Suite, cases: Sequence[Case], misses: Sequence[MissedScenario]
) -> Iterator[tuple[Case, MissedScenario]]:
    """The cases that a suite makes for misses on this device, of the kernels that its own cases have.

    If it raises over one, that is what becomes of this miss's case.
    """
    kernels = {
        kernel_name(layer.fn) for case in cases for layer in _layers(case.kernel) if _is_ours(layer)
    }
    device = current_environment(
        INTERPRETER_INDEX if is_interpreting() else current_device()
    ).device.name
    for miss in misses:
        if miss.kernel not in kernels or miss.device != device:
            continue
        try:
            case = suite.case_for(miss.kernel, miss.scenario)
        except Exception as error:
            case = Case(f"{miss.kernel}{miss.scenario}", None, None, partial(_raise, error))
        if case is not None:
            yield case, miss


def _raise(error: Exception) -> Mapping[str, Any]:
    raise error


def _layers(kernel: Any) -> Iterator[Any]:
    """A kernel and what it is wrapped around, down to our autotuner, if there is one."""
    yield kernel
    while not _is_ours(kernel) and (kernel := getattr(kernel, "fn", None)) is not None:
        yield kernel


def _is_ours(layer: Any) -> bool:
    return isinstance(layer, CachedAutotuner)


def _request(case: Case) -> Request:
    """What a launch of the case would ask for; outer heuristics add their arguments as they would there."""
    named = dict(case.arguments())
    *outer, kernel = _layers(case.kernel)
    if not _is_ours(kernel):
        raise SettingsError(f"case {case.name}: its kernel is not decorated with @cached_autotune")
    for layer in outer:
        for name, heuristic in getattr(layer, "values", {}).items():
            named[name] = heuristic(dict(named))
    args = []
    for name in kernel.arg_names:  # by position as far as they go: pruning functions look there
        if name not in named:
            break
        args.append(named.pop(name))
    request: Request = kernel.request(*args, grid=case.grid, warmup=False, **named)
    return request


def _miss(request: Request) -> MissedScenario:
    context = request.context
    return MissedScenario(
        kernel=context.kernel.name,
        device=context.environment.device.name,
        scenario=request.scenario,
    )


def _told(miss: MissedScenario) -> dict[str, str]:
    return {"kernel": miss.kernel, "device": miss.device, "scenario": str(miss.scenario)}


def _device_works() -> bool:
    """Whether the device of this process can still be used, after something was raised."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return True
    try:
        torch.cuda.synchronize()
    except Exception:
        return False
    return True


class _Jobs:
    """The jobs that come in; whoever is busy when there are no more is interrupted, since nobody waits any longer."""

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


def main(lines: IO[str], out: IO[str]) -> int:
    """Reads a spec, then jobs, until there are no more lines; says what happens on `out`."""
    lock = threading.Lock()

    def tell(event: Mapping[str, Any]) -> None:
        with lock, suppress(BrokenPipeError):
            out.write(json.dumps(event) + "\n")
            out.flush()

    try:
        worker = SweepWorker(SweepSpec.model_validate_json(lines.readline()), tell)
    except Exception as error:
        message = (
            str(error) if isinstance(error, DejavuError) else f"{type(error).__name__}: {error}"
        )
        tell(
            {
                "event": "refused",
                "message": message,
                "store": isinstance(error, StoreError | OSError),
            }
        )
        return 2
    tell({"event": "ready", "cases": list(worker.cases), "kept": str(worker.journal.path)})
    with worker.journal, suppress(KeyboardInterrupt):
        for job in _Jobs(lines):
            try:
                outcome = worker.do(job)
            except Exception as error:
                tell({"event": "crash", "reason": f"{type(error).__name__}: {error}"[:2000]})
                return FATAL
            tell({"event": "outcome", "outcome": outcome.model_dump()})
    return 0


def _interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _interrupt)
    # What kernels and suites print must not get between the events, nor what they read come from the jobs.
    jobs = os.fdopen(os.dup(0), encoding="utf-8")
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    code = main(jobs, events)
    sys.stderr.flush()
    os._exit(
        code
    )  # a device in a bad state, or a thread that waits for it, would hold up an orderly end
