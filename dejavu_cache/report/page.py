"""Render a static HTML page: coverage, winners, costs of selection rules, and environments.

A section has the records of one context; a comparison, those of one problem that was tuned in
several environments.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..heuristics.fit import Matrix, SlowdownTable
from ..model.decision_tree import Tree
from ..model.record import Record, RecordSet
from ..model.scenario import Config, Context, Scenario, canonical_json, now
from ..model.selection import winner
from ..system.notices import counted, printable_output
from .svg import PlotBar, PlotCell, PlotLine, bars, curves, grid

__all__ = ["has_values", "render"]


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
    def shared_values(self) -> str:
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
    def shared_scenarios(self) -> int:
        """Number of scenarios that both environments have tuned."""
        return len(self.slowdown)

    @property
    def share(self) -> float:
        """Share of these scenarios in which both have the same winner."""
        return self.agree / self.shared_scenarios if self.shared_scenarios else 0.0


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
        pairs = [pair for pair in self.pairs.values() if pair.shared_scenarios][:6]
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


def render(
    record_sets: Iterable[RecordSet], trees: Iterable[Tree], default: Mapping[str, str], where: str
) -> str:
    """Return the page.

    Args:
        record_sets: the records, one context each; each one with records gets a section.
        trees: decision trees; a section evaluates the one that fits it.
        default: values, as text, that only the default config has; if empty, the page does not
            compare the default.
        where: name of the store, shown on the page.
    """
    all_trees = list(trees)
    sections = [
        Section(record_set, _fitting_tree(record_set.context, all_trees), default)
        for record_set in record_sets
        if record_set.records
    ]
    sections.sort(key=lambda section: (section.context.kernel.name, section.label))
    pages = Environment(
        loader=PackageLoader("dejavu_cache.report"),
        autoescape=True,
        finalize=printable_output,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    pages.filters["times"] = times
    return pages.get_template("report.html").render(
        sections=sections, comparisons=list(comparisons(sections)), where=where, at=now()
    )


def _fitting_tree(context: Context, trees: Sequence[Tree]) -> Tree | None:
    """Return the tree of a context, or else the last one fitted for its kernel and GPU."""
    fitting = [
        tree
        for tree in trees
        if tree.context.kernel.name == context.kernel.name
        and tree.context.environment.device == context.environment.device
    ]
    return max(fitting, key=lambda tree: (tree.context == context, tree.at), default=None)
