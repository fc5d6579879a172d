"""Rules that choose a config for every scenario, and their slowdown against the best config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ..heuristics.slowdowns import Matrix, SlowdownTable
from ..model.decision_tree import Tree
from ..model.scenario import Config
from ..system.plurals import counted

__all__ = [
    "SelectionRule",
    "default_rule",
    "has_values",
    "single_config_rule",
    "times",
    "tree_rule",
]


class SelectionRule(NamedTuple):
    """A rule that chooses configs, and its times.

    Attributes:
        colour: class of the style sheet.
        slowdown: [scenarios], times as multiples of the best; infinite where the chosen config
            cannot run.
        config: the config, if the rule always chooses the same.
        note: a remark for the reader.
    """

    name: str
    colour: str
    slowdown: Matrix
    config: Config | None
    note: str

    @property
    def finite(self) -> Matrix:
        """Slowdown in the scenarios where the chosen config runs."""
        finite: Matrix = self.slowdown[np.isfinite(self.slowdown)]
        return finite

    @property
    def mean(self) -> float:
        """Mean slowdown."""
        return float(self.finite.mean()) if len(self.finite) else math.inf

    @property
    def worst(self) -> float:
        """Largest slowdown."""
        return float(self.finite.max()) if len(self.finite) else math.inf

    @property
    def failed(self) -> int:
        """Number of scenarios in which the chosen config cannot run."""
        return len(self.slowdown) - len(self.finite)


def default_rule(costs: SlowdownTable, default: Mapping[str, str]) -> SelectionRule | None:
    """Return the rule that always chooses the default config.

    Args:
        costs: the slowdown table.
        default: values of the default config, as text.

    Returns:
        The rule, or None if not exactly one of the table's configs has the values.
    """
    columns = [column for column, config in enumerate(costs.configs) if has_values(config, default)]
    if not default or len(columns) != 1:
        return None
    return SelectionRule(
        "default", "by-default", costs.slowdown[:, columns[0]], costs.configs[columns[0]], ""
    )


def single_config_rule(costs: SlowdownTable) -> SelectionRule:
    """Return the rule that always chooses the config that serves all scenarios best.

    That is the fastest one on average of those that run in the most scenarios.
    """
    runs = np.isfinite(costs.slowdown)
    means = np.where(runs, costs.slowdown, 0).sum(axis=0) / np.maximum(runs.sum(axis=0), 1)
    best = min(range(len(means)), key=lambda column: (-runs[:, column].sum(), means[column]))
    return SelectionRule(
        "one config for all", "by-one", costs.slowdown[:, best], costs.configs[best], ""
    )


def tree_rule(costs: SlowdownTable, tree: Tree) -> SelectionRule:
    """Return the rule of a decision tree.

    As in a launch, that is the first of its ranked configs that pruning left in the scenario.
    """
    column_of = {config: column for column, config in enumerate(costs.configs)}
    slowdown = np.full(len(costs), np.inf)
    for row, scenario in enumerate(costs.scenarios):
        ranking = tree.rank(scenario.values)
        ranked = (column_of[config] for config in ranking if config in column_of)
        chosen = next((column for column in ranked if costs.tried[row, column]), None)
        if chosen is not None:
            slowdown[row] = costs.slowdown[row, chosen]
    regret = tree.regret
    note = f"held out: {times(1 + regret.mean)} on average, {times(1 + regret.max)} at worst"
    return SelectionRule(
        "decision tree",
        "by-tree",
        slowdown,
        None,
        f"{counted(len(tree.configs), 'config')}; {note}",
    )


def has_values(config: Config, wanted: Mapping[str, str]) -> bool:
    """Return whether a config has certain values, given as text."""
    values = {**config.params, **config.options}
    return all(name in values and str(values[name]) == value for name, value in wanted.items())


def times(ratio: float) -> str:
    """Format the ratio of two times."""
    if not math.isfinite(ratio):
        return "-"
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x"
