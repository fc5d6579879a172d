"""Estimate how certain a race's verdict is, from how much its rounds agree with each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from ..model.record import Confidence
from ..model.scenario import Config

__all__ = ["Times", "confidences", "group_rounds", "widen_confidence"]

COVERAGE = 0.9
"""Probability with which the interval contains the true ratio."""

LEAST_COMPARISONS = 2
"""Least number of comparisons of two configs that tells how far they can be trusted."""

WIDENED = {2: 6.3, 3: 2.0, 4: 1.15}
"""Factors by number of samples that widen their range to `COVERAGE`, for a normal distribution."""

GROUPS = 5
"""Parts of a race on an unsteady device, in each of which the times are estimated anew."""

Times = Mapping[Config, float]
"""Times of configs, in proportion."""

_Round = TypeVar("_Round")


def group_rounds(rounds: Sequence[_Round]) -> list[Sequence[_Round]]:
    """Deal rounds out to groups, so that each group has some of the beginning and of the end."""
    return [rounds[start::GROUPS] for start in range(min(GROUPS, len(rounds)))]


def confidences(
    ratios: Times, leader: Config, comparisons: Sequence[Times], rounds: Mapping[Config, int]
) -> dict[Config, Confidence]:
    """Return how certain the ratios of configs to the leader are; the leader's is the next one's.

    Args:
        ratios: the configs' times, in proportion, by the whole race.
        leader: the fastest config.
        comparisons: the same by single rounds or groups of rounds.
        rounds: the number of rounds that each config ran.
    """
    certain = {}
    for config in sorted(ratios, key=ratios.__getitem__):
        samples = [
            times[config] / times[leader]
            for times in comparisons
            if config in times and leader in times
        ]
        if config != leader and len(samples) >= LEAST_COMPARISONS:
            error = _half_interval(samples)
            certain[config] = Confidence(error=round(error, 5), rounds=rounds[config])
    if certain:
        certain[leader] = next(iter(certain.values()))
    return certain


def _half_interval(samples: Sequence[float]) -> float:
    """Return half of the interval that the median of samples lies in, as a share of its middle.

    The interval lies between two of the samples, so it holds whatever their distribution is. Less
    than five samples cannot give that much certainty; the range of all is then widened.
    """
    ordered, count = sorted(samples), len(samples)
    outside, left_out = 2 / 2**count, 0
    while left_out + 1 < count // 2:
        outside += 2 * math.comb(count, left_out + 1) / 2**count
        if outside > 1 - COVERAGE:
            break
        left_out += 1
    low, high = ordered[left_out], ordered[count - 1 - left_out]
    return (high - low) / (high + low) * WIDENED.get(count, 1.0)


def widen_confidence(confidence: Confidence | None, error: float) -> Confidence | None:
    """Return a confidence whose error is at least as large as another one."""
    if confidence is None or confidence.error >= error:
        return confidence
    return confidence.model_copy(update={"error": round(error, 5)})
