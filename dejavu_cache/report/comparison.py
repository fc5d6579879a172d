"""Compare environments: the slowdown of one environment's winners in another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from ..model.scenario import canonical_json
from .section import Section
from .selection_rules import SelectionRule
from .svg import PlotLine, curves

__all__ = ["Comparison", "comparisons"]


class ForeignWinners(NamedTuple):
    """The winners of one environment, run in another.

    Attributes:
        home: name of the environment whose winners they are.
        abroad: name of the environment that they run in.
        agree: number of scenarios in which both environments have the same winner.
        slowdown: times as multiples of the best abroad, by scenario that both have tuned.
    """

    home: str
    abroad: str
    agree: int
    slowdown: list[float]

    @property
    def choice(self) -> SelectionRule:
        """Winners as a rule that chooses configs."""
        return SelectionRule(
            f"winners of {self.home} on {self.abroad}", "", np.array(self.slowdown), None, ""
        )

    @property
    def shared(self) -> int:
        """Number of scenarios that both environments have tuned."""
        return len(self.slowdown)

    @property
    def share(self) -> float:
        """Share of these scenarios in which both have the same winner."""
        return self.agree / self.shared if self.shared else 0.0


class Comparison:
    """The environments in which one problem was tuned.

    Args:
        sections: one section per environment.
    """

    def __init__(self, sections: Sequence[Section]) -> None:
        """Compare the winners of every pair of sections."""
        self.kernel = sections[0].context.kernel.name
        self.method = sections[0].context.problem.method
        names = _telling_names(sections)
        self.names = list(names)
        self.pairs = {
            (home, abroad): _foreign_winners(home, names[home], abroad, names[abroad])
            for home, abroad in permutations(self.names, 2)
        }

    @property
    def lines(self) -> list[tuple[str, ForeignWinners]]:
        """Pairs of environments that the plot shows, each after its colour."""
        pairs = [pair for pair in self.pairs.values() if pair.shared][:6]
        return [(f"pair-{index}", pair) for index, pair in enumerate(pairs)]

    @property
    def plot(self) -> Markup:
        """Slowdowns of the pairs as curves."""
        lines = [PlotLine(pair.choice.name, colour, pair.slowdown) for colour, pair in self.lines]
        return Markup(curves(lines, f"What foreign winners of {self.kernel} cost"))


def comparisons(sections: Sequence[Section]) -> Iterator[Comparison]:
    """Return a comparison for each problem that was tuned in several environments."""
    by_problem: dict[str, list[Section]] = {}
    for section in sections:
        by_problem.setdefault(
            section.context.kernel.name + canonical_json(section.context.problem), []
        ).append(section)
    return (Comparison(several) for several in by_problem.values() if len(several) > 1)


def _telling_names(sections: Sequence[Section]) -> dict[str, Section]:
    """Return the sections by the shortest names that tell them apart."""
    devices = [section.context.environment.device.name for section in sections]
    versions = [f"Triton {section.context.environment.triton}" for section in sections]
    for names in (devices, versions, [section.label for section in sections]):
        if len(set(names)) == len(sections):
            return dict(zip(names, sections, strict=True))
    return {f"{section.label}, {section.context.digest[:8]}": section for section in sections}


def _foreign_winners(home: str, ours: Section, abroad: str, theirs: Section) -> ForeignWinners:
    column_of = {config: column for column, config in enumerate(theirs.costs.configs)}
    agree, slowdown = 0, []
    for row, scenario in enumerate(theirs.costs.scenarios):
        config = ours.winners.get(scenario)
        if config is None:
            continue
        agree += config == theirs.winners.get(scenario)
        slowdown.append(
            float(theirs.costs.slowdown[row, column_of[config]])
            if config in column_of
            else math.inf
        )
    return ForeignWinners(home, abroad, agree, slowdown)
