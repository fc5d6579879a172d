"""Tune one case of a sweep into a store."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from ..model.record import Failure, Record
from ..model.resolution import Resolution
from ..model.scenario import Config
from ..runtime.request import Request
from ..runtime.resolver import Resolver
from ..settings import Mode, current_settings
from ..stores import Store, TieredStore
from ..system.worker_connection import ParentConnection
from ..tuning.config_failures import failed_measurement
from .messages import CaseJob

__all__ = ["CaseTuner", "current_record"]


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
        self._record_crashes(request, store)
        record = current_record(request, store)
        # A config that has a timing and still took a process down did so in the final race of the
        # best configs, and would do so again.
        timed = {entry.config for entry in record.measurements if entry.median is not None}
        race = timed.isdisjoint(crash.config for crash in self._job.crashes)
        seconds = request.budget.seconds
        if self._job.seconds is not None:
            seconds = max(self._deadline - time.monotonic(), 0.001)
        request = replace(request, budget=replace(request.budget, seconds=seconds, race=race))
        self._parent.send("case", case=case, due=len(request.due_configs(record)))
        resolver = Resolver(
            TieredStore([store]),
            Mode.TUNE,
            0.0,
            current_settings(),
            before=self.announce,
            expendable=True,
        )
        return resolver.resolve(request, wait=self._job.wait)

    def announce(self, config: Config) -> None:
        """Tell the parent which config is about to touch the device."""
        self._parent.send("config", config=config.model_dump())

    def _record_crashes(self, request: Request, store: Store) -> None:
        due = set(request.due_configs(current_record(request, store)))
        failures = tuple(
            failed_measurement(crash.config, Failure(kind="crash", reason=crash.reason))
            for crash in self._job.crashes
            if crash.config in due
        )
        if failures:
            store.put(request.context, [Record(scenario=request.scenario, measurements=failures)])
