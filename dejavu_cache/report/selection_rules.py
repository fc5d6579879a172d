"""Ways to choose a config for every scenario, and what they cost over the best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ..heuristics.features import scenario_values
from ..heuristics.slowdowns import Matrix, SlowdownTable
from ..model.decision_tree import Tree
from ..model.scenario import Config

__all__ = [
    "SelectionRule",
    "default_rule",
    "has_values",
    "single_config_rule",
    "times",
    "tree_rule",
]


class SelectionRule(NamedTuple):
    """A way to choose, and its time over the best in every scenario, infinite where its config cannot run."""

    name: str
    colour: str
    slowdown: Matrix
    config: Config | None
    """The config, if it is always the same."""
    note: str

    @property
    def ran(self) -> Matrix:
        ran: Matrix = self.slowdown[np.isfinite(self.slowdown)]
        return ran

    @property
    def mean(self) -> float:
        return float(self.ran.mean()) if len(self.ran) else math.inf

    @property
    def worst(self) -> float:
        return float(self.ran.max()) if len(self.ran) else math.inf

    @property
    def failed(self) -> int:
        return len(self.slowdown) - len(self.ran)


def default_rule(costs: SlowdownTable, default: Mapping[str, str]) -> SelectionRule | None:
    """The config that has some values, given as text; None if not exactly one of those that ran has them."""
    named = [column for column, config in enumerate(costs.configs) if has_values(config, default)]
    if not default or len(named) != 1:
        return None
    return SelectionRule(
        "default", "by-default", costs.slowdown[:, named[0]], costs.configs[named[0]], ""
    )


def single_config_rule(costs: SlowdownTable) -> SelectionRule:
    """The config that serves all scenarios best: that runs in the most, and costs the least on average."""
    ran = np.isfinite(costs.slowdown)
    means = np.where(ran, costs.slowdown, 0).sum(axis=0) / np.maximum(ran.sum(axis=0), 1)
    best = min(range(len(means)), key=lambda column: (-ran[:, column].sum(), means[column]))
    return SelectionRule(
        "one config for all", "by-one", costs.slowdown[:, best], costs.configs[best], ""
    )


def tree_rule(costs: SlowdownTable, tree: Tree) -> SelectionRule:
    """What a tree chooses, as a launch asks it: the first of its configs that pruning left in the scenario."""
    place = {config: column for column, config in enumerate(costs.configs)}
    slowdown = np.full(len(costs), np.inf)
    for row, scenario in enumerate(costs.scenarios):
        ranked = (place[each] for each in tree.rank(scenario_values(scenario)) if each in place)
        chosen = next((column for column in ranked if costs.tried[row, column]), None)
        if chosen is not None:
            slowdown[row] = costs.slowdown[row, chosen]
    regret = tree.regret
    note = f"held out: {times(1 + regret.mean)} on average, {times(1 + regret.max)} at worst"
    return SelectionRule(
        "decision tree", "by-tree", slowdown, None, f"{len(tree.configs)} configs; {note}"
    )


def has_values(config: Config, wanted: Mapping[str, str]) -> bool:
    """Whether a config has all of some values, given as text."""
    values = {**config.params, **config.options}
    return all(name in values and str(values[name]) == value for name, value in wanted.items())


def times(ratio: float) -> str:
    """A time over another, as the page writes it."""
    return "-" if not math.isfinite(ratio) else f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x"
