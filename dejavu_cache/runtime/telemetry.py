"""Spans and metrics for OpenTelemetry, in programs that use it.

A program that exports telemetry has imported OpenTelemetry's API; in others nothing happens here,
and the API is never imported for it. There is one span for each tune and fallback, and metrics of
all choices; launches whose config is known are neither.
"""

from __future__ import annotations

import sys
import time
from functools import cache
from typing import Any, NamedTuple

from ..system.notices import warn_once
from ..triton_internals.config_names import describe
from .choices import NewChoice

__all__ = ["trace_choice"]

_NAME = "dejavu_cache"


class _Instruments(NamedTuple):
    tracer: Any
    choices: Any
    benchmarks: Any
    durations: Any


@cache
def _instruments() -> _Instruments:
    # The proxies of the API follow a provider that the program sets later.
    from opentelemetry import metrics, trace

    meter = metrics.get_meter(_NAME)
    return _Instruments(
        trace.get_tracer(_NAME),
        meter.create_counter(
            f"{_NAME}.choices", "{choice}", "Configs chosen for a scenario, by how they were found"
        ),
        meter.create_counter(f"{_NAME}.benchmarks", "{config}", "Configs that were benchmarked"),
        meter.create_histogram(f"{_NAME}.tune.duration", "s", "Time that a tune took"),
    )


def trace_choice(choice: NewChoice) -> None:
    """Record how a launch came by its config; a failure of the telemetry fails no launch."""
    if "opentelemetry" not in sys.modules:
        return
    try:
        _record(choice)
    except Exception as error:
        warn_once("telemetry", f"OpenTelemetry took no span or metric: {error}")


def _record(choice: NewChoice) -> None:
    instruments = _instruments()
    request, resolution = choice.request, choice.resolution
    labels = {
        f"{_NAME}.kernel": choice.kernel,
        f"{_NAME}.device": request.context.environment.device.name,
        f"{_NAME}.how": resolution.how,
    }
    instruments.choices.add(1, labels)
    if choice.benchmarked:
        instruments.benchmarks.add(choice.benchmarked, labels)
        instruments.durations.record(choice.seconds, labels)
    elif resolution.final:
        return
    end = time.time_ns()
    span = instruments.tracer.start_span(
        f"{_NAME}.{'tune' if choice.benchmarked else 'fallback'}",
        start_time=end - int(choice.seconds * 1e9),
        attributes={
            **labels,
            f"{_NAME}.scenario": str(request.scenario),
            f"{_NAME}.config": str(describe(resolution.config)),
            f"{_NAME}.store": resolution.store or "",
            f"{_NAME}.benchmarked": choice.benchmarked,
        },
    )
    span.end(end)
