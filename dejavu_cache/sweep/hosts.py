"""Hosts of a sweep: each runs jobs in a worker process, here or on a machine of a Ray cluster."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, Protocol

from pydantic import Field

from ..errors import DejavuError, SettingsError
from ..model.scenario import Config, FrozenModel, Scenario
from ..system.worker_process import OnEvent, Worker, WorkerLostError
from .journal import abandoned_journals

__all__ = [
    "GRACE",
    "CaseJob",
    "CaseOutcome",
    "ConfigCrash",
    "HostLostError",
    "LocalHost",
    "MissedScenario",
    "RayHost",
    "SweepHost",
    "SweepSpec",
    "Task",
    "ray_hosts",
    "single_gpu",
]


Task = Literal["measure", "plan", "verify", "identify"]
"""What a sweep does with its cases: tune them, count what is left to tune, or remeasure winners.

To `identify` a case is to tell its scenario, and whether it has work.
"""


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
        misses: if not None, only these scenarios are measured.
    """

    suite: str
    options: Mapping[str, str] = Field(default_factory=dict)
    store: str
    misses: tuple[MissedScenario, ...] | None = None


class ConfigCrash(FrozenModel):
    """A config that ended its worker process, and the reason."""

    config: Config
    reason: str


class CaseJob(FrozenModel):
    """A task for one case.

    Attributes:
        do: what to do with the case.
        case: the case's name.
        group: names of all cases of the case's scenario, in order, if they are several.
        wait: seconds to wait for another process that tunes the case.
        seconds: time limit; None is without limit.
        crashes: configs of the case that are not to be tried again.
    """

    do: Task
    case: str
    group: tuple[str, ...] = ()
    wait: float = 0.0
    seconds: float | None = None
    crashes: tuple[ConfigCrash, ...] = ()


class CaseOutcome(FrozenModel):
    """The outcome of a job.

    Attributes:
        key: identifies the context and the scenario; empty if the case failed before.
        cases: number of cases of the scenario that were measured together.
        scenario, kernel, device: what the case launches; empty if the case failed before that was
            clear.
        status: `tuned`; `known`, if nothing was left to measure; `partial`, if time ran out;
            `busy`, if another process tunes the case; `unwanted`, if no program missed it;
            `skipped`, if its arguments do not fit into memory; `failed`; for a plan, `due`; for a
            verification, `verified`.
        measured: number of configs that were measured.
        due: number of configs that are left to measure.
        seconds: duration of the job.
        message: details for the user.
        estimate: seconds that measuring the due configs will take, extrapolated from earlier
            measurements; None if there are none.
        recorded, again: the winner's median in milliseconds as recorded, and as measured now.
    """

    case: str
    status: str
    key: str = ""
    cases: int = 1
    scenario: str = ""
    kernel: str = ""
    device: str = ""
    measured: int = 0
    due: int = 0
    seconds: float = 0.0
    message: str = ""
    estimate: float | None = None
    recorded: float | None = None
    again: float | None = None


PATIENCE = 600.0
"""Seconds without an event after which a worker is considered hung.

Compiling one config may take minutes.
"""

GRACE = 15.0
"""Seconds that a worker has, when it is stopped, to hand its measurements to the store."""

Blame = Literal["config", "machine", "unknown"]


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

    def start(self) -> list[str]:
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
        self._store = spec.store
        self._worker = Worker(
            "dejavu_cache.sweep.worker",
            spec,
            {**os.environ, **(environment or {})},
            grace=GRACE,
            patience=patience,
        )

    def start(self) -> list[str]:
        """Start the worker if none runs, and return the names of all cases."""
        try:
            return list(self._worker.start().ready["cases"])
        except WorkerLostError as error:
            reason = f"no worker can be started: {error}"
            raise HostLostError(None, reason, "config") from None

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._worker.start().pid

    def run(self, job: CaseJob, on_event: OnEvent) -> CaseOutcome:
        """Run a job in the worker, and pass its events to a listener."""
        config: Config | None = None

        def note(event: Mapping[str, Any]) -> None:
            nonlocal config
            if event["event"] == "config":
                config = Config.model_validate(event["config"])
            on_event(event)

        try:
            return CaseOutcome.model_validate(self._worker.run(job, note))
        except WorkerLostError as error:
            blame: Blame = "config" if error.is_convicted else "unknown"
            raise HostLostError(config, str(error), blame) from None

    def close(self) -> None:
        """Stop the worker if one runs."""
        self._worker.close()

    def unsaved_journals(self) -> list[str]:
        """Return the journals in this user's cache folder that the store has not accepted."""
        return [str(path) for path in abandoned_journals(self._store)]


NEW_ACTOR_EVERY = 1.0
"""Seconds between two attempts to start an actor."""


def ray_hosts(spec: SweepSpec, address: str) -> list[RayHost]:
    """Return one host per GPU of a cluster, or one per CPU if it has no GPUs.

    The suite must be importable on every machine, and every machine must reach the store.

    Args:
        spec: the subject of the sweep.
        address: as `ray.init` takes it: `auto`, `ray://head:10001`, `head:6379`, or `local` for a
            new cluster on this machine.

    Raises:
        SettingsError: no cluster answers at the address.
    """
    import ray

    if not ray.is_initialized():
        _check_reachable(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level="warning")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise SettingsError(f"--ray {address}: no cluster answers there: {error}") from error
    resources = ray.cluster_resources()
    kind = "GPU" if resources.get("GPU") else "CPU"
    return [RayHost(spec, {f"num_{kind.lower()}s": 1}) for _ in range(int(resources.get(kind, 0)))]


def _check_reachable(address: str) -> None:
    """Fail within seconds if nothing listens at an address; Ray itself would take minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise SettingsError(f"--ray {address}: no cluster answers there: {error}") from None


class RayHost:
    """A worker process beside a Ray actor.

    If the actor is lost, another one is started on any machine with free resources.

    Args:
        spec: the subject of the sweep.
        resources: the resources that the actor occupies: `num_gpus` or `num_cpus`.
    """

    def __init__(self, spec: SweepSpec, resources: Mapping[str, float]) -> None:
        """Set up the host; `start` starts its actor."""
        self._spec = spec
        self._resources = dict(resources)
        self._actor: Any = None
        self._closed = False
        self._journals: list[str] = []

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

    def run(self, job: CaseJob, on_event: OnEvent) -> CaseOutcome:
        """Run a job; of the events, only the beginning of the case reaches the listener."""
        import ray

        on_event({"event": "case", "case": job.case})
        try:
            answer = json.loads(ray.get(self._running_actor().run.remote(job.model_dump_json())))
        except ray.exceptions.RayActorError as error:
            self._actor = None
            raise HostLostError(
                None, f"its machine or its actor is gone: {error}"[:500], "machine"
            ) from None
        if "lost" in answer:
            loss = answer["lost"]
            config = None if loss["config"] is None else Config.model_validate(loss["config"])
            raise HostLostError(config, loss["reason"], loss["blame"])
        return CaseOutcome.model_validate(answer)

    def close(self) -> None:
        """Stop the worker and the actor."""
        import ray

        self._closed = True
        actor, self._actor = self._actor, None
        if actor is not None:
            with suppress(Exception):  # the actor may be gone already
                self._journals = ray.get(actor.close.remote(), timeout=20)
            with suppress(Exception):
                ray.kill(actor)

    def unsaved_journals(self) -> list[str]:
        """Return the journals on the actor's machine that the store has not accepted."""
        return self._journals

    def _running_actor(self) -> Any:
        import ray

        if self._actor is None:
            self._actor = ray.remote(**self._resources, max_concurrency=2)(_Actor).remote(
                self._spec.model_dump_json()
            )
        return self._actor


class _Actor:
    """A `LocalHost` on the actor's machine, with messages to and from the sweep as JSON."""

    def __init__(self, spec: str) -> None:
        self._host = LocalHost(SweepSpec.model_validate_json(spec))

    def start(self) -> list[str]:
        return self._host.start()

    def run(self, job: str) -> str:
        try:
            return self._host.run(
                CaseJob.model_validate_json(job), lambda event: None
            ).model_dump_json()
        except HostLostError as error:
            config = None if error.config is None else error.config.model_dump()
            return json.dumps(
                {"lost": {"config": config, "reason": error.reason, "blame": error.blame}}
            )

    def close(self) -> list[str]:
        """Stop the worker, and return the journals that it leaves on this machine."""
        self._host.close()
        return [f"{socket.gethostname()}:{path}" for path in self._host.unsaved_journals()]
