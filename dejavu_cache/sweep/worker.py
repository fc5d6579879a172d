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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import IO, Any

from ..autotune import CachedAutotuner
from ..configs import describe
from ..errors import DejavuError, NoValidConfigError, SettingsError
from ..provenance import whoami
from ..records import Config, Failure, Measurement, Record, now
from ..resolver import Request, Resolver
from ..selection import winner
from ..settings import Mode, current_settings
from ..stores import Store, TieredStore, open_store
from ..tuning.benchmark import is_out_of_memory
from ..tuning.tuner import Launch, Tuner
from .journal import Journal
from .messages import Crash, Job, Miss, Outcome, Spec
from .suite import Case, load_suite

__all__ = ["main"]

SERVER_WAIT = 30.0
"""Seconds that a server may take to answer."""

FATAL = 70
"""The exit code of a worker whose device can no longer be used."""


class Worker:
    """One process's part of a sweep.

    Args:
        tell: sends an event to the parent.
    """

    def __init__(self, spec: Spec, tell: Callable[[Mapping[str, Any]], None]) -> None:
        self._tell = tell
        self._misses = None if spec.misses is None else set(spec.misses)
        suite = load_suite(spec.suite)
        cases = {case.name: case for case in suite.listed(spec.options)}
        if spec.misses is not None and suite.for_scenario is not None:
            wanted = (suite.for_scenario(each.kernel, each.scenario) for each in spec.misses)
            cases = {**{case.name: case for case in wanted if case is not None}, **cases}
        self.cases = cases
        self.journal = Journal(_patient(open_store(spec.store)))

    def do(self, job: Job) -> Outcome:
        """Does a job; what goes wrong with the case is the outcome, what goes wrong with the device is raised."""
        start = time.perf_counter()
        try:
            outcome = self._do(job)
        except NoValidConfigError as error:
            outcome = Outcome(case=job.case, status="failed", message=str(error))
        except Exception as error:
            if not isinstance(error, DejavuError) and not _device_works():
                raise
            status = "skipped" if is_out_of_memory(error) else "failed"
            outcome = Outcome(case=job.case, status=status, message=f"{type(error).__name__}: {error}"[:2000])
        return outcome.model_copy(update={"seconds": round(time.perf_counter() - start, 3)})

    def _do(self, job: Job) -> Outcome:
        case = self.cases[job.case]
        request = _request(case)
        told = {"case": job.case, "scenario": str(request.scenario)}
        if self._misses is not None and _miss(request) not in self._misses:
            return Outcome(status="unwanted", **told)
        if job.do == "plan":
            due = len(self._due(request))
            return Outcome(status="due" if due else "known", due=due, estimate=self._estimate(request, due), **told)
        if job.do == "verify":
            return self._verify(job, request, told)
        return self._measure(job, request, told)

    def _measure(self, job: Job, request: Request, told: Mapping[str, str]) -> Outcome:
        self._note_crashes(request, job.crashes)
        known = self._recorded(request)
        # What has a timing and took a process down did so in the race, and would again.
        timed = {each.config for each in known.measurements if each.median is not None}
        race = timed.isdisjoint(each.config for each in job.crashes)
        plan = replace(request.plan, seconds=job.seconds or request.plan.seconds, race=race)
        request = replace(request, plan=plan)
        self._tell({"event": "case", "case": job.case, "due": len(request.due(known))})
        resolver = Resolver(TieredStore([self.journal]), Mode.TUNE, 0.0, current_settings(), before=self._before)
        resolution, measured = resolver.resolve(request, wait=job.wait)
        known = self._recorded(request)
        pinned = resolution.how == "pinned"
        due = 0 if pinned else len(request.due(known))
        status = "tuned" if measured else "known"
        if not (measured or pinned) and resolution.how != "tuned" and request.unfinished(known):
            status = "busy"  # another process holds the lease
        elif due and job.seconds is not None:
            status = "partial"
        return Outcome(status=status, measured=measured, due=due, **told)

    def _recorded(self, request: Request) -> Record:
        found = self.journal.get(request.context, request.scenario, fresh=True)
        return found.record if found else Record(scenario=request.scenario)

    def _before(self, config: Config) -> None:
        self._tell({"event": "config", "config": config.model_dump()})

    def _due(self, request: Request) -> list[Config]:
        found = self.journal.get(request.context, request.scenario, fresh=True)
        return request.due(found.record if found else None)

    def _estimate(self, request: Request, due: int) -> float | None:
        records = self.journal.records(request.context)
        taken = [each.seconds for record in records for each in record.measurements if not each.skipped]
        return due * sum(taken) / len(taken) if taken else None

    def _note_crashes(self, request: Request, crashes: tuple[Crash, ...]) -> None:
        due = set(self._due(request))
        taken = tuple(
            Measurement(config=each.config, failure=Failure(kind="crash", reason=each.reason), at=now(), by=whoami())
            for each in crashes
            if each.config in due
        )
        if taken:
            self.journal.put(request.context, [Record(scenario=request.scenario, measurements=taken)])

    def _verify(self, job: Job, request: Request, told: Mapping[str, str]) -> Outcome:
        """Measures the winner again, and keeps nothing of it."""
        found = self.journal.get(request.context, request.scenario, fresh=True)
        best = found and winner(found.record, set(request.declared), describe(request.default))
        if found is None or best is None:
            return Outcome(status="due", due=len(request.declared), **told)
        again: list[Measurement] = []
        launch = Launch(request.autotuner, request.declared, best, request.args, request.kwargs)
        Tuner(launch, again.append, before=self._before).again(best)
        recorded = found.record.by_config[best].median
        return Outcome(status="verified", recorded=recorded, again=again[-1].median, message=str(best), **told)


def _patient(store: Store) -> Store:
    """A launch waits a moment for a server; a sweep would rather wait than measure what is known."""
    for tier in store.tiers if isinstance(store, TieredStore) else [store]:
        if hasattr(tier, "wait"):
            tier.wait = SERVER_WAIT
    return store


def _request(case: Case) -> Request:
    """What a launch of the case would ask for; outer heuristics add their arguments as they would there."""
    named = dict(case.arguments())
    kernel = case.kernel
    while not isinstance(kernel, CachedAutotuner):
        for name, heuristic in getattr(kernel, "values", {}).items():
            named[name] = heuristic(dict(named))
        kernel = getattr(kernel, "fn", None)
        if kernel is None:
            raise SettingsError(f"case {case.name}: its kernel is not decorated with @cached_autotune")
    args = []
    for name in kernel.arg_names:  # by position as far as they go: pruning functions look there
        if name not in named:
            break
        args.append(named.pop(name))
    return kernel.request(*args, grid=case.grid, warmup=False, **named)


def _miss(request: Request) -> Miss:
    context = request.context
    return Miss(kernel=context.kernel.name, device=context.environment.device.name, scenario=request.scenario)


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
    """The jobs on standard input; whoever is busy when the input ends is interrupted, since nobody waits any more."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._busy = False
        threading.Thread(target=self._read, name="dejavu-cache jobs", daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._queue.put(line)
        self._queue.put(None)
        if self._busy:
            _thread.interrupt_main()

    def __iter__(self) -> Iterator[Job]:
        while (line := self._queue.get()) is not None:
            self._busy = True
            yield Job.model_validate_json(line)
            self._busy = False


def main(out: IO[str]) -> int:
    """Reads a spec, then jobs, until the input ends; says what happens on `out`."""
    lock = threading.Lock()

    def tell(event: Mapping[str, Any]) -> None:
        with lock, suppress(BrokenPipeError):
            out.write(json.dumps(event) + "\n")
            out.flush()

    try:
        worker = Worker(Spec.model_validate_json(sys.stdin.readline()), tell)
    except DejavuError as error:
        tell({"event": "refused", "message": str(error)})
        return 2
    tell({"event": "ready", "cases": list(worker.cases), "kept": str(worker.journal.path)})
    with worker.journal, suppress(KeyboardInterrupt):
        for job in _Jobs():
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
    # What kernels and suites print must not get between the events.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    code = main(events)
    sys.stderr.flush()
    os._exit(code)  # a device in a bad state, or a thread that waits for it, would hold up an orderly end
