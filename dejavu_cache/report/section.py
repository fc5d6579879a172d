"""A section of the report: the records of one context."""

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
from ..system.plurals import counted
from .axes import Axes
from .selection_rules import SelectionRule, default_rule, single_config_rule, tree_rule
from .svg import PlotBar, PlotCell, PlotLine, bars, curves

__all__ = ["Section"]

_CLOSE = 0.05
"""Slowdown, as a share, up to which a config counts as close to the best."""

_COLOURS = 8
_PANELS = 12
_SHADES = 5


class Section:
    """The records of one context as the page shows them.

    Args:
        records: the records of the context.
        tree: the decision tree to evaluate.
        default: values, as text, that only the default config has.
    """

    def __init__(self, records: RecordSet, tree: Tree | None, default: Mapping[str, str]) -> None:
        """Compute slowdowns and count the wins of the configs."""
        self.context, self.records, self.tree = records.context, records.records, tree
        self._default = default
        self.costs = SlowdownTable.of(self.records)
        self.wins = Counter(self.winners.values())
        self.ranked = sorted(self.wins, key=lambda config: (-self.wins[config], config.text))
        self._axes = Axes([record.scenario for record in self.records])

    @property
    def label(self) -> str:
        """Device and Triton version of the environment."""
        environment = self.context.environment
        return f"{environment.device.name}, Triton {environment.triton}"

    @cached_property
    def winners(self) -> dict[Scenario, Config]:
        """Best config of each scenario in which any config ran."""
        best = {record.scenario: winner(record, set(record.by_config)) for record in self.records}
        return {scenario: config for scenario, config in best.items() if config is not None}

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of scenarios, configs, measurements: all, and some kinds of them."""
        measurements = [entry for record in self.records for entry in record.measurements]
        configs = {measurement.config for measurement in measurements}
        failed = sum(measurement.failure is not None for measurement in measurements)
        return {
            "scenarios": len(self.records),
            "configs": len(configs),
            "measurements": len(measurements),
            "failed": failed,
            "unfinished": sum(record.is_unfinished for record in self.records),
            "uncompared": sum(
                record.winner is not None and not (record.pinned or record.winner.is_compared)
                for record in self.records
            ),
            "missing": len(self.records) * len(configs) - len(measurements),
        }

    @cached_property
    def failures(self) -> list[tuple[str, int]]:
        """Kinds of failures, each with its number."""
        failures = [
            measurement.failure
            for record in self.records
            for measurement in record.measurements
            if measurement.failure
        ]
        return Counter(failure.kind.replace("_", " ") for failure in failures).most_common()

    @cached_property
    def choices(self) -> list[SelectionRule]:
        """Rules that apply: the default, the best single config, and the tree."""
        if not len(self.costs):
            return []
        tree = self.tree and tree_rule(self.costs, self.tree)
        return [
            rule
            for rule in (
                default_rule(self.costs, self._default),
                single_config_rule(self.costs),
                tree,
            )
            if rule
        ]

    def note(self, choice: SelectionRule) -> str:
        """Return the config that a rule always chooses, or a remark on its tree."""
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
        """Slowdowns of the rules as curves."""
        lines = [PlotLine(rule.name, rule.colour, rule.slowdown.tolist()) for rule in self.choices]
        return Markup(
            curves(lines, f"Costs of choices for {self.context.kernel.name} on {self.label}")
        )

    @property
    def coverage_plot(self) -> Markup:
        """Map that shows how many panels have a tuned scenario at each position."""
        counts = Counter(self._axes.position(record.scenario) for record in self.records)
        total = len(self._axes.panels)
        cells = {
            position: PlotCell(
                f"{count}" if total > 1 else "✓",
                f"shade-{math.ceil(count / total * _SHADES)}",
                f"{self._axes.describe(position)}: {count} of {total} tuned",
            )
            for position, count in counts.items()
        }
        return Markup(
            self._axes.draw(cells, f"Tuned scenarios of {self.context.kernel.name} on {self.label}")
        )

    @property
    def combinations(self) -> int:
        """Number of combinations of the inputs that are not on the axes."""
        return len(self._axes.panels)

    @property
    def holes(self) -> int:
        """Number of combinations of tuned values that were not tuned together."""
        return self._axes.size - len(self.records)

    @property
    def winner_plots(self) -> Iterator[tuple[str, Markup]]:
        """Maps of the winners, one per combination of the inputs that are not on the axes."""
        for panel, records in self._panels()[:_PANELS]:
            cells = {
                self._axes.position(record.scenario): self._winner_cell(record)
                for record in records
            }
            yield (
                panel,
                Markup(
                    self._axes.draw(
                        cells, f"Winners of {self.context.kernel.name} where {panel or 'tuned'}"
                    )
                ),
            )

    @property
    def panels_left_out(self) -> int:
        """Number of panels that are not shown."""
        return max(len(self._axes.panels) - _PANELS, 0)

    def _panels(self) -> list[tuple[str, list[Record]]]:
        panels: dict[str, list[Record]] = {panel: [] for panel in self._axes.panels}
        for record in self.records:
            panels[self._axes.panel(record.scenario)].append(record)
        return list(panels.items())

    def _winner_cell(self, record: Record) -> PlotCell:
        config = self.winners.get(record.scenario)
        if config is None:
            return PlotCell("✗", "hole", f"{record.scenario}: nothing runs")
        measurement = record.by_config[config]
        cases = f" over {counted(measurement.case_count, 'case')}" if measurement.case_count else ""
        return PlotCell(
            self.mark(config),
            self.colour(config),
            f"{record.scenario}: {self.name(config)}, {measurement.median:.4g} ms{cases}",
        )

    def mark(self, config: Config) -> str:
        """Return the letter of a config that has a colour, or a dot for the others."""
        rank = self.ranked.index(config)
        return "ABCDEFGH"[rank] if rank < _COLOURS else "·"

    def colour(self, config: Config) -> str:
        """Return a config's class of the style sheet."""
        return f"colour-{min(self.ranked.index(config), _COLOURS)}"

    @cached_property
    def _constant(self) -> set[tuple[str, Any]]:
        """Values that all winners share, which need not be repeated for each."""
        values = [
            frozenset({**config.params, **config.options}.items())
            for config in self.ranked or [Config()]
        ]
        return set(frozenset.intersection(*values)) if len(values) > 1 else set()

    def name(self, config: Config) -> str:
        """Return a config's values except those that all winners share."""
        values = {**config.params, **config.options}.items()
        differing = [
            f"{name}={value}" for name, value in values if (name, value) not in self._constant
        ]
        return ", ".join(differing) or str(config)

    @property
    def shared(self) -> str:
        """Values that all winners share."""
        return ", ".join(f"{name}={value}" for name, value in sorted(self._constant, key=str))

    @property
    def config_plot(self) -> Markup:
        """Bars that show how often each config is the best, and how often it is close to it."""
        column_of = {config: column for column, config in enumerate(self.costs.configs)}
        close = (self.costs.slowdown <= 1 + _CLOSE).sum(axis=0)
        rows = [
            PlotBar(
                self.mark(config),
                self.colour(config),
                self.name(config),
                self.wins[config],
                int(close[column_of[config]]) if config in column_of else 0,
                f"{config}: best in {self.wins[config]}",
            )
            for config in self.ranked[:_PANELS]
        ]
        return Markup(bars(rows, "scenarios", f"Winners of {self.context.kernel.name}, counted"))

    @property
    def configs_left_out(self) -> int:
        """Number of winners that have no bar."""
        return max(len(self.ranked) - _PANELS, 0)
