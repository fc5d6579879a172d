"""Estimate configs' times on a device that others load, or whose clock changes.

Configs that take turns in random order meet the same moments, so their times can be told from the
device's slowness. Two estimates do that under different assumptions; neither is right everywhere.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..model.scenario import Config

__all__ = ["Look", "favourable_times", "relative_times"]

NEIGHBOURS = 1
"""Looks before and after one from which the level of its moment is estimated: 3 take some 5 ms."""

REFINEMENTS = 3
"""Repetitions of the estimate of levels and times from each other."""

UNDISTURBED = 0.2
"""Share of the configs of a round that are taken to have met a quiet moment."""

QUIET = 0.2
"""Share of a config's looks that are taken to have met a quiet moment."""


class Look(NamedTuple):
    """The time of one config at one moment, in milliseconds."""

    config: Config
    time: float


Rounds = Sequence[Sequence[Look]]
"""Looks at the same configs once per round, in the order in which they were taken."""

Times = dict[Config, float]


def relative_times(rounds: Rounds) -> Times:
    """Return the configs' times relative to the fastest one's.

    Of the two estimates, the one on which the even and the odd rounds agree better.
    """
    return min((_by_moment, _by_quiet), key=lambda estimate: _disagreement(estimate, rounds))(
        rounds
    )


def favourable_times(rounds: Rounds) -> Times:
    """Return the configs' times relative to the fastest one's, by each one's better estimate.

    A config that is fast under either assumption is worth another look.
    """
    by_moment, by_quiet = _by_moment(rounds), _by_quiet(rounds)
    return {config: min(time, by_quiet[config]) for config, time in by_moment.items()}


def _by_moment(rounds: Rounds) -> Times:
    """Estimate times by medians relative to the level of each moment.

    Right if load slows all configs alike, and lasts for several looks.
    """
    looks = [look for timings in rounds for look in timings]

    def levels(times: Times) -> list[float]:
        slowness = [look.time / times[look.config] for look in looks]
        return [
            statistics.median(slowness[max(index - NEIGHBOURS, 0) : index + NEIGHBOURS + 1])
            for index in range(len(looks))
        ]

    return _estimate(looks, statistics.median, levels)


def _by_quiet(rounds: Rounds) -> Times:
    """Estimate times by low quantiles relative to the level of each round.

    Right if a config meets a quiet moment in a fifth of the rounds, whatever load does to it.
    """
    looks = [look for timings in rounds for look in timings]

    def levels(times: Times) -> list[float]:
        result = []
        for timings in filter(None, rounds):  # in an empty round, no config ran
            slowness = [look.time / times[look.config] for look in timings]
            result += [_quantile(slowness, UNDISTURBED)] * len(timings)
        return result

    return _estimate(looks, lambda values: _quantile(values, QUIET), levels)


def _estimate(
    looks: Sequence[Look],
    summarize: Callable[[Sequence[float]], float],
    levels_of: Callable[[Times], Sequence[float]],
) -> Times:
    """Estimate times and levels from each other, beginning with equal levels."""
    times = _summaries(looks, [1.0] * len(looks), summarize)
    for _ in range(REFINEMENTS):
        times = _summaries(looks, levels_of(times), summarize)
    best = min(times.values(), default=1.0)
    return {config: time / best for config, time in times.items()}


def _summaries(
    looks: Sequence[Look],
    levels: Sequence[float],
    summarize: Callable[[Sequence[float]], float],
) -> Times:
    """Return a summary of each config's times relative to the levels of its looks."""
    relative: dict[Config, list[float]] = {}
    for look, level in zip(looks, levels, strict=True):
        relative.setdefault(look.config, []).append(look.time / level)
    return {config: summarize(values) for config, values in relative.items()}


def _disagreement(estimate: Callable[[Rounds], Times], rounds: Rounds) -> float:
    """Return the median relative difference of the estimates by even and odd rounds."""
    even, odd = (
        _center_logarithms(estimate(rounds[::2])),
        _center_logarithms(estimate(rounds[1::2])),
    )
    differences = [abs(value - odd[config]) for config, value in even.items() if config in odd]
    return statistics.median(differences) if differences else math.inf


def _center_logarithms(times: Mapping[Config, float]) -> Times:
    logarithms = {config: math.log(time) for config, time in times.items()}
    middle = statistics.median(logarithms.values()) if logarithms else 0.0
    return {config: value - middle for config, value in logarithms.items()}


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]
