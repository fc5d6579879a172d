"""A context's records as the report shows them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from markupsafe import Markup

from ..heuristics.slowdowns import SlowdownTable
from ..model.decision_tree import Tree
from ..model.record import Record, RecordSet
from ..model.scenario import Config, Scenario
from ..model.selection import winner
from .axes import Axes
from .selection_rules import SelectionRule, default_rule, single_config_rule, tree_rule
from .svg import PlotBar, PlotCell, PlotLine, bars, curves

__all__ = ["Section"]

_CLOSE = 0.05
_COLOURS = 8
_PANELS = 12
_SHADES = 5


class Section:
    """A context's records, as the page shows them."""

    def __init__(self, whole: RecordSet, tree: Tree | None, default: Mapping[str, str]) -> None:
        self.context, self.records, self.tree = whole.context, whole.records, tree
        self._default = default
        self.costs = SlowdownTable.of(whole.records)
        self.wins = Counter(self.winners.values())
        self.ranked = sorted(self.wins, key=lambda config: (-self.wins[config], config.text))
        self._axes = Axes([record.scenario for record in self.records])

    @property
    def label(self) -> str:
        environment = self.context.environment
        return f"{environment.device.name}, Triton {environment.triton}"

    @cached_property
    def winners(self) -> dict[Scenario, Config]:
        """The best config of each scenario in which anything ran."""
        found = {record.scenario: winner(record, set(record.by_config)) for record in self.records}
        return {scenario: config for scenario, config in found.items() if config is not None}

    @property
    def counts(self) -> dict[str, int]:
        measurements = [each for record in self.records for each in record.measurements]
        configs = {each.config for each in measurements}
        failed = sum(each.failure is not None for each in measurements)
        return {
            "scenarios": len(self.records),
            "configs": len(configs),
            "measurements": len(measurements),
            "failed": failed,
            "missing": len(self.records) * len(configs) - len(measurements),
        }

    @cached_property
    def failures(self) -> list[tuple[str, int]]:
        failures = [
            each.failure for record in self.records for each in record.measurements if each.failure
        ]
        return Counter(failure.kind.replace("_", " ") for failure in failures).most_common()

    @cached_property
    def choices(self) -> list[SelectionRule]:
        """The default, the best single config and the tree, as far as there are any."""
        if not len(self.costs):
            return []
        tree = self.tree and tree_rule(self.costs, self.tree)
        return [
            each
            for each in (
                default_rule(self.costs, self._default),
                single_config_rule(self.costs),
                tree,
            )
            if each
        ]

    def note(self, choice: SelectionRule) -> str:
        """Which config it is, or which tree."""
        if choice.config is not None or self.tree is None:
            return self.name(choice.config) if choice.config else choice.note
        fitted_on, here = self.tree.context, self.context
        elsewhere = (
            []
            if fitted_on.environment == here.environment
            else [f"Triton {fitted_on.environment.triton}"]
        )
        elsewhere += [] if fitted_on.kernel == here.kernel else ["other code"]
        return choice.note + (f"; fitted on {' and '.join(elsewhere)}" if elsewhere else "")

    @property
    def cost_plot(self) -> Markup:
        lines = [PlotLine(each.name, each.colour, each.slowdown.tolist()) for each in self.choices]
        return Markup(
            curves(lines, f"Costs of choices for {self.context.kernel.name} on {self.label}")
        )

    @property
    def coverage_plot(self) -> Markup:
        """On the map's two axes, how many of the combinations of all else are tuned."""
        counts = Counter(self._axes.place(record.scenario) for record in self.records)
        of = len(self._axes.panels)
        cells = {
            place: PlotCell(
                f"{count}" if of > 1 else "✓",
                f"shade-{math.ceil(count / of * _SHADES)}",
                f"{self._axes.told(place)}: {count} of {of} tuned",
            )
            for place, count in counts.items()
        }
        return Markup(
            self._axes.drawn(
                cells, f"Tuned scenarios of {self.context.kernel.name} on {self.label}"
            )
        )

    @property
    def combinations(self) -> int:
        return len(self._axes.panels)

    @property
    def holes(self) -> int:
        """Combinations of values that were tuned apart but not together."""
        return self._axes.size - len(self.records)

    @property
    def winner_plots(self) -> Iterator[tuple[str, Markup]]:
        """For each combination of what is not on the axes, a map of the winners."""
        for panel, records in self._panels()[:_PANELS]:
            cells = {self._axes.place(record.scenario): self._won(record) for record in records}
            yield (
                panel,
                Markup(
                    self._axes.drawn(
                        cells, f"Winners of {self.context.kernel.name} where {panel or 'tuned'}"
                    )
                ),
            )

    @property
    def panels_left_out(self) -> int:
        return max(len(self._axes.panels) - _PANELS, 0)

    def _panels(self) -> list[tuple[str, list[Record]]]:
        panels: dict[str, list[Record]] = {panel: [] for panel in self._axes.panels}
        for record in self.records:
            panels[self._axes.panel(record.scenario)].append(record)
        return list(panels.items())

    def _won(self, record: Record) -> PlotCell:
        config = self.winners.get(record.scenario)
        if config is None:
            return PlotCell("✗", "hole", f"{record.scenario}: nothing runs")
        took = record.by_config[config].median
        return PlotCell(
            self.mark(config),
            self.colour(config),
            f"{record.scenario}: {self.name(config)}, {took:.4g} ms",
        )

    def mark(self, config: Config) -> str:
        """A letter for a config that has a colour, and a dot for the others."""
        place = self.ranked.index(config)
        return "ABCDEFGH"[place] if place < _COLOURS else "·"

    def colour(self, config: Config) -> str:
        return f"colour-{min(self.ranked.index(config), _COLOURS)}"

    @cached_property
    def _constant(self) -> set[tuple[str, Any]]:
        """The values that all configs share: there is no need to repeat them."""
        values = [
            frozenset({**config.params, **config.options}.items())
            for config in self.ranked or [Config()]
        ]
        return set(frozenset.intersection(*values)) if len(values) > 1 else set()

    def name(self, config: Config) -> str:
        """A config without what all winners share."""
        values = {**config.params, **config.options}.items()
        telling = [
            f"{name}={value}" for name, value in values if (name, value) not in self._constant
        ]
        return ", ".join(telling) or str(config)

    @property
    def shared(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in sorted(self._constant, key=str))

    @property
    def config_plot(self) -> Markup:
        """How often each config is the best, and how often it is close."""
        place = {config: column for column, config in enumerate(self.costs.configs)}
        close = (self.costs.slowdown <= 1 + _CLOSE).sum(axis=0)
        rows = [
            PlotBar(
                self.mark(config),
                self.colour(config),
                self.name(config),
                self.wins[config],
                int(close[place[config]]) if config in place else 0,
                f"{config}: best in {self.wins[config]}",
            )
            for config in self.ranked[:_PANELS]
        ]
        return Markup(bars(rows, "scenarios", f"Winners of {self.context.kernel.name}, counted"))

    @property
    def configs_left_out(self) -> int:
        return max(len(self.ranked) - _PANELS, 0)
