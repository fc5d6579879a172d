"""A decision tree that pays for its choices: every question is the one that makes the leaves' choices cheapest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..model.decision_tree import Leaf, Node
from .features import ScenarioEncoder
from .slowdowns import Matrix

__all__ = ["grow_tree"]

_WORTH = 0.001
"""What a question must save in all, so that none is asked for what rounding made."""


def grow_tree(columns: ScenarioEncoder, encoded: Matrix, burden: Matrix, leaves: int) -> Node:
    """The tree, grown where a question saves most.

    Args:
        encoded: [points, columns]. burden: [points, configs], what each config costs at each point.
    """
    whole = _Part(encoded, burden, np.arange(len(encoded)))
    ends = [whole]
    while len(ends) < leaves:
        costly = max(ends, key=lambda part: part.saves)
        if costly.saves < _WORTH:
            break
        ends.remove(costly)
        ends += costly.divided()
    return whole.node(columns)


class _Part:
    """Some of the points, and the question that saves them most; once it is asked, two parts more."""

    def __init__(self, encoded: Matrix, burden: Matrix, rows: NDArray[np.intp]) -> None:
        self._encoded, self._burden, self._rows = encoded, burden, rows
        self._parts: list[_Part] = []
        self.saves, self._column, self._threshold = max(
            (self._cut(column) for column in range(encoded.shape[1])), key=lambda cut: cut[0]
        )

    def _cut(self, column: int) -> tuple[float, int, float]:
        """The best threshold of a column, after what it saves."""
        order = self._rows[self._encoded[self._rows, column].argsort(kind="stable")]
        values, below = self._encoded[order, column], self._burden[order].cumsum(axis=0)
        ends = np.flatnonzero(values[1:] > values[:-1])
        if not len(ends):
            return 0.0, column, 0.0
        cost = below[ends].min(axis=1) + (below[-1] - below[ends]).min(axis=1)
        # Rounded, since equal savings must be equal however they were summed: the first column has it then.
        saves = (below[-1].min() - cost).round(6)
        best = ends[saves.argmax()]
        return float(saves.max()), column, float(values[best] + values[best + 1]) / 2

    def divided(self) -> list[_Part]:
        is_below = self._encoded[self._rows, self._column] <= self._threshold
        self._parts = [
            _Part(self._encoded, self._burden, self._rows[side]) for side in (is_below, ~is_below)
        ]
        return self._parts

    def node(self, columns: ScenarioEncoder) -> Node:
        if self._parts:
            below, above = (part.node(columns) for part in self._parts)
            return columns.split(self._column, self._threshold, below, above)
        burdens = self._burden[self._rows].sum(axis=0).round(6)
        return Leaf(ranking=tuple(burdens.argsort(kind="stable").tolist()))
