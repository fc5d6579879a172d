"""The request that a launch of a case would make, and its tuning into a store."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import SettingsError
from ..model.record import Failure, Record
from ..model.resolution import Resolution
from ..model.scenario import Config, Context, Scenario
from ..runtime.autotuner import CachedAutotuner
from ..runtime.request import Request
from ..runtime.resolver import Resolver
from ..runtime.rules import due_configs
from ..runtime.tune import announce
from ..settings import Mode
from ..stores import Store, TieredStore
from ..system.worker_process import ParentConnection
from ..triton_internals.environment import (
    INTERPRETER_INDEX,
    current_device,
    current_environment,
    is_interpreting,
)
from ..triton_internals.identity import kernel_name
from ..tuning.compile_ahead import failed_measurement
from .hosts import CaseJob, MissedScenario
from .suite import Case, Suite

__all__ = ["CaseTuner", "cases_of_misses", "current_record", "make_request", "requested_scenario"]


def make_request(case: Case) -> Request:
    """Return the request that a launch of a case would make.

    `triton.heuristics` around the autotuner add their arguments, as they would in a launch.

    Raises:
        SettingsError: the case's kernel is not decorated with `cached_autotune`, or its arguments
            are not a function that returns them by name.
    """
    arguments = _make_arguments(case)
    *outer_layers, autotuner = _decorator_layers(case.kernel)
    if not isinstance(autotuner, CachedAutotuner):
        raise SettingsError(f"case {case.name}: its kernel is not decorated with @cached_autotune")
    for layer in outer_layers:
        for name, heuristic in getattr(layer, "values", {}).items():
            arguments[name] = heuristic(dict(arguments))
    positional = []
    for name in autotuner.arg_names:  # by position where possible, as pruning functions expect
        if name not in arguments:
            break
        positional.append(arguments.pop(name))
    return autotuner.request(*positional, grid=case.grid, warmup=False, **arguments)


def _make_arguments(case: Case) -> dict[str, Any]:
    made: object = case.arguments() if callable(case.arguments) else None
    if not isinstance(made, Mapping):
        raise SettingsError(
            f"case {case.name}: arguments is not a function that returns a dict of them by name"
        )
    return dict(made)


def requested_scenario(context: Context, scenario: Scenario) -> MissedScenario:
    """Return a request's scenario as a program that missed it would report it."""
    return MissedScenario(
        kernel=context.kernel.name, device=context.environment.device.name, scenario=scenario
    )


def cases_of_misses(
    suite: Suite, cases: Sequence[Case], misses: Sequence[MissedScenario]
) -> Iterator[tuple[Case, MissedScenario]]:
    """Yield the cases that a suite makes for the misses of its cases' kernels on this device.

    If the suite raises for a miss, the miss's case raises the same error when its turn comes.
    """
    kernels = {
        kernel_name(layer.fn)
        for case in cases
        for layer in _decorator_layers(case.kernel)
        if isinstance(layer, CachedAutotuner)
    }
    index = INTERPRETER_INDEX if is_interpreting() else current_device()
    device = current_environment(index).device.name
    for miss in misses:
        if miss.kernel not in kernels or miss.device != device:
            continue
        try:
            made = suite.cases_for(miss.kernel, miss.scenario)
        except Exception as error:
            made = [Case(f"{miss.kernel}{miss.scenario}", None, None, partial(_raise, error))]
        for case in made:
            yield case, miss


def _raise(error: Exception) -> Mapping[str, Any]:
    raise error


def _decorator_layers(kernel: Any) -> Iterator[Any]:
    """Yield a kernel and the layers below it, down to the cached autotuner if it has one."""
    yield kernel
    while not isinstance(kernel, CachedAutotuner):
        kernel = getattr(kernel, "fn", None)
        if kernel is None:
            return
        yield kernel


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
