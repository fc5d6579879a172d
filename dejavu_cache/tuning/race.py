"""Compare close configs in turns, so that all meet the same clock, temperature and neighbours."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..model.record import Measurement
from ..model.scenario import Config
from ..model.selection import CONTENDER, NOISE
from .device_timer import FULL, SCREENING, TURN, Effort
from .race_confidence import Times, confidences, group_rounds
from .unsteady import Look, favourable_times, relative_times

__all__ = [
    "BEHIND",
    "Results",
    "Turn",
    "change_between",
    "race",
    "race_unsteadily",
    "scale_measurement",
    "survey",
]

Turn = Callable[[Config, Effort], Measurement | None]
"""Measures one config; a failure or None takes the config out of a comparison."""

ROUNDS, MOST_ROUNDS = 3, 8
"""Least and most rounds on a steady device; a race ends earlier once a config is ahead or tied."""

PASSES = 11
"""Times that a config is measured to find the fast ones on an unsteady device."""

SHORT_ROUNDS = 25
"""Rounds of short turns on an unsteady device, after which configs that are behind leave."""

SHORT_RACE_CONTENDER = 0.05
"""Slowdown against the best, after these rounds, above which a config is behind."""

LUCKY_ROUNDS = 6
"""Number of rounds in which a slower config may be the faster one once by chance."""

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


def race(
    configs: Sequence[Config], turn: Turn, is_over: Callable[[], bool] = lambda: False
) -> Results:
    """Let configs take turns on a steady device until one is ahead or the rest tie with it.

    Args:
        configs: the configs to compare, two at least.
        turn: measures one config.
        is_over: whether the time for tuning has run out; the first round is run in any case.
    """
    turns: dict[Config, list[Measurement]] = {}
    racing, rounds = list(configs), 0
    while len(racing) > 1 and rounds < MOST_ROUNDS and not (rounds and is_over()):
        rounds += 1
        racing = _run_round(racing, turn, FULL, turns)
        times = {config: list(map(_median, turns[config])) for config in racing}
        if rounds >= ROUNDS:
            racing = _keep_undecided(times)
        elif times:
            best = min(values[-1] for values in times.values())
            racing = [c for c in racing if times[c][-1] <= best * (1 + CONTENDER)]
    ratios = _ratios_by_round(turns) if turns else {}
    return _summarize(turns, ratios, statistics.median, _times_by_round(turns))


def race_unsteadily(
    configs: Sequence[Config], turn: Turn, is_over: Callable[[], bool] = lambda: False
) -> Results:
    """Let configs take many short turns in random order on a device that is not steady.

    The order is random so that no rhythm of a load favours a config. Configs that the first rounds
    show to be behind leave; the others take as many turns again.

    Args:
        configs: the configs to compare, two at least.
        turn: measures one config.
        is_over: whether the time for tuning has run out; the first round is run in any case.
    """
    turns: dict[Config, list[Measurement]] = {}
    rounds: list[list[Look]] = []
    racing, rng = list(configs), random.Random(len(configs))
    while len(racing) > 1 and len(rounds) < 2 * SHORT_ROUNDS and not (rounds and is_over()):
        rng.shuffle(racing)
        racing = _run_round(racing, turn, TURN, turns)
        rounds.append([Look(config, _median(turns[config][-1])) for config in racing])
        if len(rounds) == SHORT_ROUNDS:
            times = relative_times(rounds)
            racing = [config for config in racing if times[config] <= 1 + SHORT_RACE_CONTENDER]
    times_by_group = list(map(relative_times, group_rounds(rounds)))
    return _summarize(turns, relative_times(rounds), _lower_quartile, times_by_group)


def survey(
    configs: Sequence[Config], turn: Turn, is_over: Callable[[], bool] = lambda: False
) -> dict[Config, float]:
    """Return estimates of the times of configs on an unsteady device, relative to the fastest.

    Args:
        configs: the configs to measure.
        turn: measures one config.
        is_over: whether the time for tuning has run out; no pass begins after that.
    """
    passes: list[list[Look]] = []
    order, rng = list(configs), random.Random(len(configs))
    while len(passes) < PASSES and not is_over():
        rng.shuffle(order)
        timings = [(config, turn(config, SCREENING)) for config in order]
        passes.append([Look(c, timing.median) for c, timing in timings if timing and timing.median])
    return favourable_times(passes)


def change_between(*times: float) -> float:
    """Return the ratio of the largest to the smallest time; 1 if the resolution explains it."""
    fast, slow = min(times), max(times)
    return slow / fast if slow - fast > RESOLUTION else 1.0


def scale_measurement(measurement: Measurement, factor: float) -> Measurement:
    """Return a measurement with its timings multiplied by a factor."""
    quantiles = {name: getattr(measurement, name) for name in ("median", "p20", "p80")}
    scaled = {name: None if value is None else value * factor for name, value in quantiles.items()}
    return measurement.model_copy(update=scaled)


def _median(measurement: Measurement) -> float:
    return measurement.median or 0.0


def _run_round(
    configs: Sequence[Config], turn: Turn, effort: Effort, turns: dict[Config, list[Measurement]]
) -> list[Config]:
    """Measure each config once, add that to its turns, and return the configs that ran."""
    ran = []
    for config in configs:
        measurement = turn(config, effort)
        if measurement is not None and measurement.median:
            turns.setdefault(config, []).append(measurement)
            ran.append(config)
    return ran


def _fastest(times: Mapping[Config, Sequence[float]]) -> Config:
    return min(times, key=lambda config: statistics.median(times[config]))


def _keep_undecided(times: Mapping[Config, Sequence[float]]) -> list[Config]:
    """Return the leader and the configs that their times do not tell apart from it, if any.

    Args:
        times: each config's time in each round, in which all of them ran.
    """
    if not times:
        return []
    leader = _fastest(times)
    remaining = [
        config
        for config in times
        if config == leader or not _is_decided(times[config], times[leader])
    ]
    return remaining if len(remaining) > 1 else []


def _is_decided(times: Sequence[float], leading: Sequence[float]) -> bool:
    """Return whether times show that a config is slower than the leader or tied with it."""
    ratios = [time / lead for time, lead in zip(times, leading, strict=False)]
    is_tied = statistics.median(ratios) <= 1 + NOISE
    is_slower = sum(ratio <= 1 for ratio in ratios) <= len(ratios) // LUCKY_ROUNDS
    return is_tied or is_slower


def _lower_quartile(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 4]


def _finishers(turns: Mapping[Config, Sequence[Measurement]]) -> list[Config]:
    longest = max(map(len, turns.values()), default=0)
    return [config for config in turns if len(turns[config]) == longest]


def _times_by_round(turns: Mapping[Config, Sequence[Measurement]]) -> list[Times]:
    """Return the times of the configs that ran, round by round."""
    longest = max(map(len, turns.values()), default=0)
    return [
        {
            config: _median(values[number])
            for config, values in turns.items()
            if number < len(values)
        }
        for number in range(longest)
    ]


def _ratios_by_round(turns: Mapping[Config, Sequence[Measurement]]) -> dict[Config, float]:
    """Return the configs' times relative to the leader's, in the rounds that both ran."""
    times = {config: list(map(_median, values)) for config, values in turns.items()}
    leader = _fastest({config: times[config] for config in _finishers(turns)})
    return {
        config: statistics.median(
            time / lead for time, lead in zip(values, times[leader], strict=False)
        )
        for config, values in times.items()
    }


def _summarize(
    turns: Mapping[Config, Sequence[Measurement]],
    ratios: Mapping[Config, float],
    level_of: Callable[[Sequence[float]], float],
    comparisons: Sequence[Times],
) -> Results:
    """Return measurements in proportion to the ratios, on the level of the leader's turns.

    The leader is the fastest config that finished. A config that left before is recorded behind it.

    Args:
        turns: each config's turns; the configs that finished have the most.
        ratios: the configs' times, relative to any of them.
        level_of: summarizes the times of the leader's turns.
        comparisons: the configs' relative times at several moments, which tell how sure they are.
    """
    finishers = _finishers(turns)
    if not finishers:
        return Results({}, 1.0, 1.0)
    leader = min(finishers, key=ratios.__getitem__)
    level = level_of([_median(measurement) for measurement in turns[leader]])
    measurements, spread, level_spread = {}, 1.0, 1.0
    certainty = confidences(ratios, leader, comparisons, {c: len(turns[c]) for c in turns})
    for config, values in turns.items():
        ratio = ratios[config] / ratios[leader]
        if config in finishers:
            spread = max(spread, _ratio_spread(values, turns[leader]))
            level_spread = max(level_spread, change_between(*map(_median, values)))
        else:
            ratio = max(ratio, BEHIND)
        pooled = _pool(values).model_copy(update={"confidence": certainty.get(config)})
        measurements[config] = scale_measurement(pooled, level * ratio / _median(pooled))
    return Results(measurements, spread, level_spread)


def _ratio_spread(values: Sequence[Measurement], leading: Sequence[Measurement]) -> float:
    """Return the largest over the smallest ratio of two configs that took all turns together.

    It is 1 if the resolution of both configs' timings explains the difference.
    """
    ratios = [_median(value) / _median(lead) for value, lead in zip(values, leading, strict=True)]
    lowest, highest = min(ratios), max(ratios)
    unresolved = RESOLUTION * (1 + highest) / min(map(_median, leading))
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
