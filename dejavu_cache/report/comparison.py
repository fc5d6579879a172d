"""What the winners of one environment cost in another."""

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
    """The winners of one environment run in another: times over the best there."""

    home: str
    abroad: str
    agree: int
    slowdown: list[float]

    @property
    def choice(self) -> SelectionRule:
        return SelectionRule(
            f"winners of {self.home} on {self.abroad}", "", np.array(self.slowdown), None, ""
        )

    @property
    def shared(self) -> int:
        return len(self.slowdown)

    @property
    def share(self) -> float:
        return self.agree / self.shared if self.shared else 0.0


class Comparison:
    """The environments in which one problem was tuned."""

    def __init__(self, sections: Sequence[Section]) -> None:
        self.kernel = sections[0].context.kernel.name
        self.method = sections[0].context.problem.method
        names = _telling_names(sections)
        self.names = list(names)
        self.pairs = {
            (one, two): _foreign(one, names[one], two, names[two])
            for one, two in permutations(self.names, 2)
        }

    @property
    def lines(self) -> list[tuple[str, ForeignWinners]]:
        """The pairs that the plot shows, with their colours."""
        shown = [pair for pair in self.pairs.values() if pair.shared][:6]
        return [(f"pair-{place}", pair) for place, pair in enumerate(shown)]

    @property
    def plot(self) -> Markup:
        lines = [PlotLine(pair.choice.name, colour, pair.slowdown) for colour, pair in self.lines]
        return Markup(curves(lines, f"What foreign winners of {self.kernel} cost"))


def comparisons(sections: Sequence[Section]) -> Iterator[Comparison]:
    """The problems that were tuned in several environments."""
    together: dict[str, list[Section]] = {}
    for section in sections:
        together.setdefault(
            section.context.kernel.name + canonical_json(section.context.problem), []
        ).append(section)
    return (Comparison(several) for several in together.values() if len(several) > 1)


def _telling_names(sections: Sequence[Section]) -> dict[str, Section]:
    """The sections by the shortest names that tell them apart."""
    devices = [section.context.environment.device.name for section in sections]
    versions = [f"Triton {section.context.environment.triton}" for section in sections]
    for names in (devices, versions, [section.label for section in sections]):
        if len(set(names)) == len(sections):
            return dict(zip(names, sections, strict=True))
    return {f"{section.label}, {section.context.digest[:8]}": section for section in sections}


def _foreign(home: str, ours: Section, abroad: str, theirs: Section) -> ForeignWinners:
    column = {config: place for place, config in enumerate(theirs.costs.configs)}
    agree, slowdown = 0, []
    for row, scenario in enumerate(theirs.costs.scenarios):
        config = ours.winners.get(scenario)
        if config is None:
            continue
        agree += config == theirs.winners.get(scenario)
        slowdown.append(
            float(theirs.costs.slowdown[row, column[config]]) if config in column else math.inf
        )
    return ForeignWinners(home, abroad, agree, slowdown)
