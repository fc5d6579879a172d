"""The request that a launch of a case would make, and its tuning into a store."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

from ..errors import SettingsError
from ..model.record import Failure, Measurement, Record
from ..model.scenario import Config
from ..runtime.autotuner import CachedAutotuner
from ..runtime.launch_recorder import pause_recording
from ..runtime.request import Request, Resolution
from ..runtime.resolver import Resolver
from ..runtime.tune import announce
from ..settings import Mode
from ..stores import Store, TieredStore
from ..system.worker_process import ParentConnection
from ..triton_internals.compilation import keys_in_memory, release_later
from ..triton_internals.identity import find_jit_function
from ..tuning.benchmark_methods import is_called_once
from ..tuning.compile_ahead import failed_measurement
from ..tuning.measurement_marks import MeasurementMark
from ..tuning.tuner import Tuner
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
    """Measures requests as a job asks for it.

    Args:
        job: the job, with its limit of time and the configs that took down its workers.
        parent: receives the events `case` (a case's measurements begin) and `config` (a config is
            about to be measured).
        store: where records are written.
    """

    def __init__(self, job: CaseJob, parent: ParentConnection, store: Store) -> None:
        """Begin the job's time."""
        self._job = job
        self._parent = parent
        self._store = store
        self._deadline = time.monotonic() + (math.inf if job.seconds is None else job.seconds)

    @property
    def is_over(self) -> bool:
        """Return whether the job's time is used up."""
        return time.monotonic() > self._deadline

    @property
    def crashes(self) -> list[Measurement]:
        """The configs that took down workers, as measurements to record."""
        return [
            failed_measurement(config, Failure(kind="crash", reason=reason))
            for config, reason in self._job.crashes
        ]

    def tune(self, request: Request) -> tuple[Resolution, int]:
        """Tune a request.

        Returns:
            The resolution, and the number of configs that were measured.

        Raises:
            NoValidConfigError: every config failed.
        """
        if self.crashes:
            crashed = Record(scenario=request.scenario, measurements=tuple(self.crashes))
            self._store.put(request.context, [crashed])
        if self._job.seconds is not None:
            seconds = max(self._deadline - time.monotonic(), 0.001)
            request = replace(request, budget=replace(request.budget, seconds=seconds))
        self._parent.send("case", case=self._job.case)
        resolver = Resolver(TieredStore([self._store]), Mode.TUNE, parent=self._parent)
        return resolver.resolve(request, wait=self._job.wait)

    def time(
        self,
        case: str,
        request: Request,
        configs: Sequence[Config],
        keep: Callable[[Sequence[Measurement]], None],
        earlier: Sequence[Measurement] = (),
    ) -> int:
        """Measure some of a request's configs, and return how many were measured.

        Args:
            case: name of the request's case.
            request: the request.
            configs: the configs to measure.
            keep: is called with each measurement, and again with those that a race has refined.
            earlier: measurements that take part in the race.
        """
        self._parent.send("case", case=case)
        mark = MeasurementMark(request.context, request.scenario)
        function = find_jit_function(request.autotuner)
        in_memory = keys_in_memory(function)

        @contextmanager
        def around(config: Config) -> Iterator[None]:
            self.announce(config)
            with mark.around(config):
                yield

        with closing(mark), pause_recording(request.autotuner):
            tuner = Tuner(
                request.candidate_launch(),
                keep,
                race=not is_called_once(request.context.problem.method),
                until=self._deadline,
                around=around,
                earlier=earlier,
            )
            measured = tuner.tune(configs)
        if function is not None:
            release_later(function, in_memory, None)
        return measured

    def announce(self, config: Config) -> None:
        """Tell the parent which config is about to touch the device."""
        announce(self._parent, config)
