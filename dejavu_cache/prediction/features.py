"""What is known of a config before it is compiled, as numbers that a model can compare.

A record says how a config did; these features say which configs and scenarios are alike. Sizes are
taken by their logarithms, since kernels are tuned in powers of two. What a launch does with a
config is computed from both: how many programs run, in how many waves, and how often a block fits
into a size. Registers and shared memory are those that the compiler reported of the same config
elsewhere.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..model.record import Resources
from ..model.scenario import Config, Environment, Scenario

# `numpy.typing` has a shorter name for them, and takes a launch a millisecond to import.
Matrix = np.ndarray[Any, np.dtype[np.float64]]
Numbers = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T")

REGISTERS, SHARED_BYTES, WARPS, PROGRAMS = 65_536, 227 * 1024, 64, 32
"""What a streaming multiprocessor of recent GPUs has, and the most programs that it runs."""

WARP = 32
"""Threads of a warp that a register's count is for."""

PER_PROGRAM = 1024
"""Bytes of shared memory that the driver takes for each program."""

FEWEST_PER_RATIO = -3.0, 3.0
"""Bounds of the logarithm of a size over a block: beyond, nothing changes."""

RATIO = 0.25
"""Weight of such a logarithm: there are many of them, and most say the same."""


class Point(NamedTuple):
    """A config in a scenario, on a GPU and with a Triton.

    Attributes:
        environment: GPU, Triton and what else a timing depends on.
        scenario: the scenario.
        config: the config.
        programs: how many programs a launch runs; None if unknown.
    """

    environment: Environment
    scenario: Scenario
    config: Config
    programs: int | None


class Points(NamedTuple):
    """Encoded points; the columns are the values that vary among the points.

    Attributes:
        configs: [different configs, values of a config].
        scenarios: [different scenarios, values of a scenario].
        launches: [points, what a launch does with the config].
        machines: [points], the number of the GPU model and Triton.
        scenario_numbers: [points], the number of the scenario.
        config_numbers: [points], the number of the config.
    """

    configs: Matrix
    scenarios: Matrix
    launches: Matrix
    machines: Numbers
    scenario_numbers: Numbers
    config_numbers: Numbers


def encode(points: Sequence[Point], resources: Mapping[Config, Resources]) -> Points:
    """Return the encoding of points; each config and scenario is encoded once.

    Args:
        points: the points.
        resources: what the compiler has reported of configs.
    """
    config_numbers, configs = _number([point.config for point in points])
    scenario_numbers, scenarios = _number([point.scenario for point in points])
    config_values = _columns([config.values for config in configs])
    scenario_values = _columns([scenario.values for scenario in scenarios])
    usual = _middle(resources.values())
    together = [programs_at_once(config, resources.get(config, usual)) for config in configs]
    warps = np.array([*map(_warps, configs)])[config_numbers]
    launches = _launches(points, np.array(together)[config_numbers], warps)
    sizes = _powers([scenario.args for scenario in scenarios])[scenario_numbers]
    blocks = _powers([config.params for config in configs])[config_numbers]
    ratios = sizes[:, :, None] - blocks[:, None, :]
    ratios = np.where(np.isnan(ratios), 0.0, RATIO * np.clip(ratios, *FEWEST_PER_RATIO))
    return Points(
        _scale(config_values, config_numbers, 1e-9),
        _scale(scenario_values, scenario_numbers, 0.5),  # values that differ little stay alike
        np.hstack([launches, ratios.reshape(len(points), -1)]),
        _number([point.environment for point in points])[0],
        scenario_numbers,
        config_numbers,
    )


def _number(things: Sequence[T]) -> tuple[Numbers, list[T]]:
    """Return each thing's number, the same for equal ones, and the different ones in order."""
    numbers: dict[T, int] = {}
    return np.array([numbers.setdefault(thing, len(numbers)) for thing in things]), [*numbers]


def _scale(values: Matrix, numbers: Numbers, least: float) -> Matrix:
    """Return [rows, columns], each centred and over its spread in all points plus `least`."""
    of_points = values[numbers]
    scaled: Matrix = (values - of_points.mean(axis=0)) / (of_points.std(axis=0) + least)
    return scaled


def _launches(points: Sequence[Point], together: Numbers, warps: Numbers) -> Matrix:
    """Return [points, what a launch does]: its programs, their waves, and the warps at once."""
    units = np.array([max(point.environment.device.units, 1) for point in points])
    programs = np.array([point.programs or 0 for point in points], dtype=float)
    values = [np.zeros(len(points))] * 4
    # Between points of which some have no number of programs, that would be a difference.
    if programs.all():
        waves = programs / (units * together)
        uneven = (np.log2(np.ceil(rounds) / rounds) for rounds in (programs / units, waves))
        values = [np.log2(programs) / 2, *np.minimum([*uneven], 3.0), np.log2(waves) / 2]
    return np.column_stack([*values, np.log2(together * warps) / 2])


def programs_at_once(config: Config, resources: Resources | None) -> int:
    """Return how many programs of a config a multiprocessor runs at once, at least 1."""
    if resources is None:
        return 1
    warps = _warps(config)
    fit = (
        REGISTERS // max(resources.registers * warps * WARP, 1),
        SHARED_BYTES // (resources.shared + PER_PROGRAM),
        WARPS // warps,
        PROGRAMS,
    )
    return max(min(fit), 1)


def _warps(config: Config) -> int:
    warps = config.options.get("num_warps")
    return warps if isinstance(warps, int) and warps > 0 else 4


def _middle(reports: Iterable[Resources]) -> Resources | None:
    """Return the medians of what compilers reported; None if they did not."""
    rows = [(report.registers, report.spills, report.shared) for report in reports]
    if not rows:
        return None
    registers, spills, shared = (int(median(column)) for column in zip(*rows, strict=True))
    return Resources(programs=0, registers=registers, spills=spills, shared=shared)


def _columns(rows: Sequence[Mapping[str, Any]]) -> Matrix:
    """Return [rows, columns]: the logarithms of numbers, and a column per value of anything else.

    What is the same in all rows has no column.
    """
    columns: list[list[float]] = []
    for name in sorted({name for row in rows for name in row}):
        values = [row.get(name) for row in rows]
        texts = [*map(repr, values)]
        if len(seen := set(texts)) < 2:
            continue
        if all(type(value) in (int, float) for value in values):
            columns.append([*map(_logarithm, values)])
        else:
            columns += [[float(text == level) for text in texts] for level in sorted(seen)]
    return np.ascontiguousarray(np.array(columns, dtype=float).reshape(-1, len(rows)).T)


def _powers(rows: Sequence[Mapping[str, Any]]) -> Matrix:
    """Return [rows, names]: the logarithms of positive numbers; NaN where a row has none."""
    names = sorted({name for row in rows for name in row if not name.startswith("num_")})
    values: list[list[Any]] = [[row.get(name) for name in names] for row in rows]
    powers = [
        [math.log2(each) if type(each) in (int, float) and each > 0 else math.nan for each in row]
        for row in values
    ]
    return np.array(powers, dtype=float).reshape(len(rows), -1)


def _logarithm(value: Any) -> float:
    return math.log2(value) if value > 0 else -1.0 if value < 0 else -0.5
