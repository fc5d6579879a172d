"""Columns of tables: values that all rows share are listed once, those that differ get a column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dejavu_cache.model.scenario import Config, Scenario, canonical_json

from ..storage.summaries import Summary

__all__ = ["LOUD", "ConfigNames", "ScenarioColumns", "excess_of"]

LOUD = 0.05
"""Share by which a choice is slower than the best from which pages say so loudly."""


def excess_of(summary: Summary) -> float | None:
    """Return the share by which a chosen config is slower than the best; None if unknown."""
    if summary.median is None or not summary.best:
        return None
    return summary.median / summary.best - 1


class ScenarioColumns:
    """The arguments of scenarios, divided into those that vary and those that do not.

    Attributes:
        shared: The values that all scenarios have, by argument.
        varying: The arguments that differ, in the kernel's order.
        ticks: The values of the varying arguments, numbers in numeric order.
    """

    def __init__(self, scenarios: Iterable[Scenario]) -> None:
        """Divide the arguments of some scenarios."""
        rows = [scenario.values for scenario in scenarios]
        names = dict.fromkeys(name for row in rows for name in row)
        distinct = {
            name: {canonical_json(row.get(name)): row.get(name) for row in rows} for name in names
        }
        self.shared = {
            name: next(iter(values.values()))
            for name, values in distinct.items()
            if len(values) == 1
        }
        self.varying = [name for name, values in distinct.items() if len(values) > 1]
        self.ticks = {name: sorted(distinct[name].values(), key=_sort_key) for name in self.varying}

    def cells(self, scenario: Scenario) -> list[Any]:
        """Return a scenario's values of the varying arguments."""
        values = scenario.values
        return [values.get(name, "") for name in self.varying]

    def order(self, scenario: Scenario, first: str = "") -> list[Any]:
        """Return a key that sorts scenarios by one argument first and then by all from the left."""
        values = scenario.values
        names = [first] if first in self.varying else []
        return [_sort_key(values.get(name)) for name in (*names, *self.varying)]


def _sort_key(value: Any) -> tuple[bool, float, str]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return False, float(value), ""
    return True, 0.0, canonical_json(value)


class ConfigNames:
    """Short names of configs: the values that not all of them share.

    Attributes:
        shared: The values that all configs share.
    """

    def __init__(self, configs: Sequence[Config]) -> None:
        """Find what some configs share; a config alone keeps its full name."""
        rows = [_config_values(config) for config in configs]
        first: Mapping[str, Any] = rows[0] if len(set(configs)) > 1 else {}
        self.shared = {
            name: value
            for name, value in first.items()
            if all(name in row and row[name] == value for row in rows)
        }

    def name(self, config: Config) -> str:
        """Return a config's values without the shared ones."""
        values = _config_values(config)
        differing = [f"{name}={value}" for name, value in values.items() if name not in self.shared]
        return ", ".join(differing) or str(config)

    def chosen(self, text: str | None) -> str:
        """Return the name of the config that readers get, given as JSON text."""
        return self.name(Config.model_validate_json(text)) if text else "no winner yet"


def _config_values(config: Config) -> dict[str, Any]:
    return {**config.params, **config.options}
