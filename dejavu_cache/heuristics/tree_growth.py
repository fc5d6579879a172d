"""Grow a decision tree whose questions minimise the cost of the leaves' choices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..model.decision_tree import MOST_QUESTIONS, Leaf, Node
from .features import ScenarioEncoder
from .slowdowns import Matrix

__all__ = ["grow_tree"]

_WORTH = 0.001
"""Cost that a question must save, so that none is asked because of rounding errors."""


def grow_tree(columns: ScenarioEncoder, encoded: Matrix, burden: Matrix, leaves: int) -> Node:
    """Grow a tree by asking the question that saves most until there are enough leaves.

    Args:
        columns: the encoder of the scenarios.
        encoded: [points, columns], the encoded scenarios.
        burden: [points, configs], the cost of each config at each point.
        leaves: maximum number of leaves.
    """
    root = _Region(encoded, burden, np.arange(len(encoded)))
    regions = [root]
    while len(regions) < leaves:
        best = max(regions, key=lambda region: region.saving)
        if best.saving < _WORTH:
            break
        regions.remove(best)
        regions += best.divide()
    return root.node(columns)


class _Region:
    """Some of the points, the question that saves most for them, and the regions that it makes.

    Below `MOST_QUESTIONS` others, no question saves anything.
    """

    def __init__(
        self, encoded: Matrix, burden: Matrix, rows: NDArray[np.intp], depth: int = 0
    ) -> None:
        self._encoded, self._burden, self._rows, self._depth = encoded, burden, rows, depth
        self._regions: list[_Region] = []
        if depth == MOST_QUESTIONS:
            self.saving = 0.0
            return
        self.saving, self._column, self._threshold = max(
            (self._cut(column) for column in range(encoded.shape[1])), key=lambda cut: cut[0]
        )

    def _cut(self, column: int) -> tuple[float, int, float]:
        """Return the saving of a column's best threshold, the column, and the threshold."""
        order = self._rows[self._encoded[self._rows, column].argsort(kind="stable")]
        values, below = self._encoded[order, column], self._burden[order].cumsum(axis=0)
        ends = np.flatnonzero(values[1:] > values[:-1])
        if not len(ends):
            return 0.0, column, 0.0
        cost = below[ends].min(axis=1) + (below[-1] - below[ends]).min(axis=1)
        # Rounding makes savings equal that differ in the order of summation only; of equal savings,
        # the first column's is taken.
        saves = (below[-1].min() - cost).round(6)
        best = ends[saves.argmax()]
        return float(saves.max()), column, float(values[best] + values[best + 1]) / 2

    def divide(self) -> list[_Region]:
        is_below = self._encoded[self._rows, self._column] <= self._threshold
        self._regions = [
            _Region(self._encoded, self._burden, self._rows[side], self._depth + 1)
            for side in (is_below, ~is_below)
        ]
        return self._regions

    def node(self, columns: ScenarioEncoder) -> Node:
        if self._regions:
            below, above = (region.node(columns) for region in self._regions)
            return columns.split(self._column, self._threshold, below, above)
        burdens = self._burden[self._rows].sum(axis=0).round(6)
        return Leaf(ranking=tuple(burdens.argsort(kind="stable").tolist()))
