"""What is known of a config before it is compiled, as numbers that a model can compare.

A record says how a config did; these features say which configs and scenarios are alike. Sizes are
taken by their logarithms, since kernels are tuned in powers of two. What a launch does with a
config is computed from both: how many programs run, in how many waves, and how often a block fits
into a size. Registers and shared memory are those that the compiler reported of the same config
elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ..model.record import Resources
from ..model.scenario import Config, Environment, Scalar, Scenario

__all__ = ["Encoder", "Matrix", "Point", "Points"]

Matrix = NDArray[np.float64]

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


@dataclass(frozen=True)
class Points:
    """Encoded points, a row each.

    Attributes:
        configs: [points, values of a config].
        scenarios: [points, values of a scenario].
        launches: [points, what a launch does with the config].
        machines: [points], the number of the GPU model and Triton.
        scenario_numbers: [points], the number of the scenario.
        config_numbers: [points], the number of the config.
    """

    configs: Matrix
    scenarios: Matrix
    launches: Matrix
    machines: NDArray[np.int_]
    scenario_numbers: NDArray[np.int_]
    config_numbers: NDArray[np.int_]


class Encoder:
    """Encodes points; its columns are the values that vary among those that it is made for.

    Args:
        points: all points that are to be encoded.
        resources: what the compiler has reported of configs.
    """

    def __init__(self, points: Sequence[Point], resources: Mapping[Config, Resources]) -> None:
        """Find the columns and their scales."""
        self._resources = resources
        self._usual = _middle(resources.values())
        self._configs = _Columns([_config_values(point.config) for point in points])
        self._scenarios = _Columns([point.scenario.values for point in points], least_scale=0.5)
        # Between points of which some have no number of programs, that would be a difference.
        self._have_programs = all(point.programs for point in points)
        self._numbers: dict[Any, int] = {}

    def encode(self, points: Sequence[Point]) -> Points:
        """Return the encoding of points."""
        return Points(
            self._configs.encode([_config_values(point.config) for point in points]),
            self._scenarios.encode([point.scenario.values for point in points]),
            np.array([self._launch(point) for point in points]),
            self._number([point.environment for point in points]),
            self._number([point.scenario for point in points]),
            self._number([point.config for point in points]),
        )

    def _number(self, things: Sequence[Any]) -> NDArray[np.int_]:
        """Return the same number for equal things."""
        numbers = self._numbers
        return np.array([numbers.setdefault(thing, len(numbers)) for thing in things])

    def _launch(self, point: Point) -> list[float]:
        """Return what a launch does: its programs, their waves, and sizes over blocks."""
        resources = self._resources.get(point.config, self._usual)
        together = programs_at_once(point.config, resources)
        units = max(point.environment.device.units, 1)
        values = [0.0] * 4
        if self._have_programs and point.programs:
            values[:3] = [
                math.log2(point.programs) / 2,
                min(_unevenness(point.programs / units), 3.0),
                min(_unevenness(point.programs / (units * together)), 3.0),
            ]
            values[3] = math.log2(point.programs / (units * together)) / 2
        warps = point.config.options.get("num_warps")
        values.append(math.log2(together * (warps if isinstance(warps, int) else 4)) / 2)
        low, high = FEWEST_PER_RATIO
        for name in self._scenarios.sizes:
            size = point.scenario.args.get(name)
            for parameter in self._configs.sizes:
                block = point.config.params.get(parameter)
                ratio = 0.0
                if _is_size(size) and _is_size(block):
                    ratio = min(max(math.log2(size) - math.log2(block), low), high)
                values.append(RATIO * ratio)
        return values


def programs_at_once(config: Config, resources: Resources | None) -> int:
    """Return how many programs of a config a multiprocessor runs at once, at least 1."""
    if resources is None:
        return 1
    warps = config.options.get("num_warps")
    warps = warps if isinstance(warps, int) and warps > 0 else 4
    fit = (
        REGISTERS // max(resources.registers * warps * WARP, 1),
        SHARED_BYTES // (resources.shared + PER_PROGRAM),
        WARPS // warps,
        PROGRAMS,
    )
    return max(min(fit), 1)


def _unevenness(waves: float) -> float:
    """Return by how much the last wave lengthens a launch, as a logarithm."""
    return math.log2(math.ceil(waves) / waves)


def _config_values(config: Config) -> dict[str, Scalar]:
    return {**config.params, **config.options}


def _is_size(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _middle(reports: Iterable[Resources]) -> Resources | None:
    """Return the medians of what compilers reported; None if they did not."""
    rows = [(report.registers, report.spills, report.shared) for report in reports]
    if not rows:
        return None
    registers, spills, shared = np.median(np.array(rows), axis=0).astype(int).tolist()
    return Resources(programs=0, registers=registers, spills=spills, shared=shared)


class _Columns:
    """Columns for named values: the logarithm of numbers, and one per value of anything else.

    Args:
        rows: all rows that are to be encoded.
        least_scale: added to the spread by which a column is divided, so that values which differ
            little stay alike.

    Attributes:
        sizes: the names whose values are all positive numbers, and no options of the compiler.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], least_scale: float = 1e-9) -> None:
        self._numbers: list[str] = []
        self._categories: list[tuple[str, str]] = []
        for name in sorted({name for row in rows for name in row}):
            seen = {repr(row.get(name)): row.get(name) for row in rows}
            if len(seen) < 2:
                continue
            if all(type(value) in (int, float) for value in seen.values()):
                self._numbers.append(name)
            else:
                self._categories += [(name, text) for text in sorted(seen)]
        self.sizes = sorted(
            {
                name
                for row in rows
                for name, value in row.items()
                if _is_size(value) and not name.startswith("num_")
            }
        )
        encoded = self._values(rows)
        self._center, self._scale = encoded.mean(axis=0), encoded.std(axis=0) + least_scale

    def _values(self, rows: Sequence[Mapping[str, Any]]) -> Matrix:
        values = [
            [
                *(_logarithm(row[name]) for name in self._numbers),
                *(float(repr(row.get(name)) == text) for name, text in self._categories),
            ]
            for row in rows
        ]
        return np.array(values, dtype=float).reshape(len(rows), -1)

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> Matrix:
        """Return [rows, columns], each column scaled by its spread."""
        encoded: Matrix = (self._values(rows) - self._center) / self._scale
        return encoded


def _logarithm(value: float) -> float:
    return math.log2(value) if value > 0 else -1.0 if value < 0 else -0.5
