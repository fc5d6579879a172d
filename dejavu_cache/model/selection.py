"""Select the winner of a record: which timings are believed, and which of them is the best.

A record may come from a broken clock, a broken node or somebody who wants a slow config to win. A
timing that is not believed decides nothing.

A sweep may time the configs in several cases of a scenario: batches that share it. What wins has to
be good on average over them, and not bad in any. A config's *slowdown* in a case is its time over
the best time of that case. Its score is the geometric mean of its slowdowns or, if that is more,
its largest slowdown over `MOST_SLOWDOWN`: as if it were that slow everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Generic, TypeVar

from .record import Measurement, Record
from .scenario import Config, Scenario

__all__ = [
    "BEHIND",
    "CONTENDER",
    "MOST_ADVANTAGE",
    "MOST_SLOWDOWN",
    "NOISE",
    "SHORTEST_TIMING",
    "CaseScores",
    "distance",
    "is_credible",
    "value_distance",
    "winner",
]

SHORTEST_TIMING = 1e-6
"""Least credible timing in milliseconds: a nanosecond, the unit of the host's clocks."""

MOST_ADVANTAGE = 10.0
"""Largest factor by which a config may be faster than all that other machines have measured.

One that is faster still counts only if a second machine confirms it, or if it won a tune.
"""

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

MOST_SLOWDOWN = 1.15
"""Slowdown in a case up to which a config's score is its mean alone."""

BEHIND = 1.15
"""Ratio to the leader's score from which on a config is measured in no further case.

It is above 1 because a config that was left out may be the best of a later case, whose best time is
then not known: on measured tables of 20 to 180 configs in 2 to 6 cases, the choice was 0.02% worse
on average than with all timings, for 61 to 79% of them.
"""

UNFINISHED = 1.02
"""Least ratio to the leader's score at which a config that was left out is recorded."""


def winner(
    record: Record,
    declared: Collection[Config],
    default: Config | None = None,
    *,
    trusted: str = "",
) -> Config | None:
    """Return the best of the declared configs by a record's timings, or None if none of them ran.

    The record's winner stands as long as nothing was measured since that speaks against it, and
    while it ties with the best, so that near-ties do not flip from one tune to the next; but never
    a config slower than the default. The default wins where it ties with the best. Timings that are
    not credible take no part, nor, where a sweep measured several cases of the scenario, do those
    of fewer cases: what is fast on one batch may be slow on most.

    Args:
        record: the timings and the previous winner.
        declared: the configs that the kernel declares today, and pruning leaves.
        default: the config that the winner must not be slower than.
        trusted: the machine whose timings need no confirmation, as in `Measurement.by`.
    """
    timed = _believed_timings(record, declared, trusted)
    if not timed:
        return None
    best = min(timed.values(), key=lambda timing: (_time(timing), timing.config.text))
    standard = timed.get(default) if default else None
    if record.winner is not None and (previous := timed.get(record.winner.config)):
        is_latest = all(timing.at <= record.winner.at for timing in timed.values())
        stands = _ties(previous, best) or (is_latest and _contends(previous, best))
        if stands and not (standard and _time(previous) > _time(standard)):
            return previous.config
    if standard and _time(standard) <= _time(best) * (1 + _uncertainty(best)):
        return standard.config
    return best.config


def _believed_timings(
    record: Record, declared: Collection[Config], trusted: str
) -> dict[Config, Measurement]:
    """Return the timings of declared configs that may decide, by config.

    A config that one machine alone found many times as fast as all others did is not among them,
    unless it won a tune. A scenario that one machine has measured has nothing to compare it with.
    """
    timed = {
        measurement.config: measurement
        for measurement in record.measurements
        if measurement.config in declared and is_credible(measurement)
    }
    best_by_machine: dict[str, float] = {}
    for timing in timed.values():
        best_by_machine[timing.by] = min(best_by_machine.get(timing.by, math.inf), _time(timing))
    believed = list(timed.values())
    if len(best_by_machine) > 1:
        known = record.winner.config if record.winner else None
        rival_of = {
            machine: min(best for other, best in best_by_machine.items() if other != machine)
            for machine in best_by_machine
        }
        believed = [
            timing
            for timing in believed
            if timing.by == trusted
            or timing.config == known
            or _time(timing) * MOST_ADVANTAGE >= rival_of[timing.by]
        ]
    most = max((timing.case_count for timing in believed), default=0)
    return {timing.config: timing for timing in believed if timing.case_count == most}


def is_credible(measurement: Measurement) -> bool:
    """Return whether a measurement has a timing that a launch can have."""
    return _time(measurement) >= SHORTEST_TIMING


def _time(measurement: Measurement) -> float:
    return measurement.median or 0.0


def _contends(measurement: Measurement, best: Measurement) -> bool:
    """Return whether a measurement is close enough to the best to be repeated."""
    return _time(measurement) <= _time(best) * (1 + CONTENDER)


def _uncertainty(measurement: Measurement) -> float:
    """Return the relative uncertainty of a median: a quarter of the spread of its quantiles."""
    if not measurement.median or measurement.p20 is None or measurement.p80 is None:
        return NOISE
    spread = (measurement.p80 - measurement.p20) / measurement.median
    return min(max(NOISE, spread / 4), MOST_UNCERTAIN)


def _ties(measurement: Measurement, best: Measurement) -> bool:
    median = _time(best)
    upper = min(best.p80 or 0.0, median * (1 + WIDEST_TIE))
    return _time(measurement) <= max(median * (1 + NOISE), upper)


C = TypeVar("C")


class CaseScores(Generic[C]):
    """Slowdowns and scores of configs, each timed in some of the cases.

    Attributes:
        best: the best time of each case, in milliseconds.
        level: the geometric mean of the best times; 0 without any.
    """

    def __init__(self, times: Mapping[C, Mapping[str, float]]) -> None:
        """Compute the best times.

        Args:
            times: times in milliseconds, above 0, by config and case.
        """
        self._times = {config: dict(by_case) for config, by_case in times.items() if by_case}
        cases = {case for by_case in self._times.values() for case in by_case}
        self.best = {
            case: min(by_case[case] for by_case in self._times.values() if case in by_case)
            for case in sorted(cases)
        }
        logs = [math.log(time) for time in self.best.values()]
        self.level = math.exp(math.fsum(logs) / len(logs)) if logs else 0.0

    def __contains__(self, config: object) -> bool:
        """Return whether a config was timed in any case."""
        return config in self._times

    def score(self, config: C) -> float:
        """Return a config's score, 1 or more, over the cases in which it was timed."""
        slowdowns = self._slowdowns(config)
        return _score(slowdowns, len(slowdowns))

    def worst(self, config: C) -> float:
        """Return a config's largest slowdown."""
        return max(self._slowdowns(config))

    def equivalent(self, config: C) -> float:
        """Return a config's score as a time in milliseconds, which is comparable with the others'.

        A config that was not timed in all cases never comes out ahead of the best that was.
        """
        score = self.score(config)
        if len(self._times[config]) < len(self.best):
            score = max(score, self._leading_score * UNFINISHED)
        return score * self.level

    def may_win(self, config: C, cases: int) -> bool:
        """Return whether a config may still come close to the leader, or beat it.

        In the cases where it was not timed, it is taken to be the best; its largest slowdown so far
        counts in any case.

        Args:
            config: a config that was timed in one case or more.
            cases: number of cases in the end.
        """
        return _score(self._slowdowns(config), cases) < self._leading_score * BEHIND

    @property
    def leaders(self) -> list[C]:
        """Configs timed in the most cases, the best first."""
        most = max(map(len, self._times.values()), default=0)
        complete = [config for config, times in self._times.items() if len(times) == most]
        return sorted(complete, key=self.score)

    @property
    def _leading_score(self) -> float:
        return self.score(self.leaders[0])

    def _slowdowns(self, config: C) -> list[float]:
        return [time / self.best[case] for case, time in self._times[config].items()]


def _score(slowdowns: list[float], cases: int) -> float:
    """Return the score over a number of cases, of which those without a slowdown count as 1."""
    mean = math.exp(math.fsum(map(math.log, slowdowns)) / cases)
    return max(mean, max(slowdowns) / MOST_SLOWDOWN)


def distance(left: Scenario, right: Scenario) -> float:
    """Sum the powers of two between two scenarios' numbers; infinite if anything else differs."""
    if left.dtypes != right.dtypes or left.args.keys() != right.args.keys():
        return math.inf
    return sum(value_distance(value, right.args[name]) for name, value in left.args.items())


def value_distance(left: Any, right: Any) -> float:
    """Return the powers of two between two numbers; infinite between other values that differ."""
    if left == right and type(left) is type(right):
        return 0.0
    are_numbers = type(left) in (int, float) and type(right) in (int, float)
    if not are_numbers or (left < 0) != (right < 0):
        return math.inf
    if left and right:
        return abs(math.log2(abs(left)) - math.log2(abs(right)))
    return abs(math.log2(abs(left) + 1) - math.log2(abs(right) + 1))
