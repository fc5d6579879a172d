"""Lines in the log about launches: one for a tune, a fallback and an answer that came late.

The logger is `dejavu_cache.launches`, the level INFO. A launch whose record is there says nothing,
unless some of its results were not compared.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from ..model.resolution import Resolution
from ..system.plurals import counted
from ..triton_internals.config_names import describe
from .choices import NewChoice
from .request import Request

__all__ = ["LATE", "log_choice"]

LATE = 1.0
"""Seconds from which on the wait for a recorded config is worth a line."""

_logger = logging.getLogger("dejavu_cache.launches")


def log_choice(new: NewChoice) -> None:
    """Log how a launch came by its config, unless its record was there at once."""
    if not _logger.isEnabledFor(logging.INFO):
        return
    resolution, before = new.resolution, new.before
    launch = f"{new.kernel}{new.request.scenario}"
    choice = f"({describe(resolution.config)})"
    source = f" in {resolution.store}" if resolution.store else ""
    provenance = f"{resolution.how}{source}"
    doubt = "".join(f"; not compared: {reason}" for reason in resolution.not_compared)
    if new.benchmarked:
        failures, time = _failures_text(new.request), _time_text(new.request, resolution)
        tune = f"{counted(new.benchmarked, 'config')}{failures} in {new.seconds:.1f} s"
        _logger.info(
            "tuned %s: %s; winner %s%s, %s%s", launch, tune, choice, time, provenance, doubt
        )
    elif not resolution.final:
        if before is None or (before.how, before.config) != (resolution.how, resolution.config):
            distance = f" at distance {resolution.distance:g}" if resolution.distance else ""
            provenance = f"{resolution.how}{distance}{source}"
            delay = f"after {new.seconds:.2f} s"
            _logger.info("fell back for %s: %s, %s, %s%s", launch, choice, provenance, delay, doubt)
    elif before is not None or new.seconds >= LATE:
        in_place = f"in place of the fallback {before.how}" if before else ""
        delay = in_place or f"after {new.seconds:.1f} s"
        _logger.info("late answer for %s: %s, %s, %s%s", launch, choice, provenance, delay, doubt)
    elif doubt:
        _logger.info("found for %s: %s, %s%s", launch, choice, provenance, doubt)


def _failures_text(request: Request) -> str:
    timings = getattr(request.autotuner, "configs_timings", None) or {}
    failures = sum(math.isinf(_median(timing)) for timing in timings.values())
    return f" ({failures} of {len(timings)} failed)" if failures else ""


def _time_text(request: Request, resolution: Resolution) -> str:
    timings = getattr(request.autotuner, "configs_timings", None) or {}
    median = _median(timings.get(resolution.config, math.inf))
    return f" {median:.4g} ms" if math.isfinite(median) else ""


def _median(timing: Any) -> float:
    """Return the median of what a benchmark returned: quantiles, or a number."""
    return float(timing[0] if isinstance(timing, list) else timing)
