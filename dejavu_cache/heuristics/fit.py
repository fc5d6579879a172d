"""Fit a decision tree to records: choose a small set of configs, then grow a tree over it.

The set has the fewest configs that are close to the best in every scenario. The tree learns what
each of them is expected to cost in a scenario, not which one won there. So choosing the second best
where the two are close is no mistake, and a config that won by chance is not chosen if it is slow
in neighbouring scenarios. The tree's regret is measured on scenarios that were held out of all
steps, the choice of the set included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import TooFewRecordsError
from ..model.decision_tree import (
    MOST_QUESTIONS,
    AtMost,
    Equals,
    Input,
    Leaf,
    Node,
    Regret,
    Tree,
    ranking,
)
from ..model.record import Record, RecordSet
from ..model.scenario import Config, Scalar, Scenario, canonical_json
from ..system.notices import Progress, counted

__all__ = ["BOUND", "NEEDED", "Matrix", "SlowdownTable", "fit"]


BOUND = 0.05
"""Default for the accepted slowdown of the set's configs, as a share."""

LIMIT = 12
"""Configs of a set at most; if they do not suffice, the bound is exceeded."""

NEEDED = 10
"""Scenarios that a tree needs; with fewer, a held-out scenario says nothing about the others."""

LEAVES = 32
"""Leaves of a tree at most."""

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
    """

    scenarios: tuple[Scenario, ...]
    configs: tuple[Config, ...]
    slowdown: Matrix
    tried: NDArray[np.bool_]

    @classmethod
    def of(cls, records: Iterable[Record]) -> SlowdownTable:
        """Make the table of all records that have at least two timed configs.

        A record with less than a tenth of the measurements of the fullest one is left out, since
        its tuning has hardly begun. Records in between may be complete, since pruning leaves many
        configs to some scenarios and few to others.
        """
        usable = [
            record
            for record in records
            if sum(measurement.median is not None for measurement in record.measurements) > 1
        ]
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
        scenarios = tuple(record.scenario for record in usable)
        return cls(scenarios, tuple(configs), median / best[:, None], tried)

    def __len__(self) -> int:
        """Return the number of scenarios."""
        return len(self.scenarios)

    def rows(self, chosen: Iterable[int]) -> SlowdownTable:
        """Return the table of some of the scenarios."""
        indices = list(chosen)
        scenarios = tuple(self.scenarios[row] for row in indices)
        return SlowdownTable(scenarios, self.configs, self.slowdown[indices], self.tried[indices])


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


_WORTH = 0.001
"""Cost that a question must save, so that none is asked because of rounding errors."""


def grow_tree(columns: ScenarioEncoder, encoded: Matrix, burden: Matrix) -> Node:
    """Grow a tree by asking the question that saves most until there are enough leaves.

    Args:
        columns: the encoder of the scenarios.
        encoded: [points, columns], the encoded scenarios.
        burden: [points, configs], the cost of each config at each point.
    """
    root = _Region(encoded, burden, np.arange(len(encoded)))
    regions = [root]
    while len(regions) < LEAVES:
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


_HOPELESS_SLOWDOWN = 0.5
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


def smallest_subset(slowdown: Matrix, bound: float, limit: int = LIMIT) -> Subset:
    """Cover every scenario with a config within a bound of its best, greedily.

    If that takes more configs than the limit, choose those that exceed the bound least on average.
    Among sets that keep the bound equally well, prefer one with a low average slowdown.

    Args:
        slowdown: [scenarios, configs], times as multiples of each scenario's best.
        bound: accepted slowdown as a share: 0.05 is 5% slower than the best.
        limit: maximum number of configs.
    """
    columns = _cover(slowdown <= 1 + bound)
    cost = np.minimum(slowdown - 1, bound + _HOPELESS_SLOWDOWN)
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


_HOPELESS = 1.4
"""Multiple of the best time from which on it does not matter how slow a config is."""

_TREES = 100
"""Number of trees in the forest that estimates costs between tuned scenarios."""

_CANNOT_RUN = 1e3
"""Cost of a failure: a leaf only chooses a config that failed there if all others did too."""

_FOLDS = 100
"""Maximum number of folds; up to as many scenarios, each one is held out by itself.

A fold of several scenarios may hold out neighbours together, and then its regret depends on how the
scenarios were shuffled.
"""


def fit(records: RecordSet, *, bound: float = BOUND) -> Tree:
    """Fit a tree to the records of one context; equal records give an equal tree.

    Args:
        records: the records of the context.
        bound: accepted slowdown, as a share, of the set's best config in any scenario.

    Raises:
        TooFewRecordsError: fewer than `NEEDED` scenarios have a winner and two timed configs.
    """
    # A config that is fast because it is wrong may lead where no results were compared yet.
    finished = [record for record in records.records if record.is_exemplary]
    costs = SlowdownTable.of(finished)
    kernel, device = records.context.kernel.name, records.context.environment.device.name
    if len(costs) < NEEDED:
        uncompared = sum(record.is_finished for record in records.records) - len(finished)
        hint = f", or compare {counted(uncompared, 'winner')} by `dejavu-cache sweep`"
        raise TooFewRecordsError(
            f"{kernel} has {counted(len(costs), 'scenario')} with a winner and two timed configs "
            f"or more on {device}, and a tree needs {NEEDED}: tune {NEEDED - len(costs)} more"
            f"{hint if uncompared else ''}"
        )
    model = _fit_tree(costs, bound)
    return Tree(
        context=records.context,
        configs=tuple(costs.configs[column] for column in model.chosen),
        inputs=model.inputs,
        root=model.root,
        bound=round(model.bound, 6),
        regret=_cross_validate(costs, bound, Progress(f"{kernel} on {device}")),
        at=max(measurement.at for record in finished for measurement in record.measurements),
    )


class _FittedTree(NamedTuple):
    """A tree over a set of configs.

    Attributes:
        root: the tree; its leaves rank indices into `chosen`.
        inputs: the values of the inputs for which the tree answers.
        chosen: the set, as columns of the slowdown table.
        bound: the bound that the set keeps.
    """

    root: Node
    inputs: dict[str, Input]
    chosen: list[int]
    bound: float


def _fit_tree(costs: SlowdownTable, bound: float) -> _FittedTree:
    chosen, bound = smallest_subset(costs.slowdown, bound)
    tuned = [scenario.values for scenario in costs.scenarios]
    columns = ScenarioEncoder(tuned)
    # A tree is also asked about scenarios between the tuned ones, so it learns from those too.
    encoded = columns.encode([*tuned, *columns.neighbours(tuned)])
    burden = _estimate_costs(encoded, costs.slowdown[:, chosen])
    failed = costs.tried & ~np.isfinite(costs.slowdown)
    burden[: len(tuned)][failed[:, chosen]] = _CANNOT_RUN
    return _FittedTree(grow_tree(columns, encoded, burden), columns.inputs, chosen, bound)


def _estimate_costs(encoded: Matrix, slowdown: Matrix) -> Matrix:
    """Return the logarithm of the slowdown [points, configs], estimated by a forest.

    The forest is fitted to the measured slowdown of the first points. A pruned config counts as a
    slow one and not as a failure, since a launch passes over it.

    Args:
        encoded: [points, columns], the encoded tuned scenarios, then others.
        slowdown: [tuned scenarios, configs].
    """
    from sklearn.ensemble import ExtraTreesRegressor

    slowness = np.log(np.minimum(slowdown, _HOPELESS))
    if slowness.shape[1] == 1:  # scikit-learn wants a single target without its axis
        slowness = slowness[:, 0]
    forest = ExtraTreesRegressor(_TREES, random_state=0).fit(encoded[: len(slowness)], slowness)
    expected: Matrix = forest.predict(encoded).reshape(len(encoded), -1)
    return np.round(expected, 5)  # so that rounding errors of sums decide nothing


def _cross_validate(costs: SlowdownTable, bound: float, progress: Progress) -> Regret:
    """Return the cost of a tree's choices in scenarios that were held out of its fit."""
    folds = min(len(costs), _FOLDS)
    regrets: list[float] = []
    order = np.random.default_rng(0).permutation(len(costs))  # the same way every time
    for fold in range(folds):
        held_out = sorted(order[fold::folds].tolist())
        model = _fit_tree(costs.rows(sorted(set(range(len(costs))) - set(held_out))), bound)
        for row in held_out:
            leaf = ranking(model.root, model.inputs, costs.scenarios[row].values)
            ranked = tuple(model.chosen[index] for index in leaf)
            column = _launched_config(ranked, model, costs.tried[row])
            regrets.append(float(costs.slowdown[row, column] - 1))
        progress.show(f"{(fold + 1) / folds:.0%}")
    finite = [regret for regret in regrets if np.isfinite(regret)]
    return Regret(
        mean=round(float(np.mean(finite)), 6) if finite else 0.0,
        max=round(max(finite, default=0.0), 6),
        failed=len(regrets) - len(finite),
        scenarios=len(regrets),
        folds=folds,
    )


def _launched_config(ranked: tuple[int, ...], model: _FittedTree, tried: NDArray[np.bool_]) -> int:
    """Return the column that a launch takes: the first ranked one that pruning left.

    If the tree has no answer, that is the set's most useful config.
    """
    return next((column for column in ranked if tried[column]), model.chosen[0])
