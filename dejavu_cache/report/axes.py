"""Which inputs of a kernel's scenarios make the axes of a map, and which its panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..heuristics.features import scenario_values
from ..model.scenario import Scenario, canonical_json
from .svg import PlotCell, grid

__all__ = ["Axes"]


class Axes:
    """Scenarios on two axes: the two inputs with the most values, numbers first; the others make the panels."""

    def __init__(self, scenarios: Sequence[Scenario]) -> None:
        held = [scenario_values(scenario) for scenario in scenarios]
        names = list(
            dict.fromkeys(
                name for scenario in scenarios for name in (*scenario.args, *scenario.dtypes)
            )
        )
        self._ticks = {name: _ordered({values.get(name) for values in held}) for name in names}
        varying = [name for name in names if len(self._ticks[name]) > 1]
        varying.sort(
            key=lambda name: (not _are_numbers(self._ticks[name]), -len(self._ticks[name]))
        )
        self.x, self.y = [*varying, "", ""][:2]
        self._others = varying[2:]
        self.panels = list(dict.fromkeys(map(self.panel, sorted(scenarios, key=self._in_order))))

    def place(self, scenario: Scenario) -> tuple[int, int]:
        values = scenario_values(scenario)
        x, y = (
            self._ticks[name].index(values.get(name)) if name else 0 for name in (self.x, self.y)
        )
        return x, y

    def panel(self, scenario: Scenario) -> str:
        values = scenario_values(scenario)
        return ", ".join(f"{name}={values.get(name)}" for name in self._others)

    def _in_order(self, scenario: Scenario) -> list[int]:
        values = scenario_values(scenario)
        return [self._ticks[name].index(values.get(name)) for name in self._others]

    @property
    def size(self) -> int:
        return len(self._named(self.x)) * len(self._named(self.y)) * len(self.panels)

    def told(self, place: tuple[int, int]) -> str:
        named = zip((self.x, self.y), place, strict=True)
        return ", ".join(f"{name}={self._ticks[name][index]}" for name, index in named if name)

    def drawn(self, cells: Mapping[tuple[int, int], PlotCell], about: str) -> str:
        return grid(self.x, self._named(self.x), self.y, self._named(self.y), cells, about)

    def _named(self, name: str) -> list[str]:
        return [str(value) for value in self._ticks[name]] if name else [""]


def _ordered(values: set[Any]) -> list[Any]:
    numbers = sorted(value for value in values if type(value) in (int, float))
    return [*numbers, *sorted(values - set(numbers), key=canonical_json)]


def _are_numbers(values: Sequence[Any]) -> bool:
    return sum(type(value) in (int, float) for value in values) > 1
