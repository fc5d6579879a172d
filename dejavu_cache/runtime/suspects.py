"""Leave configs out of a launch during which processes have died or hung."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..model.record import Record
from ..model.scenario import Config
from ..system.notices import warn_once
from ..tuning.measurement_marks import Suspect
from .request import Request

__all__ = ["leave_out_suspects"]


def leave_out_suspects(
    request: Request, record: Record | None, suspects: Iterable[Suspect]
) -> Request:
    """Return a request without the configs that may end or block this process.

    A config that a person pinned stays. Nothing is said of those whose failure is recorded.

    Args:
        request: the launch's request.
        record: the record of its scenario, if there is one.
        suspects: configs that processes were measuring when they died or hung.
    """
    pinned = record.pinned if record else None
    failed = set(_failed_configs(record)) if record else set()
    reasons = {
        suspect.config: suspect.reason
        for suspect in suspects
        if suspect.config in request.declared and suspect.config != pinned
    }
    if not reasons:
        return request
    name = request.context.kernel.name
    for config, reason in reasons.items():
        if config in failed:
            continue
        warn_once(
            f"suspect {name}{request.scenario} {config}",
            f"{name}{request.scenario}: ({config}) is not run for a day: {reason}; to clear or "
            "convict it, measure it with `dejavu-cache sweep`, where a crash costs only a worker",
        )
    return request.without(reasons)


def _failed_configs(record: Record) -> Iterator[Config]:
    for measurement in record.measurements:
        if measurement.failure is not None and not measurement.skipped:
            yield measurement.config
