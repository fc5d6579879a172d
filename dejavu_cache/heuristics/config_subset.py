"""Choose the fewest configs that are close to the best in every scenario."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .slowdowns import Matrix

__all__ = ["Subset", "smallest_subset"]

_HOPELESS = 0.5
"""Slowdown beyond the bound from which on a config counts as badly as one that failed."""

_WITHIN = 1e-4
"""Weight of a slowdown within the bound, relative to one beyond it."""


class Subset(NamedTuple):
    """A set of configs, and how close it stays.

    Attributes:
        columns: columns of the configs, the one that serves the most scenarios first.
        bound: in every scenario one of the configs is slower than the best by at most this share.
    """

    columns: list[int]
    bound: float


def smallest_subset(slowdown: Matrix, bound: float = 0.05, limit: int = 12) -> Subset:
    """Cover every scenario with a config within a bound of its best, greedily.

    If that takes more configs than the limit, choose those that exceed the bound least on average.
    Among sets that keep the bound equally well, prefer one with a low average slowdown.

    Args:
        slowdown: [scenarios, configs], times as multiples of each scenario's best.
        bound: accepted slowdown as a share: 0.05 is 5% slower than the best.
        limit: maximum number of configs.
    """
    columns = _cover(slowdown <= 1 + bound)
    cost = np.minimum(slowdown - 1, bound + _HOPELESS)
    loss = np.maximum(cost - bound, 0) + _WITHIN * cost
    columns = _exchange_columns(
        loss, columns if len(columns) <= limit else _choose_greedily(loss, limit)
    )
    columns.sort(key=lambda column: -int((slowdown[:, column] <= 1 + bound).sum()))
    worst = slowdown[:, columns].min(axis=1).max(initial=1.0) - 1
    return Subset(columns, float(max(bound, worst if np.isfinite(worst) else 0.0)))


def _choose_greedily(loss: Matrix, limit: int) -> list[int]:
    """Choose columns one by one, each the one that reduces the remaining loss most."""
    chosen: list[int] = []
    left = np.full((len(loss), 1), np.inf)
    for _ in range(limit):
        chosen.append(int(np.minimum(loss, left).sum(axis=0).argmin()))
        left = np.minimum(left, loss[:, chosen[-1:]])
    return chosen


def _exchange_columns(loss: Matrix, chosen: list[int]) -> list[int]:
    """Replace columns by better ones, one at a time, until no replacement reduces the loss."""
    least, index, unchanged = loss[:, chosen].min(axis=1).sum(), 0, 0
    while unchanged < len(chosen):
        others = chosen[:index] + chosen[index + 1 :]
        left = np.minimum(loss, loss[:, others].min(axis=1, keepdims=True, initial=np.inf)).sum(
            axis=0
        )
        if left.min() < least - 1e-12:
            least, unchanged = left.min(), 0
            chosen = [*chosen[:index], int(left.argmin()), *chosen[index + 1 :]]
        index, unchanged = (index + 1) % len(chosen), unchanged + 1
    return chosen


def _cover(serves: NDArray[np.bool_]) -> list[int]:
    """Choose columns that together serve all rows, without redundant ones."""
    chosen: list[int] = []
    open_rows = np.ones(len(serves), dtype=bool)
    while open_rows.any():
        gain = serves[open_rows].sum(axis=0)
        chosen.append(int(gain.argmax()))
        open_rows &= ~serves[:, chosen[-1]]
    for column in reversed(chosen):
        others = [other for other in chosen if other != column]
        if others and serves[:, others].any(axis=1).all():
            chosen = others
    return chosen
