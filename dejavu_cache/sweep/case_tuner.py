"""The request that a launch of a case would make, and its tuning into a store."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from ..errors import SettingsError
from ..model.record import Failure, Record
from ..model.resolution import Resolution
from ..model.scenario import Config
from ..runtime.autotuner import CachedAutotuner
from ..runtime.request import Request
from ..runtime.resolver import Resolver
from ..runtime.rules import due_configs
from ..runtime.tune import announce
from ..settings import Mode
from ..stores import Store, TieredStore
from ..system.worker_process import ParentConnection
from ..tuning.compile_ahead import failed_measurement
from .hosts import CaseJob
from .suite import Case

__all__ = ["CaseTuner", "current_record", "make_request"]


def make_request(case: Case) -> Request:
    """Return the request that a launch of a case would make.

    `triton.heuristics` around the autotuner add their arguments, as they would in a launch.

    Raises:
        SettingsError: the case's kernel is not decorated with `cached_autotune`.
        Exception: any error of the case's arguments.
    """
    arguments = dict(case.arguments())
    kernel = case.kernel
    while not isinstance(kernel, CachedAutotuner):
        for name, heuristic in getattr(kernel, "values", {}).items():
            arguments[name] = heuristic(dict(arguments))
        kernel = getattr(kernel, "fn", None)
        if kernel is None:
            raise SettingsError(
                f"case {case.name}: its kernel is not decorated with @cached_autotune"
            )
    positional = []
    for name in kernel.arg_names:  # by position where possible, as pruning functions expect
        if name not in arguments:
            break
        positional.append(arguments.pop(name))
    return kernel.request(*positional, grid=case.grid, warmup=False, **arguments)


def current_record(request: Request, store: Store) -> Record:
    """Return the record of a request's scenario, which may be empty."""
    stored = store.get(request.context, request.scenario, fresh=True)
    return stored.record if stored else Record(scenario=request.scenario)


class CaseTuner:
    """Tunes requests as a job asks for it.

    Args:
        job: the job, with its limit of time and the configs that took down its workers.
        parent: receives the events `case` (a case's measurements begin) and `config` (a config is
            about to be measured).
    """

    def __init__(self, job: CaseJob, parent: ParentConnection) -> None:
        """Begin the job's time."""
        self._job = job
        self._parent = parent
        self._deadline = time.monotonic() + (math.inf if job.seconds is None else job.seconds)

    @property
    def is_over(self) -> bool:
        """Return whether the job's time is used up."""
        return time.monotonic() > self._deadline

    def tune(self, case: str, request: Request, store: Store) -> tuple[Resolution, int]:
        """Tune a case's request into a store.

        Returns:
            The resolution, and the number of configs that were measured.

        Raises:
            NoValidConfigError: every config failed.
        """
        record = self._record_crashes(request, store)
        # A config that has a timing and still took a process down did so in the final race of the
        # best configs, and would do so again.
        timed = {entry.config for entry in record.measurements if entry.median is not None}
        race = timed.isdisjoint(crash.config for crash in self._job.crashes)
        seconds = request.budget.seconds
        if self._job.seconds is not None:
            seconds = max(self._deadline - time.monotonic(), 0.001)
        request = replace(request, budget=replace(request.budget, seconds=seconds, race=race))
        self._parent.send("case", case=case, due=len(due_configs(request, record)))
        resolver = Resolver(TieredStore([store]), Mode.TUNE, parent=self._parent)
        return resolver.resolve(request, wait=self._job.wait)

    def announce(self, config: Config) -> None:
        """Tell the parent which config is about to touch the device."""
        announce(self._parent, config)

    def _record_crashes(self, request: Request, store: Store) -> Record:
        """Record the configs that took down workers, and return the scenario's record."""
        record = current_record(request, store)
        due = set(due_configs(request, record))
        failures = tuple(
            failed_measurement(crash.config, Failure(kind="crash", reason=crash.reason))
            for crash in self._job.crashes
            if crash.config in due
        )
        if not failures:
            return record
        store.put(request.context, [Record(scenario=request.scenario, measurements=failures)])
        return current_record(request, store)
