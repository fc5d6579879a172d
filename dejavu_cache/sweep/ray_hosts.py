"""Hosts on the machines of a Ray cluster."""

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
"""Seconds between two tries to start a worker somewhere."""


def ray_hosts(spec: SweepSpec, address: str) -> list[RayHost]:
    """A host for every GPU of a cluster, or for every CPU where it has no GPUs.

    The suite must be importable on every machine, and all must reach the store.

    Args:
        address: as `ray.init` takes it: `auto`, `ray://head:10001`, `head:6379`, or `local` for a cluster of
            this process's own.

    Raises:
        SettingsError: there is no cluster.
    """
    import ray

    if not ray.is_initialized():
        _knock(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level="warning")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise SettingsError(f"--ray {address}: no cluster answers there: {error}") from error
    resources = ray.cluster_resources()
    kind = "GPU" if resources.get("GPU") else "CPU"
    return [RayHost(spec, {f"num_{kind.lower()}s": 1}) for _ in range(int(resources.get(kind, 0)))]


def _knock(address: str) -> None:
    """Finds out in seconds that nobody is there, which Ray takes minutes for."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise SettingsError(f"--ray {address}: no cluster answers there: {error}") from None


class RayHost:
    """A worker process beside a Ray actor; when the actor is lost, another one is started where there is room.

    Args:
        resources: what the actor takes of its machine: `num_gpus` or `num_cpus`.
    """

    def __init__(self, spec: SweepSpec, resources: Mapping[str, float]) -> None:
        self._spec = spec
        self._resources = dict(resources)
        self._actor: Any = None
        self._closed = False
        self._kept: list[str] = []

    def cases(self) -> list[str]:
        import ray

        while not self._closed:
            try:
                return list(ray.get(self._started().cases.remote()))
            except ray.exceptions.RayActorError:
                self._actor = None
                time.sleep(NEW_ACTOR_EVERY)
        return []

    def do(self, job: CaseJob, on_event: OnEvent) -> CaseOutcome:
        import ray

        on_event({"event": "case", "case": job.case})
        try:
            answer = json.loads(ray.get(self._started().do.remote(job.model_dump_json())))
        except ray.exceptions.RayActorError as error:
            self._actor = None
            raise HostLostError(
                None, f"its machine or its actor is gone: {error}"[:500], "machine"
            ) from None
        if "lost" in answer:
            lost = answer["lost"]
            config = None if lost["config"] is None else Config.model_validate(lost["config"])
            raise HostLostError(config, lost["reason"], lost["blame"])
        return CaseOutcome.model_validate(answer)

    def close(self) -> None:
        import ray

        self._closed = True
        actor, self._actor = self._actor, None
        if actor is not None:
            with suppress(Exception):  # it may be gone already
                self._kept = ray.get(actor.close.remote(), timeout=20)
            with suppress(Exception):
                ray.kill(actor)

    def kept(self) -> list[str]:
        return self._kept

    def _started(self) -> Any:
        import ray

        if self._actor is None:
            self._actor = ray.remote(**self._resources, max_concurrency=2)(_Actor).remote(
                self._spec.model_dump_json()
            )
        return self._actor


class _Actor:
    """Keeps a `LocalHost` on its machine; the two speak JSON with the sweep."""

    def __init__(self, spec: str) -> None:
        self._host = LocalHost(SweepSpec.model_validate_json(spec))

    def cases(self) -> list[str]:
        return self._host.cases()

    def do(self, job: str) -> str:
        try:
            return self._host.do(
                CaseJob.model_validate_json(job), lambda event: None
            ).model_dump_json()
        except HostLostError as error:
            config = None if error.config is None else error.config.model_dump()
            return json.dumps(
                {"lost": {"config": config, "reason": error.reason, "blame": error.blame}}
            )

    def close(self) -> list[str]:
        """Ends the worker, and says what it leaves on this machine, where nobody else would look."""
        self._host.close()
        return [f"{socket.gethostname()}:{path}" for path in self._host.kept()]
