"""The fewest configs that are close to the best everywhere."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .slowdowns import Matrix

__all__ = ["Subset", "smallest_subset"]

_HOPELESS = 0.5
"""What is worse than this over the bound is as bad as a failure."""

_WITHIN = 1e-4
"""What a cost within the bound weighs, against one beyond."""


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

    Where that takes more configs than the limit, those are taken that exceed the bound least on average. Of sets that
    keep the bound equally well, one that costs little is taken.

    Args:
        slowdown: [scenarios, configs], times over the best of each scenario.
        bound: a share: 0.05 is 5% slower than the best.
        limit: how many configs at most.
    """
    columns = _cover(slowdown <= 1 + bound)
    cost = np.minimum(slowdown - 1, bound + _HOPELESS)
    loss = np.maximum(cost - bound, 0) + _WITHIN * cost
    columns = _exchanged(loss, columns if len(columns) <= limit else _greedy(loss, limit))
    columns.sort(key=lambda column: -int((slowdown[:, column] <= 1 + bound).sum()))
    worst = slowdown[:, columns].min(axis=1).max(initial=1.0) - 1
    return Subset(columns, float(max(bound, worst if np.isfinite(worst) else 0.0)))


def _greedy(loss: Matrix, limit: int) -> list[int]:
    """One column after the other, each the one that leaves the least."""
    chosen: list[int] = []
    left = np.full((len(loss), 1), np.inf)
    for _ in range(limit):
        chosen.append(int(np.minimum(loss, left).sum(axis=0).argmin()))
        left = np.minimum(left, loss[:, chosen[-1:]])
    return chosen


def _exchanged(loss: Matrix, chosen: list[int]) -> list[int]:
    """The columns, with one after the other exchanged for a better one until none is left to exchange."""
    least, place, kept = loss[:, chosen].min(axis=1).sum(), 0, 0
    while kept < len(chosen):
        others = chosen[:place] + chosen[place + 1 :]
        left = np.minimum(loss, loss[:, others].min(axis=1, keepdims=True, initial=np.inf)).sum(
            axis=0
        )
        if left.min() < least - 1e-12:
            least, kept, chosen = (
                left.min(),
                0,
                [*chosen[:place], int(left.argmin()), *chosen[place + 1 :]],
            )
        place, kept = (place + 1) % len(chosen), kept + 1
    return chosen


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
