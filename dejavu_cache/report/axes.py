"""Choose which inputs of a kernel's scenarios are a map's axes, and which tell its panels apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..model.scenario import Scenario, canonical_json
from .svg import PlotCell, grid

__all__ = ["Axes"]


class Axes:
    """Positions of scenarios on maps with two axes.

    The axes are the two inputs with the most values, numbers first; each combination of the other
    inputs' values is a panel.
    """

    def __init__(self, scenarios: Sequence[Scenario]) -> None:
        """Assign the scenarios' inputs to panels, rows and columns."""
        points = [scenario.values for scenario in scenarios]
        names = list(
            dict.fromkeys(
                name for scenario in scenarios for name in (*scenario.args, *scenario.dtypes)
            )
        )
        self._ticks = {
            name: _sort_values({values.get(name) for values in points}) for name in names
        }
        varying = [name for name in names if len(self._ticks[name]) > 1]
        varying.sort(
            key=lambda name: (not _are_numbers(self._ticks[name]), -len(self._ticks[name]))
        )
        self.x, self.y = [*varying, "", ""][:2]
        self._others = varying[2:]
        self.panels = list(dict.fromkeys(map(self.panel, sorted(scenarios, key=self._in_order))))

    def position(self, scenario: Scenario) -> tuple[int, int]:
        """Return a scenario's column and row."""
        values = scenario.values
        x, y = (
            self._ticks[name].index(values.get(name)) if name else 0 for name in (self.x, self.y)
        )
        return x, y

    def panel(self, scenario: Scenario) -> str:
        """Return the name of a scenario's panel."""
        values = scenario.values
        return ", ".join(f"{name}={values.get(name)}" for name in self._others)

    def _in_order(self, scenario: Scenario) -> list[int]:
        values = scenario.values
        return [self._ticks[name].index(values.get(name)) for name in self._others]

    @property
    def size(self) -> int:
        """Number of positions on all panels."""
        return len(self._tick_labels(self.x)) * len(self._tick_labels(self.y)) * len(self.panels)

    def describe(self, position: tuple[int, int]) -> str:
        """Return the values of the axes' inputs at a position."""
        indices = zip((self.x, self.y), position, strict=True)
        return ", ".join(f"{name}={self._ticks[name][index]}" for name, index in indices if name)

    def draw(self, cells: Mapping[tuple[int, int], PlotCell], about: str) -> str:
        """Return a map of cells by position as SVG."""
        return grid(
            self.x, self._tick_labels(self.x), self.y, self._tick_labels(self.y), cells, about
        )

    def _tick_labels(self, name: str) -> list[str]:
        return [str(value) for value in self._ticks[name]] if name else [""]


def _sort_values(values: set[Any]) -> list[Any]:
    numbers = sorted(value for value in values if type(value) in (int, float))
    return [*numbers, *sorted(values - set(numbers), key=canonical_json)]


def _are_numbers(values: Sequence[Any]) -> bool:
    return sum(type(value) in (int, float) for value in values) > 1
