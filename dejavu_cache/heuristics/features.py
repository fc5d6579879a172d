"""Encode scenarios as columns of numbers, and thresholds of columns as a tree's questions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ..model.decision_tree import AtMost, Equals, Input, Node
from ..model.scenario import Scalar, canonical_json
from .slowdowns import Matrix

__all__ = ["ScenarioEncoder", "Values"]

Values = Mapping[str, Any]
"""The inputs of a decision tree by name."""


@dataclass(frozen=True)
class _SizeColumn:
    """A column for a number or for the product of two; values that are no numbers lie above all.

    The scale is logarithmic if all known values are positive.

    Attributes:
        inputs: names of the factors.
        known_values: the values in the tuned scenarios, in ascending order.
    """

    inputs: tuple[str, ...]
    known_values: tuple[float, ...]

    @property
    def logarithmic(self) -> bool:
        return self.known_values[0] > 0

    def encode(self, values: Values) -> float:
        value = _product(values, self.inputs)
        if value is None:
            value = self.known_values[-1] * 2 if self.logarithmic else self.known_values[-1] + 1
        return math.log2(value) if self.logarithmic else float(value)

    def neighbours(self, value: float) -> tuple[float, ...]:
        """Return the known values next to a known one."""
        index = self.known_values.index(value)
        return (
            self.known_values[max(index - 1, 0) : index] + self.known_values[index + 1 : index + 2]
        )

    def split(self, threshold: float, below: Node, above: Node) -> Node:
        limit = 2.0**threshold if self.logarithmic else threshold
        return AtMost(inputs=self.inputs, at_most=self._readable(limit), yes=below, no=above)

    def _readable(self, limit: float) -> float | int:
        """Return the shortest number that splits the known values as the limit does."""
        for digits in range(2, 17):
            short = float(f"{limit:.{digits}g}")
            if all((value <= short) == (value <= limit) for value in self.known_values):
                return int(short) if short.is_integer() else short
        return limit


@dataclass(frozen=True)
class _EqualityColumn:
    """A column for the question whether an input has a certain value."""

    input: str
    value: Scalar

    def encode(self, values: Values) -> float:
        return float(values.get(self.input) == self.value)

    def split(self, threshold: float, below: Node, above: Node) -> Node:
        return Equals(input=self.input, equals=self.value, yes=above, no=below)


class ScenarioEncoder:
    """Encodes scenarios: a column per size and product of two sizes, one per value of other inputs.

    Products have columns since grids are products: how a kernel behaves changes with M * N, which
    no split of M or of N alone can express. An input that never varied gets no column; instead,
    `inputs` keeps a tree from answering for other values of it.

    Args:
        tuned: the inputs of the tuned scenarios.

    Attributes:
        inputs: the values of the inputs for which a tree fitted on these scenarios answers.
    """

    def __init__(self, tuned: Sequence[Values]) -> None:
        """Derive the columns from tuned scenarios."""
        self.inputs: dict[str, Input] = {}
        sizes: list[_SizeColumn] = []
        flags: list[_EqualityColumn] = []
        for name in sorted({name for values in tuned for name in values}):
            seen: list[Any] = [values.get(name) for values in tuned]
            numbers: tuple[float, ...] = tuple(
                sorted({value for value in seen if _is_number(value)})
            )
            others = sorted({value for value in seen if not _is_number(value)}, key=canonical_json)
            several = len(numbers) > 1
            self.inputs[name] = Input(
                numbers=several, values=(*others, *(() if several else numbers))
            )
            if several:
                sizes.append(_SizeColumn((name,), numbers))
            # One question tells two values apart, and a single value needs none.
            asked = others if numbers or len(others) > 2 else others[1:]
            flags += [_EqualityColumn(name, value) for value in asked]
        pairs = combinations([size.inputs[0] for size in sizes if size.logarithmic], 2)
        self._sizes = sizes
        self._columns: list[_SizeColumn | _EqualityColumn] = [
            *sizes,
            *flags,
            *(
                _SizeColumn(pair, products)
                for pair in pairs
                if (products := _products(tuned, pair))  # none if one of the two is always missing
            ),
        ]

    def encode(self, points: Sequence[Values]) -> Matrix:
        """Return the encoding [points, columns]; a single column of zeros if no input varied."""
        rows = [[column.encode(values) for column in self._columns] for values in points]
        return np.array(rows).reshape(len(rows), -1) if self._columns else np.zeros((len(rows), 1))

    def neighbours(self, points: Sequence[Values]) -> list[Values]:
        """Return the points that differ from given ones by one step of one number."""
        steps = [
            {**values, size.inputs[0]: other}
            for values in points
            for size in self._sizes
            if _is_number(values.get(size.inputs[0]))
            for other in size.neighbours(values[size.inputs[0]])
        ]
        new = {frozenset(values.items()): values for values in steps}
        for values in points:
            new.pop(frozenset(values.items()), None)
        return list(new.values())

    def split(self, column: int, threshold: float, below: Node, above: Node) -> Node:
        """Return the node that tells encodings below a threshold from those above it."""
        return self._columns[column].split(threshold, below, above)


def _products(points: Sequence[Values], inputs: Sequence[str]) -> tuple[float, ...]:
    products = {_product(values, inputs) for values in points}
    return tuple(sorted(product for product in products if product is not None))


def _product(values: Values, inputs: Sequence[str]) -> float | None:
    factors: list[Any] = [values.get(name) for name in inputs]
    return math.prod(factors) if all(map(_is_number, factors)) else None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)
