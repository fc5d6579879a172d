"""Views of the pages, computed from records."""

from __future__ import annotations

from typing import NamedTuple

from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import Config

__all__ = [
    "NEAR_TIE",
    "ScenarioRow",
    "TimingBar",
    "scenario_row",
]

NEAR_TIE = 0.02
"""Relative distance to the best median within which another run could have chosen a config."""


class TimingBar(NamedTuple):
    """The timing of a config, compared with the other configs of its scenario."""

    measurement: Measurement
    ratio: float | None
    """Its median over the best median; None if the config failed."""
    share: int
    """Its median in percent of the slowest median."""
    chosen: bool


class ScenarioRow(NamedTuple):
    """A scenario with the config that readers get and the timings of all configs."""

    record: Record
    chosen: Config | None
    timing: Measurement | None
    bars: list[TimingBar]
    near: int
    failed: int
    gain: float | None
    """The slowest median over the chosen config's."""


def scenario_row(record: Record) -> ScenarioRow:
    """Compare the configs of a scenario, fastest first, and mark the one that readers get."""
    chosen = record.pinned or (record.winner.config if record.winner else None)
    timed = sorted(
        (measurement.median, measurement.config.text, measurement)
        for measurement in record.measurements
        if measurement.median is not None
    )
    best, slowest = (timed[0][0], timed[-1][0]) if timed else (0.0, 0.0)
    bars = [
        _timing_bar(measurement, median, best, slowest, chosen) for median, _, measurement in timed
    ]
    near = sum(
        bar.ratio is not None and bar.ratio <= 1 + NEAR_TIE and not bar.chosen for bar in bars
    )
    bars += [
        TimingBar(measurement, None, 0, measurement.config == chosen)
        for measurement in record.measurements
        if measurement.failure
    ]
    timing = record.by_config.get(chosen) if chosen else None
    return ScenarioRow(
        record=record,
        chosen=chosen,
        timing=timing,
        bars=bars,
        near=near,
        failed=len(record.measurements) - len(timed),
        gain=slowest / timing.median if timing and timing.median else None,
    )


def _timing_bar(
    measurement: Measurement, median: float, best: float, slowest: float, chosen: Config | None
) -> TimingBar:
    share = round(100 * median / slowest) if slowest else 0
    return TimingBar(
        measurement=measurement,
        ratio=median / best if best else 1.0,
        share=max(share, 1),
        chosen=measurement.config == chosen,
    )
