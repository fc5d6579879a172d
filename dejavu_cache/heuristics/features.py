"""Encode scenarios as columns of numbers, and thresholds of columns as a tree's questions.

The slowdown of each config in each scenario, as a table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model.decision_tree import AtMost, Equals, Input, Node
from ..model.record import Record
from ..model.scenario import Config, Scalar, Scenario, canonical_json

__all__ = [
    "Matrix",
    "ScenarioEncoder",
    "SlowdownTable",
    "Values",
]


Matrix = NDArray[np.float64]

_INSTANT = 1e-9
"""Milliseconds that stand for a median of zero, which is below a clock's resolution."""


@dataclass(frozen=True)
class SlowdownTable:
    """Times as multiples of the best in each scenario.

    Attributes:
        scenarios: the rows.
        configs: the columns.
        slowdown: [scenarios, configs], 1.0 for the best of a row, infinite for a config that failed
            or was not measured.
        tried: [scenarios, configs], whether a config was measured, even if it failed; the others
            were pruned or not declared.
        best: [scenarios], the best median in milliseconds.
    """

    scenarios: tuple[Scenario, ...]
    configs: tuple[Config, ...]
    slowdown: Matrix
    tried: NDArray[np.bool_]
    best: Matrix

    @classmethod
    def of(cls, records: Iterable[Record]) -> SlowdownTable:
        """Make the table of all records that have at least two timed configs.

        A record with less than a tenth of the measurements of the fullest one is left out, since
        its tuning has hardly begun. Records in between may be complete, since pruning leaves many
        configs to some scenarios and few to others.
        """
        usable = [record for record in records if _timed_count(record) > 1]
        fullest = max((len(record.measurements) for record in usable), default=0)
        usable = sorted(
            (record for record in usable if 10 * len(record.measurements) >= fullest),
            key=lambda record: record.scenario.text,
        )
        configs = sorted(
            {
                measurement.config
                for record in usable
                for measurement in record.measurements
                if measurement.median is not None
            },
            key=lambda config: config.text,
        )
        column_of = {config: column for column, config in enumerate(configs)}
        median = np.full((len(usable), len(configs)), np.inf)
        tried = np.zeros(median.shape, dtype=bool)
        for row, record in enumerate(usable):
            for measurement in record.measurements:
                column = column_of.get(measurement.config)
                if column is not None:
                    tried[row, column] = True
                if column is not None and measurement.median is not None:
                    median[row, column] = max(measurement.median, _INSTANT)
        best = median.min(axis=1) if usable else np.empty(0)
        return cls(
            tuple(record.scenario for record in usable),
            tuple(configs),
            median / best[:, None],
            tried,
            best,
        )

    def __len__(self) -> int:
        """Return the number of scenarios."""
        return len(self.scenarios)

    def rows(self, chosen: Iterable[int]) -> SlowdownTable:
        """Return the table of some of the scenarios."""
        indices = list(chosen)
        scenarios = tuple(self.scenarios[row] for row in indices)
        return SlowdownTable(
            scenarios, self.configs, self.slowdown[indices], self.tried[indices], self.best[indices]
        )


def _timed_count(record: Record) -> int:
    return sum(measurement.median is not None for measurement in record.measurements)


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
