"""The turns that configs take in a race, and the verdict that follows from them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..model.record import Measurement
from ..model.scenario import Config
from ..model.selection import NOISE
from .device_timer import Effort
from .race_confidence import Times, confidences

__all__ = ["BEHIND", "Results", "Turn", "Turns", "change_between", "scale_measurement"]

Turn = Callable[[Config, Effort], Measurement | None]
"""Measures one config; a failure or None takes the config out of a comparison."""

RESOLUTION = 0.001
"""Milliseconds by which two timings of one config may differ: events count half a microsecond."""

BEHIND = 1 + 2 * NOISE
"""Least ratio to the winner's time at which a config that left the race is recorded."""


class Results(NamedTuple):
    """The outcome of a race.

    Attributes:
        measurements: one of each config that ran; the order of their medians is the race's verdict.
        spread: the largest change, from one round to another, of the ratio of a config that
            finished to the leader; 1 or more. A clock that falls for both leaves it at 1.
        level_spread: the largest ratio of two turns of one config that finished, 1 or more.
    """

    measurements: dict[Config, Measurement]
    spread: float
    level_spread: float


class Turns:
    """The measurements of a race's configs, round by round.

    A config takes part from the first round until it leaves, so the ones that finished have the
    most turns.
    """

    def __init__(self) -> None:
        """Begin without a round."""
        self._turns: dict[Config, list[Measurement]] = {}

    def run_round(self, configs: Sequence[Config], turn: Turn, effort: Effort) -> list[Config]:
        """Measure each config once, and return the configs that ran."""
        ran = []
        for config in configs:
            measurement = turn(config, effort)
            if measurement is not None and measurement.median:
                self._turns.setdefault(config, []).append(measurement)
                ran.append(config)
        return ran

    def times(self, config: Config) -> list[float]:
        """Return the medians of a config's turns, in milliseconds."""
        return [measurement.median or 0.0 for measurement in self._turns[config]]

    @property
    def by_round(self) -> list[Times]:
        """The times of the configs that ran, round by round."""
        times = {config: self.times(config) for config in self._turns}
        rounds = max(map(len, times.values()), default=0)
        return [
            {config: values[number] for config, values in times.items() if number < len(values)}
            for number in range(rounds)
        ]

    @property
    def ratios(self) -> dict[Config, float]:
        """The configs' times relative to the fastest finisher's, in the rounds that both ran."""
        if not self._turns:
            return {}
        leading = self.times(
            min(self._finishers, key=lambda config: statistics.median(self.times(config)))
        )
        return {
            config: statistics.median(
                time / lead for time, lead in zip(self.times(config), leading, strict=False)
            )
            for config in self._turns
        }

    def summarize(
        self,
        ratios: Mapping[Config, float],
        level_of: Callable[[Sequence[float]], float],
        comparisons: Sequence[Times],
    ) -> Results:
        """Return measurements in proportion to ratios, on the level of the leader's turns.

        The leader is the fastest config that finished. One that left before is recorded behind it.

        Args:
            ratios: the configs' times, relative to any of them.
            level_of: summarizes the times of the leader's turns.
            comparisons: the configs' relative times at several moments, which tell how sure they
                are.
        """
        finishers = self._finishers
        if not finishers:
            return Results({}, 1.0, 1.0)
        leader = min(finishers, key=ratios.__getitem__)
        leading = self.times(leader)
        level = level_of(leading)
        rounds = {config: len(turns) for config, turns in self._turns.items()}
        certainty = confidences(ratios, leader, comparisons, rounds)
        measurements = {}
        for config, turns in self._turns.items():
            ratio = ratios[config] / ratios[leader]
            if config not in finishers:
                ratio = max(ratio, BEHIND)
            pooled = _pool(turns).model_copy(update={"confidence": certainty.get(config)})
            measurements[config] = scale_measurement(pooled, level * ratio / (pooled.median or 0.0))
        times = [self.times(config) for config in finishers]
        return Results(
            measurements,
            max(_ratio_spread(values, leading) for values in times),
            max(change_between(*values) for values in times),
        )

    @property
    def _finishers(self) -> list[Config]:
        rounds = max(map(len, self._turns.values()), default=0)
        return [config for config, turns in self._turns.items() if len(turns) == rounds]


def change_between(*times: float) -> float:
    """Return the ratio of the largest to the smallest time; 1 if the resolution explains it."""
    fast, slow = min(times), max(times)
    return slow / fast if slow - fast > RESOLUTION else 1.0


def scale_measurement(measurement: Measurement, factor: float) -> Measurement:
    """Return a measurement with its timings multiplied by a factor."""
    quantiles = {name: getattr(measurement, name) for name in ("median", "p20", "p80")}
    scaled = {name: None if value is None else value * factor for name, value in quantiles.items()}
    return measurement.model_copy(update=scaled)


def _ratio_spread(times: Sequence[float], leading: Sequence[float]) -> float:
    """Return the largest over the smallest ratio of two configs that took all turns together.

    It is 1 if the resolution of both configs' timings explains the difference.
    """
    ratios = [time / lead for time, lead in zip(times, leading, strict=True)]
    lowest, highest = min(ratios), max(ratios)
    unresolved = RESOLUTION * (1 + highest) / min(leading)
    return highest / lowest if highest - lowest > unresolved else 1.0


def _pool(measurements: Sequence[Measurement]) -> Measurement:
    """Return the medians of the turns' quantiles, with the seconds of all."""

    def middle(name: str) -> float | None:
        values = [getattr(measurement, name) for measurement in measurements]
        values = [value for value in values if value is not None]
        return statistics.median(values) if values else None

    update = {name: middle(name) for name in ("median", "p20", "p80")}
    seconds = math.fsum(measurement.seconds for measurement in measurements)
    return measurements[-1].model_copy(update={**update, "seconds": round(seconds, 3)})
