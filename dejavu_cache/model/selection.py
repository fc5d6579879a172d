"""Select the winner of a record, and tell how far two scenarios are apart."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from .credibility import SHORTEST_TIMING, is_credible, unconfirmed_configs
from .record import Measurement, Record
from .scenario import Config, Scenario, is_from_future

__all__ = ["distance", "trusted_configs", "value_distance", "winner"]

NOISE = 0.01
"""Relative difference of two medians below which they tie, whatever their quantiles."""

MOST_UNCERTAIN = 0.02
"""Relative difference of two medians that counts in any case: a race tells that much apart."""

WIDEST_TIE = 0.5
"""Relative slowdown against the best up to which its quantiles may make another config tie.

Wider quantiles say that the timing is worth nothing, not that all configs are equal.
"""

CONTENDER = 0.1
"""Relative slowdown against the best above which a config drops out after one measurement."""


def winner(
    record: Record,
    declared: Collection[Config],
    default: Config | None = None,
    *,
    shortest: float = SHORTEST_TIMING,
    trusted: str = "",
) -> Config | None:
    """Return the best of the declared configs by a record's timings, or None if none of them ran.

    The record's winner stands as long as nothing was measured since that speaks against it, and
    while it ties with the best, so that near-ties do not flip from one tune to the next; but never
    a config slower than the default. The default wins where it ties with the best. Timings that
    `credibility` does not believe take no part, nor, where a sweep measured several cases of the
    scenario, do those of fewer cases: what is fast on one batch may be slow on most.

    Args:
        record: the timings and the previous winner.
        declared: the configs that the kernel declares today, and pruning leaves.
        default: the config that the winner must not be slower than.
        shortest: the least believable timing, in milliseconds.
        trusted: the machine whose timings need no confirmation, as in `Measurement.by`.
    """
    timed = _believed_timings(record, declared, shortest, trusted)
    if not timed:
        return None
    best = min(timed.values(), key=lambda timing: (timing.median, timing.config.text))
    previous = timed.get(record.winner.config) if record.winner else None
    if previous and not _slower(previous, timed.get(default) if default else None):
        unchallenged = (
            record.winner
            and not is_from_future(record.winner.at)
            and all(timing.at <= record.winner.at for timing in timed.values())
        )
        if _ties(previous, best) or (unchallenged and _contends(previous, best)):
            return previous.config
    fallback = timed.get(default) if default else None
    if fallback and (fallback.median or 0.0) <= (best.median or 0.0) * (1 + _uncertainty(best)):
        return fallback.config
    return best.config


def trusted_configs(
    record: Record, default: Config | None, *, uncompared: bool = False
) -> set[Config]:
    """Return the configs that a launch may take from a record without comparing their results.

    They are the default config, by which the others are judged, and the winner, if its results were
    compared. If the default has failed, there is nothing to compare with, and nothing else to run.

    Args:
        record: the record.
        default: the config of last resort.
        uncompared: whether a winner counts although nobody has compared it.
    """
    trusted = set() if default is None else {default}
    if record.winner is not None and record.is_finished:
        standard = record.by_config.get(default) if default else None
        has_failed = standard is not None and standard.median is None and not standard.skipped
        if uncompared or record.winner.is_compared or has_failed:
            trusted.add(record.winner.config)
    return trusted


def _believed_timings(
    record: Record, declared: Collection[Config], shortest: float, trusted: str
) -> dict[Config, Measurement]:
    """Return the timings of declared configs that may decide, by config."""
    timed = {
        measurement.config: measurement
        for measurement in record.measurements
        if measurement.config in declared and is_credible(measurement, shortest)
    }
    unconfirmed = unconfirmed_configs(timed.values(), trusted)
    if record.winner is not None:  # it has won a tune
        unconfirmed.discard(record.winner.config)
    believed = {config: timing for config, timing in timed.items() if config not in unconfirmed}
    most = max((timing.case_count for timing in believed.values()), default=0)
    return {config: timing for config, timing in believed.items() if timing.case_count == most}


def _contends(measurement: Measurement, best: Measurement) -> bool:
    """Return whether a measurement is close enough to the best to be repeated."""
    return (measurement.median or 0.0) <= (best.median or 0.0) * (1 + CONTENDER)


def _uncertainty(measurement: Measurement) -> float:
    """Return the relative uncertainty of a median: a quarter of the spread of its quantiles."""
    if not measurement.median or measurement.p20 is None or measurement.p80 is None:
        return NOISE
    spread = (measurement.p80 - measurement.p20) / measurement.median
    return min(max(NOISE, spread / 4), MOST_UNCERTAIN)


def _ties(measurement: Measurement, best: Measurement) -> bool:
    median = best.median or 0.0
    upper = min(best.p80 or 0.0, median * (1 + WIDEST_TIE))
    return (measurement.median or 0.0) <= max(median * (1 + NOISE), upper)


def _slower(measurement: Measurement, other: Measurement | None) -> bool:
    return other is not None and (measurement.median or 0.0) > (other.median or 0.0)


def distance(left: Scenario, right: Scenario, exact: Collection[str] = ()) -> float:
    """Sum the powers of two between two scenarios' numbers; infinite if anything else differs."""
    if left.dtypes != right.dtypes or left.args.keys() != right.args.keys():
        return math.inf
    return sum(
        value_distance(value, right.args[name], name in exact) for name, value in left.args.items()
    )


def value_distance(left: Any, right: Any, exact: bool) -> float:
    """Return the powers of two between two numbers; infinite between other values that differ."""
    if type(left) is type(right) and left == right:
        return 0.0
    if exact or not (_is_number(left) and _is_number(right)) or (left < 0) != (right < 0):
        return math.inf
    if 0 in (left, right):
        return abs(math.log2((abs(left) + 1) / (abs(right) + 1)))
    return abs(math.log2(abs(left) / abs(right)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
