"""Scores of configs that were timed in several cases of one scenario.

A case's batch is one of many that share a scenario. What wins has to be good on average over them,
and not bad in any. A config's *slowdown* in a case is its time over the best time of that case. Its
score is the geometric mean of its slowdowns or, if that is more, its largest slowdown over
`MOST_SLOWDOWN`: as if it were that slow everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Generic, TypeVar

__all__ = ["BEHIND", "MOST_SLOWDOWN", "CaseScores"]

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
