"""The fewest configs that are close to the best everywhere."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .costs import Matrix

__all__ = ["Subset", "smallest_subset"]


class Subset(NamedTuple):
    """A set of configs, and how close it stays.

    Attributes:
        columns: the configs, the one that serves the most scenarios first.
        bound: every scenario has one of them within this share of its best.
    """

    columns: list[int]
    bound: float


def smallest_subset(slowdown: Matrix, bound: float = 0.05, limit: int = 12) -> Subset:
    """Covers every scenario with a config within a bound of its best, greedily.

    Where that takes more configs than the limit, the bound is widened to the least that the limit can keep.

    Args:
        slowdown: [scenarios, configs], times over the best of each scenario.
        bound: a share: 0.05 is 5% slower than the best.
        limit: how many configs at most.
    """
    columns = _cover(slowdown <= 1 + bound)
    if len(columns) > limit:
        bound, columns = _widened(slowdown, bound, limit)
    return Subset(columns, max(bound, 0.0))


def _widened(slowdown: Matrix, bound: float, limit: int) -> tuple[float, list[int]]:
    """The least of the bounds at which anything changes that needs no more configs than the limit, by bisection."""
    steps = np.unique(slowdown[(slowdown > 1 + bound) & np.isfinite(slowdown)])
    low, high = 0, len(steps) - 1
    while low < high:
        middle = (low + high) // 2
        if len(_cover(slowdown <= steps[middle])) > limit:
            low = middle + 1
        else:
            high = middle
    columns = _cover(slowdown <= steps[high]) if len(steps) else _cover(slowdown <= 1 + bound)
    # Where failures leave some scenarios to few configs, no bound is wide enough: the most useful ones are kept.
    return float(steps[high] - 1) if len(steps) else bound, columns[:limit]


def _cover(serves: NDArray[np.bool_]) -> list[int]:
    """Columns that together serve all rows: the most rows first, and none that the others make needless."""
    chosen: list[int] = []
    open_rows = np.ones(len(serves), dtype=bool)
    while open_rows.any():
        gain = serves[open_rows].sum(axis=0)
        chosen.append(int(gain.argmax()))
        open_rows &= ~serves[:, chosen[-1]]
    for column in reversed(chosen):
        others = [each for each in chosen if each != column]
        if others and serves[:, others].any(axis=1).all():
            chosen = others
    return chosen
