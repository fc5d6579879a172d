"""Report which config a launch runs, to all that may be asked to record it."""

from __future__ import annotations

from typing import Any

from ..model.resolution import Resolution
from . import fingerprint
from .activity_report import report_resolution
from .launch_log import log_resolution
from .request import Request
from .resolver import Resolver
from .telemetry import trace_resolution
from .triton_report import report_to_triton

__all__ = ["report_choice"]


def report_choice(
    autotuner: Any,
    request: Request,
    resolution: Resolution,
    benchmarked: int,
    seconds: float,
    before: Resolution | None,
    resolver: Resolver,
) -> None:
    """Report a choice to Triton's listener, `verify`, the log, OpenTelemetry and the fingerprint.

    Args:
        autotuner: the kernel's.
        request: the launch's.
        resolution: the choice.
        benchmarked: the number of configs that were benchmarked for it.
        seconds: how long it took.
        before: the fallback that earlier launches of the scenario ran, or None.
        resolver: adds what the record says, for the fingerprint.
    """
    report_to_triton(autotuner, request, resolution, benchmarked)
    report_resolution(request.context.kernel.name, request.scenario, resolution, benchmarked)
    log_resolution(request, resolution, benchmarked, seconds, before)
    trace_resolution(request, resolution, benchmarked, seconds)
    if fingerprint.is_written():
        fingerprint.write_choice(request, resolver.add_evidence(request, resolution))
