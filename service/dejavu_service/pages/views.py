"""What the pages show, computed from records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import Config, Context

__all__ = ["NEAR", "Bar", "Cell", "Matrix", "Row", "matrix", "row"]

NEAR = 0.02
"""A config this close to the best is a near-tie: another run could have chosen it."""


class Cell(NamedTuple):
    """What is known of one kernel on one device, in one context."""

    digest: str
    context: Context
    records: int


class Matrix(NamedTuple):
    """Kernels by devices."""

    devices: list[str]
    kernels: dict[str, dict[str, list[Cell]]]
    records: int


class Bar(NamedTuple):
    """One config's timing, and how it compares."""

    measurement: Measurement
    ratio: float | None
    """Its median over the best one."""
    share: int
    """Its length in percent of the slowest."""
    chosen: bool


class Row(NamedTuple):
    """One scenario."""

    record: Record
    chosen: Config | None
    timing: Measurement | None
    bars: list[Bar]
    near: int
    failed: int
    gain: float | None
    """The slowest median over the chosen one."""


def matrix(cells: Iterable[Cell]) -> Matrix:
    """Kernels by devices, both sorted."""
    found: dict[str, dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    total = 0
    for cell in cells:
        found[cell.context.kernel.name][cell.context.environment.device.name].append(cell)
        total += cell.records
    devices = sorted({device for row in found.values() for device in row})
    return Matrix(devices, {name: dict(found[name]) for name in sorted(found)}, total)


def row(record: Record) -> Row:
    """A scenario's configs, fastest first, and which one readers get."""
    chosen = record.pinned or (record.winner.config if record.winner else None)
    timed = sorted(
        (each.median, each.config.text, each)
        for each in record.measurements
        if each.median is not None
    )
    best, slowest = (timed[0][0], timed[-1][0]) if timed else (0.0, 0.0)
    bars = [_bar(each, median, best, slowest, chosen) for median, _, each in timed]
    bars += [
        Bar(each, None, 0, each.config == chosen) for each in record.measurements if each.failure
    ]
    timing = record.by_config.get(chosen) if chosen else None
    return Row(
        record=record,
        chosen=chosen,
        timing=timing,
        bars=bars,
        near=sum(
            1 for bar in bars if bar.ratio is not None and bar.ratio <= 1 + NEAR and not bar.chosen
        ),
        failed=len(record.measurements) - len(timed),
        gain=slowest / timing.median if timing and timing.median else None,
    )


def _bar(
    measurement: Measurement, median: float, best: float, slowest: float, chosen: Config | None
) -> Bar:
    share = round(100 * median / slowest) if slowest else 0
    return Bar(
        measurement, median / best if best else 1.0, max(share, 1), measurement.config == chosen
    )
