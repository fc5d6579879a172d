"""Ratios of what was measured in the same round."""

from __future__ import annotations

import statistics

__all__ = ["ratio_of_rounds"]


def ratio_of_rounds(numerators: list[float], denominators: list[float]) -> dict[str, float]:
    """Return median, least and greatest ratio over the rounds.

    Other work on the machine disturbs the two measurements of one round alike.
    """
    ratios = [
        round(numerator / denominator, 2)
        for numerator, denominator in zip(numerators, denominators, strict=True)
    ]
    return {
        "median": round(statistics.median(ratios), 2),
        "least": min(ratios),
        "most": max(ratios),
    }
