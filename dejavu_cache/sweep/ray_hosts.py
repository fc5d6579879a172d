"""Sweep hosts on the machines of a Ray cluster."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..errors import SettingsError
from ..model.scenario import Config
from .hosts import HostLostError, LocalHost, OnEvent
from .messages import CaseJob, CaseOutcome, SweepSpec

__all__ = ["RayHost", "ray_hosts"]

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
        """Set up the host; `cases` starts its actor."""
        self._spec = spec
        self._resources = dict(resources)
        self._actor: Any = None
        self._closed = False
        self._journals: list[str] = []

    def cases(self) -> list[str]:
        """Start the actor and its worker, and return the names of all cases."""
        import ray

        while not self._closed:
            try:
                return list(ray.get(self._running_actor().cases.remote()))
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

    def cases(self) -> list[str]:
        return self._host.cases()

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
