"""Fit a decision tree to records.

The tree learns what each config is expected to cost in a scenario, not which one won there. So
choosing the second best where the two are close is no mistake, and a config that won by chance is
not chosen if it is slow in neighbouring scenarios. The tree's regret is measured on scenarios that
were held out of all steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dejavu_cache.errors import TooFewRecordsError
from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Config, Scalar, Scenario, canonical_json
from dejavu_cache.prediction.features import Matrix
from dejavu_cache.prediction.slowdown_model import matern
from dejavu_cache.system.notices import Progress, counted

from .decision_tree import (
    AtMost,
    Equals,
    Input,
    Leaf,
    Node,
    Regret,
    Single,
    Tree,
    choice,
    choices,
    is_number,
)

NEEDED = 10
"""Scenarios that a tree needs; with fewer, a held-out scenario says nothing about the others."""

CONFIGS, LEAVES = 12, 32
"""Configs and leaves of a tree at most; there is a config for every two scenarios at most."""

_HOPELESS = 1.4
"""Multiple of the best time from which on it does not matter how slow a config is."""

_CANNOT_RUN = 1e3
"""Cost of a failure: a leaf only chooses a config that failed there if all others did too."""

_WORTH = 0.001
"""Cost that a question must save, so that none is asked because of rounding errors."""

_SCALE = 2.0
"""Distance over which scenarios stay alike, in standard deviations of their values."""

_FACTORS = (0.5, 0.5, 2.0, 0.25)
"""Factors by which a column may come to count less or more, tried in this order."""

_NOISE = 0.01
"""Variance of a measured slowdown, relative to that of slowdowns."""

_FURTHER = 400
"""Most points, two steps from tuned scenarios, whose costs are estimated too."""

_FOLDS = 100
"""Maximum number of folds; up to as many scenarios, each one is held out by itself.

A fold of several scenarios may hold out neighbours together, and then its regret depends on how the
scenarios were shuffled.
"""

_INSTANT = 1e-9
"""Milliseconds that stand for a median of zero, which is below a clock's resolution."""

Values = Mapping[str, Any]
"""The inputs of a decision tree by name."""


@dataclass(frozen=True)
class SlowdownTable:
    """Times as multiples of the best in each scenario.

    Attributes:
        slowdown: [scenarios, configs], 1.0 for the best of a row, infinite for a config that
            failed, and not a number for one that was not measured.
    """

    scenarios: tuple[Scenario, ...]
    configs: tuple[Config, ...]
    slowdown: Matrix

    @classmethod
    def of(cls, records: Iterable[Record]) -> SlowdownTable:
        """Make the table of all records that have at least two timed configs."""
        times = {
            record.scenario: {
                entry.config: math.inf if entry.median is None else max(entry.median, _INSTANT)
                for entry in record.measurements
                if not entry.skipped
            }
            for record in sorted(records, key=lambda record: record.scenario.text)
            if sum(entry.median is not None for entry in record.measurements) > 1
        }
        configs = sorted(
            {config for row in times.values() for config, time in row.items() if time < math.inf},
            key=lambda config: config.text,
        )
        slowdown = np.array(
            [
                [row.get(config, math.nan) / min(row.values()) for config in configs]
                for row in times.values()
            ]
        ).reshape(len(times), len(configs))
        return cls(tuple(times), tuple(configs), slowdown)

    def __len__(self) -> int:
        """Return the number of scenarios."""
        return len(self.scenarios)

    def without(self, rows: Sequence[int]) -> SlowdownTable:
        """Return the table of the other scenarios."""
        left = [row for row in range(len(self)) if row not in rows]
        scenarios = tuple(self.scenarios[row] for row in left)
        return SlowdownTable(scenarios, self.configs, self.slowdown[left])

    @property
    def slowness(self) -> Matrix:
        """The logarithms of the slowdowns; what failed or was not measured counts as slow."""
        slowness: Matrix = np.log(np.fmin(self.slowdown, _HOPELESS))
        return slowness


def fit(records: RecordSet) -> Tree:
    """Fit a tree to the records of one context; equal records give an equal tree.

    Raises:
        TooFewRecordsError: fewer than `NEEDED` scenarios have a compared winner and two timed
            configs.
    """
    # A config that is fast because it is wrong may lead where no results were compared yet.
    finished = [record for record in records.records if record.is_exemplary]
    costs = SlowdownTable.of(finished)
    kernel, device = records.context.kernel.name, records.context.environment.device.name
    if len(costs) < NEEDED:
        uncompared = sum(record.is_finished for record in records.records) - len(finished)
        hint = f", or compare {counted(uncompared, 'winner')} by `dejavu-cache sweep`"
        raise TooFewRecordsError(
            f"{kernel} has {counted(len(costs), 'scenario')} with a compared winner and two timed "
            f"configs on {device}, and a tree needs {NEEDED}: tune {NEEDED - len(costs)} more"
            f"{hint if uncompared else ''}"
        )
    root, inputs = _fit_tree(costs)
    used = sorted(set(choices(root)))
    return Tree(
        context=records.context,
        configs=tuple(costs.configs[column] for column in used),
        inputs=inputs,
        root=_renumber(root, {column: index for index, column in enumerate(used)}),
        regret=_cross_validate(costs, Progress(f"{kernel} on {device}")),
        single=_best_single(costs),
        at=max(measurement.at for record in finished for measurement in record.measurements),
    )


def _renumber(node: Node, numbers: Mapping[int, int]) -> Node:
    """Return the tree with other numbers for its configs."""
    if isinstance(node, Leaf):
        return Leaf(config=numbers[node.config])
    yes, no = _renumber(node.yes, numbers), _renumber(node.no, numbers)
    return node.model_copy(update={"yes": yes, "no": no})


def _best_single(costs: SlowdownTable) -> Single | None:
    """Return the config that runs in all scenarios and has the lowest mean slowdown, if any."""
    means = np.nan_to_num(costs.slowdown.mean(axis=0), nan=math.inf)
    best = int(means.argmin())
    if means[best] == math.inf:
        return None
    mean, worst = float(means[best]) - 1, float(costs.slowdown[:, best].max()) - 1
    return Single(config=costs.configs[best], mean=round(mean, 6), max=round(worst, 6))


def _cross_validate(costs: SlowdownTable, progress: Progress) -> Regret:
    """Return the cost of a tree's choices in scenarios that were held out of its fit.

    Where the tree has no answer, the config that is fastest on average is taken.
    """
    folds = min(len(costs), _FOLDS)
    regrets: list[float] = []
    order = np.random.default_rng(0).permutation(len(costs))  # the same way every time
    for fold in range(folds):
        held_out = sorted(order[fold::folds].tolist())
        others = costs.without(held_out)
        root, inputs = _fit_tree(others)
        for row in held_out:
            column = choice(root, inputs, costs.scenarios[row].values)
            if column is None:
                column = int(others.slowness.mean(axis=0).argmin())
            regrets.append(float(costs.slowdown[row, column]) - 1)
        progress.show(f"{(fold + 1) / folds:.0%}")
    finite = [regret for regret in regrets if math.isfinite(regret)]
    return Regret(
        mean=round(float(np.mean(finite)), 6) if finite else 0.0,
        max=round(max(finite, default=0.0), 6),
        failed=len(regrets) - len(finite),
        scenarios=len(regrets),
        folds=folds,
    )


def _fit_tree(costs: SlowdownTable) -> tuple[Node, dict[str, Input]]:
    """Return a tree whose leaves have columns of the table, and the inputs that it answers for."""
    tuned = [scenario.values for scenario in costs.scenarios]
    inputs, questions = _inputs_of(tuned)
    # A tree is also asked about scenarios between the tuned ones, so it learns from those too.
    points = [*tuned, *_points_around(tuned)]
    answers = np.array([[question.ask(values) for question in questions] for values in points])
    products = [isinstance(one, _Size) and len(one.inputs) > 1 for one in questions]
    single = [index for index, is_product in enumerate(products) if not is_product]
    burden = _estimate(_scale_answers(answers[:, single]), costs.slowness)
    burden[: len(tuned)][np.isinf(costs.slowdown)] = _CANNOT_RUN
    chosen = _choose_configs(burden, min(CONFIGS, len(tuned) // 2))
    root = _grow_tree(questions, answers, burden[:, chosen])
    return _renumber(root, dict(enumerate(chosen))), inputs


def _choose_configs(burden: Matrix, most: int) -> list[int]:
    """Choose columns one by one, each the one that reduces the remaining cost most."""
    chosen: list[int] = []
    left = np.full((len(burden), 1), np.inf)
    for _ in range(min(most, burden.shape[1])):
        chosen.append(int(np.minimum(burden, left).sum(axis=0).argmin()))
        left = np.minimum(left, burden[:, chosen[-1:]])
    return chosen


def _points_around(tuned: Sequence[Values]) -> list[Values]:
    """Return points one step of one number away from scenarios, and some of those two away."""
    numbers_of = {
        name: sorted({values[name] for values in tuned if is_number(values.get(name))})
        for name in {name for values in tuned for name in values}
    }

    def steps(points: Iterable[Values]) -> list[Values]:
        return [
            {**values, name: numbers[index]}
            for values in points
            for name, numbers in sorted(numbers_of.items())
            if is_number(values.get(name))
            for index in (numbers.index(values[name]) - 1, numbers.index(values[name]) + 1)
            if 0 <= index < len(numbers)
        ]

    once = _distinct(steps(tuned), tuned)
    twice = _distinct(steps(once), [*tuned, *once])
    drawn = np.random.default_rng(0).permutation(len(twice))[:_FURTHER]
    return [*once, *(twice[index] for index in drawn)]


def _distinct(points: Iterable[Values], others: Iterable[Values]) -> list[Values]:
    """Return the points without repetition that are not among others."""
    new = {frozenset(values.items()): values for values in points}
    for values in others:
        new.pop(frozenset(values.items()), None)
    return list(new.values())


def _scale_answers(answers: Matrix) -> Matrix:
    """Return answers to questions, positive ones by their logarithms, scaled by their spread."""
    finite = np.isfinite(answers)
    logarithmic = (answers > 0).all(axis=0)
    values = np.where(logarithmic, np.log2(np.where(answers > 0, answers, 1.0)), answers)
    above = np.where(finite, values, -math.inf).max(axis=0) + 1
    values = np.where(finite, values, above)
    scaled: Matrix = values / values.std(axis=0)
    return scaled


def _estimate(encoded: Matrix, slowness: Matrix) -> Matrix:
    """Return the expected slowness [points, configs], by a Gaussian process over scenarios.

    Args:
        encoded: [points, columns], the encoded tuned scenarios, then others.
        slowness: [tuned scenarios, configs].
    """
    tuned, mean = encoded[: len(slowness)], slowness.mean(axis=0)
    weights = _relevances(tuned, slowness - mean)
    across = matern(encoded * weights, tuned * weights, _SCALE)
    gram = across[: len(tuned)] + _NOISE * np.eye(len(tuned))
    expected: Matrix = mean + across @ np.linalg.solve(gram, slowness - mean)
    return np.round(expected, 5)  # so that rounding errors of sums decide nothing


def _relevances(tuned: Matrix, residuals: Matrix) -> Matrix:
    """Return the factor by which differences of each column count.

    Of a few factors, each column in turn takes the one by which every scenario is predicted best
    from all others: the leave-one-out errors of a Gaussian process (Rasmussen and Williams, 5.12).
    """

    def error(weights: Matrix) -> float:
        gram = matern(tuned * weights, tuned * weights, _SCALE) + _NOISE * np.eye(len(tuned))
        inverse = np.linalg.inv(gram)
        return float((((inverse @ residuals) / inverse.diagonal()[:, None]) ** 2).sum())

    weights = np.ones(tuned.shape[1])
    least = error(weights)
    for factor, column in product(_FACTORS, range(len(weights))):
        changed = weights.copy()
        changed[column] *= factor
        if (error_now := error(changed)) < least - 1e-9:
            weights, least = changed, error_now
    return weights


class _Size(NamedTuple):
    """A question for a number, or for the product of two inputs: grids are products."""

    inputs: tuple[str, ...]

    def ask(self, values: Values) -> float:
        """Return the number; values that are no numbers lie above all."""
        factors: list[Any] = [values.get(name) for name in self.inputs]
        return float(math.prod(factors)) if all(map(is_number, factors)) else math.inf

    def split(self, low: float, high: float, below: Node, above: Node) -> Node:
        """Return the node that tells numbers up to `low` from those from `high` on."""
        return AtMost(inputs=self.inputs, at_most=_between(low, high), yes=below, no=above)


class _Equality(NamedTuple):
    """A question whether an input has a certain value."""

    input: str
    value: Scalar

    def ask(self, values: Values) -> float:
        """Return 1 if it has, and else 0."""
        return float(values.get(self.input) == self.value)

    def split(self, _low: float, _high: float, below: Node, above: Node) -> Node:
        """Return the node that tells other values from the value."""
        return Equals(input=self.input, equals=self.value, yes=above, no=below)


_Question = _Size | _Equality


def _between(low: float, high: float) -> float | int:
    """Return a number with few digits about half-way, at least `low` and less than `high`."""
    middle = math.sqrt(low * high) if low > 0 else (low + high) / 2
    for digits in range(2, 17):
        short = float(f"{middle:.{digits}g}")
        if low <= short < high:
            return int(short) if short.is_integer() else short
    return low


def _inputs_of(tuned: Sequence[Values]) -> tuple[dict[str, Input], list[_Question]]:
    """Return the values for which a tree answers, and the questions that it may ask.

    No question is about an input that never varied; instead, the tree answers for no other value.
    """
    inputs: dict[str, Input] = {}
    sizes: list[str] = []
    questions: list[_Question] = []
    for name in sorted({name for values in tuned for name in values}):
        seen: list[Any] = [values.get(name) for values in tuned]
        numbers = sorted({value for value in seen if is_number(value)})
        others = sorted({value for value in seen if not is_number(value)}, key=canonical_json)
        several = len(numbers) > 1
        inputs[name] = Input(numbers=several, values=(*others, *(() if several else numbers)))
        if several:
            questions.append(_Size((name,)))
            if numbers[0] > 0:
                sizes.append(name)
        # One question tells two values apart, and a single value needs none.
        asked = others if numbers or len(others) > 2 else others[1:]
        questions += [_Equality(name, value) for value in asked]
    return inputs, [*questions, *(_Size(pair) for pair in combinations(sizes, 2))]


def _grow_tree(questions: Sequence[_Question], answers: Matrix, burden: Matrix) -> Node:
    """Grow a tree by asking the question that saves most until there are enough leaves.

    Args:
        questions: what may be asked.
        answers: [points, questions].
        burden: [points, configs], the cost of each config at each point.
    """
    root = _Region(answers, burden, np.arange(len(answers)))
    regions = [root]
    while len(regions) < LEAVES:
        best = max(regions, key=lambda region: region.saving)
        if best.saving < _WORTH:
            break
        regions.remove(best)
        regions += best.divide()
    return root.node(questions)


class _Region:
    """Some of the points, the question that saves most for them, and the regions that it makes."""

    def __init__(self, answers: Matrix, burden: Matrix, rows: NDArray[np.intp]) -> None:
        self._answers, self._burden, self._rows = answers, burden, rows
        self._regions: list[_Region] = []
        self.saving, self._question, self._low, self._high = max(
            (self._cut(question) for question in range(answers.shape[1])), key=lambda cut: cut[0]
        )

    def _cut(self, question: int) -> tuple[float, int, float, float]:
        """Return the saving of a question's best cut, the question, and the answers beside it."""
        order = self._rows[self._answers[self._rows, question].argsort(kind="stable")]
        values, below = self._answers[order, question], self._burden[order].cumsum(axis=0)
        ends = np.flatnonzero(values[1:] > values[:-1])
        if not len(ends):
            return 0.0, question, 0.0, 0.0
        cost = below[ends].min(axis=1) + (below[-1] - below[ends]).min(axis=1)
        # Rounding makes savings equal that differ in the order of summation only; of equal savings,
        # the first question's is taken.
        saves = (below[-1].min() - cost).round(6)
        best = ends[saves.argmax()]
        return float(saves.max()), question, float(values[best]), float(values[best + 1])

    def divide(self) -> list[_Region]:
        """Return the regions below and above the cut."""
        is_below = self._answers[self._rows, self._question] <= self._low
        self._regions = [
            _Region(self._answers, self._burden, self._rows[side]) for side in (is_below, ~is_below)
        ]
        return self._regions

    def node(self, questions: Sequence[_Question]) -> Node:
        """Return the region's tree."""
        if self._regions:
            below, above = (region.node(questions) for region in self._regions)
            return questions[self._question].split(self._low, self._high, below, above)
        return Leaf(config=int(self._burden[self._rows].sum(axis=0).round(6).argmin()))
