"""Report which config a launch runs, to all that may be asked to record it."""

from __future__ import annotations

from typing import Any

from . import fingerprint
from .activity_report import report_resolution
from .choices import NewChoice
from .launch_log import log_choice
from .resolver import Resolver
from .telemetry import trace_choice
from .triton_report import report_to_triton

__all__ = ["report_choice"]


def report_choice(autotuner: Any, choice: NewChoice, resolver: Resolver) -> None:
    """Report a choice to Triton's listener, `verify`, the log, OpenTelemetry and the fingerprint.

    Args:
        autotuner: the kernel's.
        choice: how the launch came by its config.
        resolver: adds what the record says, for the fingerprint.
    """
    request, resolution, benchmarked = choice.request, choice.resolution, choice.benchmarked
    report_to_triton(autotuner, request, resolution, benchmarked)
    report_resolution(choice.kernel, request.scenario, resolution, benchmarked)
    log_choice(choice)
    trace_choice(choice)
    if fingerprint.is_written():
        fingerprint.write_choice(request, resolver.add_evidence(request, resolution))
