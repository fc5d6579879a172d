"""Hosts of a sweep: each runs jobs in a worker process, which it replaces when it is lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from ..errors import DejavuError, SettingsError, StoreError
from ..model.scenario import Config
from ..system.fork_lock import ForkLock
from ..system.worker_process import WorkerLostError, WorkerProcess
from .journal import abandoned_journals
from .messages import CaseJob, CaseOutcome, SweepSpec

__all__ = ["GRACE", "HostLostError", "LocalHost", "SweepHost", "single_gpu"]

OnEvent = Callable[[Mapping[str, Any]], None]
"""Takes the events of a job, in the fields that a line of the journal has."""

Blame = Literal["config", "machine", "unknown"]

PATIENCE = 600.0
"""Seconds without an event after which a worker is considered hung.

Compiling one config may take minutes.
"""

GRACE = 15.0
"""Seconds that a worker has, when it is stopped, to hand its measurements to the store."""


def single_gpu(number: int) -> dict[str, str]:
    """Return the environment in which a process sees only one of this process's GPUs."""
    names = os.environ.get("HIP_VISIBLE_DEVICES") or os.environ.get("CUDA_VISIBLE_DEVICES") or ""
    visible = list(filter(None, names.split(",")))
    name = visible[number] if number < len(visible) else str(number)
    return {"CUDA_VISIBLE_DEVICES": name, "HIP_VISIBLE_DEVICES": name}


class HostLostError(DejavuError):
    """A worker died, or its device's context did.

    Attributes:
        config: the config that was being measured, if any.
        reason: the worker's last error, or how its process ended.
        blame: `config` if the worker reported the error itself or hung; `machine` if that is gone;
            otherwise `unknown`, since somebody may have killed the process.
    """

    def __init__(self, config: Config | None, reason: str, blame: Blame) -> None:
        """Set the reason, and the config to blame if there is one."""
        super().__init__(reason)
        self.config = config
        self.reason = reason
        self.blame = blame


class SweepHost(Protocol):
    """A place that runs jobs, one at a time."""

    def cases(self) -> list[str]:
        """Start a worker if none runs, and return the names of all cases.

        Raises:
            DejavuError: no worker can be started.
        """

    def run(self, job: CaseJob, on_event: OnEvent) -> CaseOutcome:
        """Run a job and return its outcome.

        Raises:
            HostLostError: the worker was lost; the next job gets a new one.
        """

    def close(self) -> None:
        """Stop the worker; its measurements are kept."""

    def unsaved_journals(self) -> list[str]:
        """Return the journals that the store has not accepted; call this after `close`."""


class LocalHost:
    """A host on this machine.

    Args:
        spec: the subject of the sweep.
        environment: environment variables that the worker gets in addition to this process's, such
            as those that select its GPU.
        patience: seconds without an event after which the worker is considered hung.
    """

    def __init__(
        self,
        spec: SweepSpec,
        environment: Mapping[str, str] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """Set up the host; its worker starts with the first request."""
        self._spec = spec
        self._environment = {**os.environ, "DEJAVU_CACHE_PROGRESS": "0", **(environment or {})}
        self._patience = patience
        self._worker: WorkerProcess | None = None
        self._cases: list[str] = []
        self._starting, self._lock = ForkLock(), ForkLock()

    def cases(self) -> list[str]:
        """Start the worker if none runs, and return the names of all cases."""
        self._running_worker()
        return self._cases

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._running_worker().pid

    def run(self, job: CaseJob, on_event: OnEvent) -> CaseOutcome:
        """Run a job in the worker, and pass its other events to a listener."""
        worker = self._running_worker()
        worker.send(job)
        config: Config | None = None
        while True:
            try:
                event = worker.receive()
            except WorkerLostError as error:
                self._detach_worker()
                if error.hung:
                    raise HostLostError(config, f"it {error}", "config") from None
                reason = f"the process that measured it {error}"
                raise HostLostError(config, reason, "unknown") from None
            if event["event"] == "outcome":
                return CaseOutcome.model_validate(event["outcome"])
            if event["event"] == "crash":
                self._detach_worker()
                worker.kill()
                raise HostLostError(config, event["reason"], "config")
            if event["event"] == "config":
                config = Config.model_validate(event["config"])
            on_event(event)

    def close(self) -> None:
        """Stop the worker if one runs."""
        worker = self._detach_worker()
        if worker is not None:
            worker.stop()

    def unsaved_journals(self) -> list[str]:
        """Return the journals in this user's cache folder that the store has not accepted."""
        return [str(path) for path in abandoned_journals(self._spec.store)]

    def _running_worker(self) -> WorkerProcess:
        with self._starting:
            return self._worker or self._start_worker()

    def _start_worker(self) -> WorkerProcess:
        worker = WorkerProcess(
            "dejavu_cache.sweep.worker", self._environment, grace=GRACE, patience=self._patience
        )
        with self._lock:
            self._worker = worker  # so that `close` stops it while it starts
        worker.send(self._spec)
        try:
            event = worker.receive()
        except WorkerLostError as error:
            self._detach_worker()
            reason = f"no worker can be started: it {error}"
            raise HostLostError(None, reason, "config") from None
        except KeyboardInterrupt:
            self._detach_worker()
            worker.kill()
            raise
        if event["event"] == "refused":
            self._detach_worker()
            worker.stop()
            raise (StoreError if event["store"] else SettingsError)(event["message"])
        self._cases = event["cases"]
        return worker

    def _detach_worker(self) -> WorkerProcess | None:
        """Forget the worker, so that the next job starts a new one, and return it."""
        with self._lock:
            worker, self._worker = self._worker, None
            return worker
