"""Fit a decision tree to records: choose a small set of configs, then grow a tree over it.

The tree learns what each config of the set is expected to cost in a scenario, not which one won
there. So choosing the second best where the two are close is no mistake, and a config that won by
chance is not chosen if it is slow in neighbouring scenarios. The tree's regret is measured on
scenarios that were held out of all steps, the choice of the set included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import TooFewRecordsError
from ..model.decision_tree import Input, Node, Regret, Tree, compile_tree
from ..model.record import RecordSet
from ..system.plurals import counted
from .config_subset import smallest_subset
from .features import ScenarioEncoder
from .slowdowns import Matrix, SlowdownTable
from .tree_growth import grow_tree

__all__ = ["BOUND", "LEAVES", "LIMIT", "NEEDED", "fit"]

BOUND = 0.05
"""Default for the accepted slowdown of the set's configs, as a share."""

LIMIT = 12
"""Default for the maximum number of configs."""

NEEDED = 10
"""Scenarios that a tree needs; with fewer, a held-out scenario says nothing about the others."""

LEAVES = 32
"""Default for the maximum number of leaves."""

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


def fit(
    records: RecordSet,
    *,
    bound: float = BOUND,
    limit: int = LIMIT,
    leaves: int = LEAVES,
    progress: Callable[[float], None] = lambda share: None,
) -> Tree:
    """Fit a tree to the records of one context; equal records give an equal tree.

    Args:
        records: the records of the context.
        bound: accepted slowdown, as a share, of the set's best config in any scenario.
        limit: maximum number of configs; if they do not suffice, the bound is exceeded.
        leaves: maximum number of leaves.
        progress: called with the share of the work that is done.

    Raises:
        TooFewRecordsError: fewer than `NEEDED` scenarios have a winner and two timed configs.
    """
    # A config that is fast because it is wrong may lead where no results were compared yet.
    finished = [record for record in records.records if record.is_exemplary]
    costs = SlowdownTable.of(finished)
    if len(costs) < NEEDED:
        kernel, device = records.context.kernel.name, records.context.environment.device.name
        uncompared = sum(record.is_finished for record in records.records) - len(finished)
        hint = f", or compare {counted(uncompared, 'winner')} by `dejavu-cache audit`"
        raise TooFewRecordsError(
            f"{kernel} has {counted(len(costs), 'scenario')} with a winner and two timed configs "
            f"or more on {device}, and a tree needs {NEEDED}: tune {NEEDED - len(costs)} more"
            f"{hint if uncompared else ''}"
        )
    model = _fit_tree(costs, bound, limit, leaves)
    return Tree(
        context=records.context,
        configs=tuple(costs.configs[column] for column in model.chosen),
        inputs=model.inputs,
        root=model.root,
        bound=round(model.bound, 6),
        regret=_cross_validate(costs, bound, limit, leaves, progress),
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


def _fit_tree(costs: SlowdownTable, bound: float, limit: int, leaves: int) -> _FittedTree:
    chosen, bound = smallest_subset(costs.slowdown, bound, limit)
    tuned = [scenario.values for scenario in costs.scenarios]
    columns = ScenarioEncoder(tuned)
    # A tree is also asked about scenarios between the tuned ones, so it learns from those too.
    encoded = columns.encode([*tuned, *columns.neighbours(tuned)])
    burden = _estimate_costs(encoded, costs.slowdown[:, chosen])
    failed = costs.tried & ~np.isfinite(costs.slowdown)
    burden[: len(tuned)][failed[:, chosen]] = _CANNOT_RUN
    return _FittedTree(grow_tree(columns, encoded, burden, leaves), columns.inputs, chosen, bound)


def _estimate_costs(encoded: Matrix, slowdown: Matrix) -> Matrix:
    """Return the logarithm of the slowdown [points, configs], estimated by a forest.

    The forest is fitted to the measured slowdown of the first points. A pruned config counts as a
    slow one and not as a failure, since a launch passes over it.

    Args:
        encoded: [points, columns], the encoded tuned scenarios, then others.
        slowdown: [tuned scenarios, configs].
    """
    from sklearn import config_context
    from sklearn.tree import ExtraTreeRegressor

    slowness = np.log(np.minimum(slowdown, _HOPELESS))
    points = np.ascontiguousarray(encoded, dtype=np.float32)
    targets = np.ascontiguousarray(slowness, dtype=np.float64)
    seeds = np.random.RandomState(0)
    total = np.zeros((len(points), targets.shape[1]))
    # These are the trees of `ExtraTreesRegressor(_TREES, random_state=0)`, which spends more time
    # on copying and checking the parameters of such small trees than they take to grow.
    with config_context(assume_finite=True, skip_parameter_validation=True):
        for _ in range(_TREES):
            tree = ExtraTreeRegressor(random_state=seeds.randint(np.iinfo(np.int32).max))
            tree.fit(points[: len(targets)], targets, check_input=False)
            total += tree.predict(points, check_input=False).reshape(total.shape)
    expected: Matrix = total / _TREES
    return np.round(expected, 5)  # so that rounding errors of sums decide nothing


def _cross_validate(
    costs: SlowdownTable, bound: float, limit: int, leaves: int, progress: Callable[[float], None]
) -> Regret:
    """Return the cost of a tree's choices in scenarios that were held out of its fit."""
    folds = min(len(costs), _FOLDS)
    regrets: list[float] = []
    for done, (training, held_out) in enumerate(_folds(len(costs), folds), start=1):
        model = _fit_tree(costs.rows(training), bound, limit, leaves)
        rank = compile_tree(model.root, model.inputs, model.chosen)
        for row in held_out:
            ranked = rank(costs.scenarios[row].values)
            column = _launched_config(ranked, model, costs.tried[row])
            regrets.append(float(costs.slowdown[row, column] - 1))
        progress(done / folds)
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


def _folds(count: int, folds: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the rows to train on and the rows held out, shuffled the same way every time."""
    order = np.random.default_rng(0).permutation(count)
    for fold in range(folds):
        held_out = sorted(order[fold::folds].tolist())
        yield sorted(set(range(count)) - set(held_out)), held_out
