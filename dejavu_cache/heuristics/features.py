"""Scenarios as columns of numbers, and a column's threshold as a question about a scenario."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ..model.decision_tree import AtMost, Equals, Input, Node
from ..model.scenario import Scalar, Scenario, canonical_json
from .slowdowns import Matrix

__all__ = ["ScenarioEncoder", "Values", "scenario_values"]

Values = Mapping[str, Any]
"""What is asked about, by name."""


def scenario_values(scenario: Scenario) -> dict[str, Any]:
    """Key values and dtypes by name: what a tree asks about."""
    return {**scenario.dtypes, **scenario.args}


@dataclass(frozen=True)
class _Size:
    """A number, or the product of two; on a log scale if never zero or less. What is no number lies above all."""

    inputs: tuple[str, ...]
    known: tuple[float, ...]

    @property
    def logarithmic(self) -> bool:
        return self.known[0] > 0

    def encode(self, values: Values) -> float:
        value = _product(values, self.inputs)
        if value is None:
            value = self.known[-1] * 2 if self.logarithmic else self.known[-1] + 1
        return math.log2(value) if self.logarithmic else float(value)

    def beside(self, value: float) -> tuple[float, ...]:
        """The known values next to a known one."""
        index = self.known.index(value)
        return self.known[max(index - 1, 0) : index] + self.known[index + 1 : index + 2]

    def split(self, threshold: float, below: Node, above: Node) -> Node:
        limit = 2.0**threshold if self.logarithmic else threshold
        return AtMost(inputs=self.inputs, at_most=self._readable(limit), yes=below, no=above)

    def _readable(self, limit: float) -> float | int:
        """The shortest number near the limit that parts the known values as it does."""
        for digits in range(2, 17):
            short = float(f"{limit:.{digits}g}")
            if all((value <= short) == (value <= limit) for value in self.known):
                return int(short) if short.is_integer() else short
        return limit


@dataclass(frozen=True)
class _Is:
    """Whether an input has one value."""

    input: str
    value: Scalar

    def encode(self, values: Values) -> float:
        return float(values.get(self.input) == self.value)

    def split(self, threshold: float, below: Node, above: Node) -> Node:
        return Equals(input=self.input, equals=self.value, yes=above, no=below)


class ScenarioEncoder:
    """How scenarios are encoded: a column per size and per product of two, one per value of what is no number.

    Products are there since grids are products: a kernel changes its ways with M * N, and no split of M or of N
    alone says so. What never varied gets no column, and `inputs` keeps a tree from answering where it is another.

    Attributes:
        inputs: what the inputs may be for a tree fitted on these scenarios to answer.
    """

    def __init__(self, held: Sequence[Values]) -> None:
        self.inputs: dict[str, Input] = {}
        sizes: list[_Size] = []
        flags: list[_Is] = []
        for name in sorted({name for values in held for name in values}):
            seen: list[Any] = [values.get(name) for values in held]
            numbers: tuple[float, ...] = tuple(
                sorted({value for value in seen if _is_number(value)})
            )
            others = sorted({value for value in seen if not _is_number(value)}, key=canonical_json)
            several = len(numbers) > 1
            self.inputs[name] = Input(
                numbers=several, values=(*others, *(() if several else numbers))
            )
            if several:
                sizes.append(_Size((name,), numbers))
            # Of two values one question tells them apart, and of one there is nothing to ask.
            asked = others if numbers or len(others) > 2 else others[1:]
            flags += [_Is(name, value) for value in asked]
        pairs = combinations([size.inputs[0] for size in sizes if size.logarithmic], 2)
        self._sizes = sizes
        self._columns: list[_Size | _Is] = [
            *sizes,
            *flags,
            *(_Size(pair, _products(held, pair)) for pair in pairs),
        ]

    def encode(self, points: Sequence[Values]) -> Matrix:
        """[points, columns]; one column of zeros if nothing varied."""
        rows = [[column.encode(values) for column in self._columns] for values in points]
        return np.array(rows).reshape(len(rows), -1) if self._columns else np.zeros((len(rows), 1))

    def beside(self, points: Sequence[Values]) -> list[Values]:
        """What is one step of one number away from points, and none of them."""
        steps = [
            {**values, size.inputs[0]: other}
            for values in points
            for size in self._sizes
            if _is_number(values.get(size.inputs[0]))
            for other in size.beside(values[size.inputs[0]])
        ]
        new = {frozenset(values.items()): values for values in steps}
        for values in points:
            new.pop(frozenset(values.items()), None)
        return list(new.values())

    def split(self, column: int, threshold: float, below: Node, above: Node) -> Node:
        """The question that sends a scenario below or above a threshold of its encoding."""
        return self._columns[column].split(threshold, below, above)


def _products(held: Sequence[Values], inputs: Sequence[str]) -> tuple[float, ...]:
    products = {_product(values, inputs) for values in held}
    return tuple(sorted(product for product in products if product is not None))


def _product(values: Values, inputs: Sequence[str]) -> float | None:
    factors: list[Any] = [values.get(name) for name in inputs]
    return math.prod(factors) if all(map(_is_number, factors)) else None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)
