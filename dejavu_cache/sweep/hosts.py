"""Hosts of a sweep: each runs jobs in a worker process, here or on a machine of a Ray cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from ..errors import SettingsError
from ..model.scenario import Config, FrozenModel, Scenario
from ..model.worth import Worth
from ..system.workers import Worker, WorkerLostError
from .journal import hand_over_what_is_left

Task = Literal["identify", "measure"]
"""What a worker does with a case: tell its scenario and whether it has work, or tune it."""


class MissedScenario(FrozenModel):
    """A scenario that programs launched on a device without finding a record."""

    kernel: str
    device: str
    scenario: Scenario


class SweepSpec(FrozenModel):
    """The subject of a sweep: everything that its workers must know before the first job.

    Attributes:
        suite: the suite as `load_suite` takes it.
        options: the suite's options by name.
        store: URL of the store to read and write.
        misses: if not None, only these scenarios are measured; each with its launches.
        loss: the share by which a config that is not measured may be faster; 0 measures all.
    """

    suite: str
    options: Mapping[str, str] = Field(default_factory=dict)
    store: str
    misses: tuple[tuple[MissedScenario, int], ...] | None = None
    loss: float = 0.0


class CaseJob(FrozenModel):
    """A task for one case.

    Attributes:
        do: what to do with the case.
        case: the case's name.
        group: names of all cases of the case's scenario, in order, if they are several.
        wait: seconds to wait for another process that tunes the case.
        until: when its time is over, in seconds of `time.time`, which machines of a cluster share;
            None is without limit.
        crashes: configs of the case that ended worker processes, and the reasons.
        worth: what its tune is expected to save; None if nobody asked.
        compiles: whether what its tune measures first is compiled before any tune.
    """

    do: Task
    case: str
    group: tuple[str, ...] = ()
    wait: float = 0.0
    until: float | None = None
    crashes: tuple[tuple[Config, str], ...] = ()
    worth: Worth | None = None
    compiles: bool = False


class CaseOutcome(FrozenModel):
    """The outcome of a job.

    Attributes:
        key: identifies the context and the scenario; empty if the case failed before.
        scenario, kernel, device: what the case launches; empty if the case failed before that was
            clear.
        status: `tuned`; `known`, if nothing was left to measure; `partial`, if time ran out;
            `busy`, if another process tunes the case; `unwanted`, if no program missed it;
            `unworthy`, if its tune takes longer than what it saves;
            `skipped`, if its arguments do not fit into memory; `failed`; for a plan, `due`.
        measured: number of configs that were measured.
        seconds: duration of the job.
        message: details for the user.
        worth: what its tune is expected to save or has saved; None if nobody asked.
    """

    case: str
    status: str
    key: str = ""
    scenario: str = ""
    kernel: str = ""
    device: str = ""
    measured: int = 0
    seconds: float = 0.0
    message: str = ""
    worth: Worth | None = None


class CaseLoss(FrozenModel):
    """The end of a worker, or of its device's context, during a job.

    Attributes:
        config: the config that was being measured, if any.
        reason: the worker's last error, or how its process ended.
        is_convicted: whether the job has caused it, since the worker reported that, or hung; else
            somebody may have killed the process, or its machine is gone.
    """

    config: Config | None
    reason: str
    is_convicted: bool


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


@dataclass(eq=False)
class LocalHost:
    """A place on this machine that runs jobs, one at a time.

    Args:
        spec: the subject of the sweep.
        environment: environment variables that the worker gets in addition to this process's, such
            as those that select its GPU.
        patience: seconds without an event after which the worker is considered hung.
    """

    spec: SweepSpec
    environment: Mapping[str, str] = field(default_factory=dict)
    patience: float = PATIENCE

    def __post_init__(self) -> None:
        """Set up the host; its worker starts with the first request."""
        environment = {**os.environ, **self.environment}
        self.worker = Worker(
            "dejavu_cache.sweep.worker", self.spec, environment, GRACE, self.patience
        )

    def start(self) -> list[str]:
        """Start the worker if none runs, and return the names of all cases.

        Raises:
            DejavuError: none can be started.
        """
        try:
            return list(self.worker.start()["cases"])
        except WorkerLostError as error:
            raise WorkerLostError(f"no worker can be started: {error}") from None

    def run(self, job: CaseJob) -> CaseOutcome | CaseLoss:
        """Run a job in the worker, and return its outcome, or how the worker was lost.

        The next job gets a new worker.
        """
        try:
            return CaseOutcome.model_validate(self.worker.run(job))
        except WorkerLostError as error:
            measured = error.last_event.get("config")
            return CaseLoss(
                config=None if measured is None else Config.model_validate(measured),
                reason=str(error),
                is_convicted=error.is_convicted,
            )

    def close(self) -> None:
        """Stop the worker if one runs; its measurements are kept."""
        self.worker.close()

    def unsaved_journals(self) -> list[str]:
        """Return this user's journal if the store does not take all of it, after `close`."""
        return hand_over_what_is_left(self.spec.store)


NEW_ACTOR_EVERY = 1.0
"""Seconds between two attempts to start an actor."""


def ray_hosts(spec: SweepSpec, address: str) -> list[RayHost]:
    """Return one host per GPU of a cluster, or one per CPU if it has no GPUs.

    The suite must be importable on every machine, and every machine must reach the store. The
    address is as `ray.init` takes it: `auto`, `ray://head:10001`, `head:6379`, or `local` for a new
    cluster on this machine.

    Raises:
        SettingsError: no cluster answers at the address.
    """
    import ray

    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level="warning")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise SettingsError(f"--ray {address}: no cluster answers there: {error}") from error
    resources = ray.cluster_resources()
    kind = "GPU" if resources.get("GPU") else "CPU"
    return [RayHost(spec, {f"num_{kind.lower()}s": 1}) for _ in range(int(resources.get(kind, 0)))]


@dataclass(eq=False)
class RayHost:
    """A `LocalHost` in a Ray actor.

    If the actor is lost, another one is started on any machine with free resources.

    Args:
        spec: the subject of the sweep.
        resources: the resources that the actor occupies: `num_gpus` or `num_cpus`.
    """

    spec: SweepSpec
    resources: Mapping[str, float]
    _actor: Any = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)
    _journals: list[str] = field(default_factory=list, init=False)

    def start(self) -> list[str]:
        """Start the actor and its worker, and return the names of all cases."""
        import ray

        while not self._closed:
            try:
                return list(ray.get(self._running_actor().start.remote()))
            except ray.exceptions.RayActorError:
                self._actor = None
                time.sleep(NEW_ACTOR_EVERY)
        return []

    def run(self, job: CaseJob) -> CaseOutcome | CaseLoss:
        """Run a job in the actor's worker."""
        import ray

        try:
            outcome: CaseOutcome | CaseLoss = ray.get(self._running_actor().run.remote(job))
        except ray.exceptions.RayActorError as error:
            self._actor = None
            reason = f"its machine or its actor is gone: {error}"[:500]
            return CaseLoss(config=None, reason=reason, is_convicted=False)
        return outcome

    def close(self) -> None:
        """Stop the worker and the actor, and remember what its machine keeps."""
        import ray

        self._closed = True
        actor, self._actor = self._actor, None
        if actor is not None:
            with suppress(Exception):  # the actor may be gone already
                ray.get(actor.close.remote(), timeout=20)
                self._journals = ray.get(actor.unsaved_journals.remote(), timeout=20)
            with suppress(Exception):
                ray.kill(actor)

    def unsaved_journals(self) -> list[str]:
        """Return the journals on the actor's machine that the store has not accepted."""
        return self._journals

    def _running_actor(self) -> Any:
        import ray

        if self._actor is None:
            # While a job runs, `close` has a turn too.
            make = ray.remote(**self.resources, max_concurrency=2)(LocalHost)
            self._actor = make.remote(self.spec)
        return self._actor


SweepHost = LocalHost | RayHost
