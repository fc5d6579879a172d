"""Which recorded timings are believed, whoever wrote them.

A record may come from a broken clock, a broken node or somebody who wants a slow config to win. A
timing that is not believed decides nothing, and its config counts as not measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from .record import Measurement
from .scenario import Config

__all__ = [
    "LONGEST_TIMING",
    "MOST_ADVANTAGE",
    "SHORTEST_EVENT",
    "SHORTEST_TIMING",
    "is_credible",
    "shortest_timing",
    "unconfirmed_configs",
]

SHORTEST_TIMING = 1e-6
"""Milliseconds of any timing at the least: a nanosecond, the unit of the host's clocks."""

SHORTEST_EVENT = 0.0005
"""Milliseconds of a launch that a device's events timed: half a microsecond, their resolution.

An empty kernel takes about four times as long.
"""

LONGEST_TIMING = 86_400_000.0
"""Milliseconds of a timing at the most: a day."""

MOST_ADVANTAGE = 10.0
"""Largest factor by which a config may be faster than all that other machines have measured.

One that is faster still counts only if a second machine confirms it, or if it won a tune.
"""


def shortest_timing(method: str) -> float:
    """Return the shortest timing in milliseconds that a benchmark method can give.

    Args:
        method: the name in `Problem.method`; the unit of a `custom:` benchmark is its author's.
    """
    return SHORTEST_EVENT if method.startswith(("events-", "cudagraph-")) else SHORTEST_TIMING


def is_credible(measurement: Measurement, shortest: float = SHORTEST_TIMING) -> bool:
    """Return whether a measurement has a timing that a launch can have.

    Args:
        measurement: the measurement.
        shortest: the least believable timing, in milliseconds.
    """
    median = measurement.median
    return median is not None and shortest <= median <= LONGEST_TIMING


def unconfirmed_configs(timings: Iterable[Measurement], trusted: str = "") -> set[Config]:
    """Return the configs that one machine alone found many times as fast as all others did.

    A scenario that one machine has measured has none, since there is nothing to compare it with.

    Args:
        timings: the believable timings of one scenario.
        trusted: the machine that needs no confirmation, as in `Measurement.by`.
    """
    timings = list(timings)
    best_by_machine: dict[str, float] = {}
    for timing in timings:
        best = best_by_machine.get(timing.by, math.inf)
        best_by_machine[timing.by] = min(best, timing.median or 0.0)
    fastest = sorted(best_by_machine.items(), key=lambda entry: entry[1])[:2]
    return {
        timing.config
        for timing in timings
        if timing.by != trusted
        and (rivals := [best for machine, best in fastest if machine != timing.by])
        and (timing.median or 0.0) * MOST_ADVANTAGE < rivals[0]
    }
