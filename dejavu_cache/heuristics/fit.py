"""From records to a decision tree: the smallest set of configs, then a tree that chooses among them.

The tree learns what each config of the set is expected to cost in a scenario, not which one won there: to take the
second best where the two are close is no mistake, and what costs much next door may not be taken for having won by
chance. What a tree costs is told by scenarios that were held out of everything, of the choice of the set too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import TooFewRecordsError
from ..model.decision_tree import Input, Node, Regret, Tree, prepared
from ..model.record import RecordSet
from .config_subset import smallest_subset
from .features import ScenarioEncoder, scenario_values
from .slowdowns import Matrix, SlowdownTable
from .tree_growth import grow_tree

__all__ = ["BOUND", "LEAVES", "LIMIT", "NEEDED", "fit"]

BOUND = 0.05
LIMIT = 12
NEEDED = 10
"""Scenarios: of fewer, one that is held out says nothing about the others."""

LEAVES = 32

_HOPELESS = 1.4
"""Times over the best from which on it does not matter how bad a config is."""

_TREES = 100

_CANNOT_RUN = 1e3
"""The burden of a failure: a leaf takes a config that failed in one of its scenarios only if all others did too."""

_FOLDS = 100
"""In how many parts scenarios are held out; of fewer scenarios, each by itself.

A part of several may hold out neighbours together, and then what it says depends on how they were shuffled.
"""


def fit(
    whole: RecordSet,
    *,
    bound: float = BOUND,
    limit: int = LIMIT,
    leaves: int = LEAVES,
    progress: Callable[[float], None] = lambda share: None,
) -> Tree:
    """Fits a tree to the records of one context; equal records give an equal tree.

    Args:
        bound: how far, as a share, the nearest config of the set may be from the best of all in any scenario.
        limit: how many configs at most; where they do not suffice, the bound is exceeded.
        leaves: how many leaves at most.
        progress: is told which share of the work is done.

    Raises:
        TooFewRecordsError: fewer than `NEEDED` scenarios have two timed configs.
    """
    costs = SlowdownTable.of(whole.records)
    if len(costs) < NEEDED:
        kernel, device = whole.context.kernel.name, whole.context.environment.device.name
        raise TooFewRecordsError(
            f"{kernel} has {len(costs)} scenarios with two timed configs or more on {device}, and a tree needs "
            f"{NEEDED}: tune {NEEDED - len(costs)} more"
        )
    model = _fitted(costs, bound, limit, leaves)
    return Tree(
        context=whole.context,
        configs=tuple(costs.configs[column] for column in model.chosen),
        inputs=model.inputs,
        root=model.root,
        bound=round(model.bound, 6),
        regret=_validated(costs, bound, limit, leaves, progress),
        at=max(each.at for record in whole.records for each in record.measurements),
    )


class _FittedTree(NamedTuple):
    """What was fitted: `chosen` are columns of the costs, and the leaves rank places in `chosen`."""

    root: Node
    inputs: dict[str, Input]
    chosen: list[int]
    bound: float


def _fitted(costs: SlowdownTable, bound: float, limit: int, leaves: int) -> _FittedTree:
    chosen, bound = smallest_subset(costs.slowdown, bound, limit)
    tuned = [scenario_values(scenario) for scenario in costs.scenarios]
    columns = ScenarioEncoder(tuned)
    # A tree is asked between the tuned scenarios too, and learns there as much.
    encoded = columns.encode([*tuned, *columns.beside(tuned)])
    burden = _expected(encoded, costs.slowdown[:, chosen])
    failed = costs.tried & ~np.isfinite(costs.slowdown)
    burden[: len(tuned)][failed[:, chosen]] = _CANNOT_RUN
    return _FittedTree(grow_tree(columns, encoded, burden, leaves), columns.inputs, chosen, bound)


def _expected(encoded: Matrix, slowdown: Matrix) -> Matrix:
    """[points, configs]: the logarithm of the slowdown, as measured in the first points and guessed in the others.

    What was pruned is passed over at a launch, so it is only as bad as having no good config.
    """
    from sklearn.ensemble import ExtraTreesRegressor

    slowness = np.log(np.minimum(slowdown, _HOPELESS))
    forest = ExtraTreesRegressor(_TREES, random_state=0).fit(
        encoded[: len(slowness)], slowness.squeeze()
    )
    expected: Matrix = forest.predict(encoded).reshape(len(encoded), -1)
    return np.round(expected, 5)  # the last bits of a sum decide nothing


def _validated(
    costs: SlowdownTable, bound: float, limit: int, leaves: int, progress: Callable[[float], None]
) -> Regret:
    """What choices cost in scenarios that nothing of the fit has seen."""
    folds = min(len(costs), _FOLDS)
    paid: list[float] = []
    for done, (kept, held) in enumerate(_folds(len(costs), folds), start=1):
        model = _fitted(costs.rows(kept), bound, limit, leaves)
        rank = prepared(model.root, model.inputs, model.chosen)
        for row in held:
            ranked = rank(scenario_values(costs.scenarios[row]))
            paid.append(float(costs.slowdown[row, _first(ranked, model, costs.tried[row])] - 1))
        progress(done / folds)
    ran = [each for each in paid if np.isfinite(each)]
    return Regret(
        mean=round(float(np.mean(ran)), 6) if ran else 0.0,
        max=round(max(ran, default=0.0), 6),
        failed=len(paid) - len(ran),
        scenarios=len(paid),
        folds=folds,
    )


def _first(ranked: tuple[int, ...], model: _FittedTree, tried: NDArray[np.bool_]) -> int:
    """What a launch takes: the first that pruning left; where the tree has no answer, the set's most useful config."""
    return next((column for column in ranked if tried[column]), model.chosen[0])


def _folds(count: int, folds: int) -> Iterator[tuple[list[int], list[int]]]:
    """Which rows are kept and which held out, shuffled the same way every time."""
    order = np.random.default_rng(0).permutation(count)
    for fold in range(folds):
        held = sorted(order[fold::folds].tolist())
        yield sorted(set(range(count)) - set(held)), held
