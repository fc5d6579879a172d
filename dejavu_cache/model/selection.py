"""Which config wins, and which scenario stands in for another: decided here and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from .record import Measurement, Record
from .scenario import Config, Scenario

__all__ = ["Near", "contends", "distance", "nearest", "winner"]

NOISE = 0.01
"""Two medians closer than this share are a tie, whatever their quantiles say."""

CONTENDER = 0.1
"""A config slower than the best by more than this share is out of the running after one measurement."""


def winner(
    record: Record, declared: Collection[Config], default: Config | None = None
) -> Config | None:
    """The best of the declared configs by a record's timings, or None if none of them ran.

    The record's winner stands as long as nothing was measured since that speaks against it, and while it
    ties with the best, so that near-ties do not flip from one tune to the next; but never a config slower
    than the default.
    """
    timed = {
        each.config: each
        for each in record.measurements
        if each.median is not None and each.config in declared
    }
    if not timed:
        return None
    best = min(timed.values(), key=lambda each: (each.median, each.config.text))
    previous = timed.get(record.winner.config) if record.winner else None
    if previous and not _slower(previous, timed.get(default) if default else None):
        unchallenged = record.winner and all(each.at <= record.winner.at for each in timed.values())
        if _ties(previous, best) or (unchallenged and contends(previous, best)):
            return previous.config
    return best.config


def contends(one: Measurement, best: Measurement) -> bool:
    """Whether a measurement is close enough to the best to deserve another look."""
    return (one.median or 0.0) <= (best.median or 0.0) * (1 + CONTENDER)


def _ties(one: Measurement, best: Measurement) -> bool:
    return (one.median or 0.0) <= max((best.median or 0.0) * (1 + NOISE), best.p80 or 0.0)


def _slower(one: Measurement, other: Measurement | None) -> bool:
    return other is not None and (one.median or 0.0) > (other.median or 0.0)


class Near(NamedTuple):
    """A recorded scenario and how far it is from the one that was asked for."""

    record: Record
    distance: float


def nearest(
    records: Iterable[Record],
    scenario: Scenario,
    *,
    exact: Collection[str] = (),
    max_distance: float = math.inf,
) -> Near | None:
    """The recorded scenario at the smallest log distance within a cap, or None.

    Args:
        exact: key arguments that must be equal though they are numbers.
        max_distance: in powers of two, summed over the key arguments.
    """
    near = [
        Near(record, apart)
        for record in records
        if (apart := distance(scenario, record.scenario, exact)) <= max_distance
        and math.isfinite(apart)
    ]
    return min(near, key=lambda each: (each.distance, each.record.scenario.text), default=None)


def distance(one: Scenario, two: Scenario, exact: Collection[str] = ()) -> float:
    """The powers of two between the numbers of two scenarios, summed; infinite if anything else differs."""
    if one.dtypes != two.dtypes or one.args.keys() != two.args.keys():
        return math.inf
    return sum(_apart(value, two.args[name], name in exact) for name, value in one.args.items())


def _apart(one: Any, two: Any, exact: bool) -> float:
    if type(one) is type(two) and one == two:
        return 0.0
    if exact or not (_is_number(one) and _is_number(two)) or (one < 0) != (two < 0):
        return math.inf
    return abs(
        math.log2((abs(one) + 1) / (abs(two) + 1))
        if 0 in (one, two)
        else math.log2(abs(one) / abs(two))
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
