"""Compare close configs in turns, so that all meet the same clock, temperature and neighbours."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence

from ..model.scenario import Config
from ..model.selection import CONTENDER, NOISE
from .device_timer import FULL, SCREENING, TURN
from .race_confidence import group_rounds
from .race_turns import Results, Turn, Turns
from .unsteady import Look, favourable_times, relative_times

__all__ = ["race", "race_unsteadily", "survey"]

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


def race(
    configs: Sequence[Config], turn: Turn, is_over: Callable[[], bool] = lambda: False
) -> Results:
    """Let configs take turns on a steady device until one is ahead or the rest tie with it.

    Args:
        configs: the configs to compare, two at least.
        turn: measures one config.
        is_over: whether the time for tuning has run out; the first round is run in any case.
    """
    turns = Turns()
    racing, rounds = list(configs), 0
    while len(racing) > 1 and rounds < MOST_ROUNDS and not (rounds and is_over()):
        rounds += 1
        racing = turns.run_round(racing, turn, FULL)
        times = {config: turns.times(config) for config in racing}
        if rounds >= ROUNDS:
            racing = _keep_undecided(times)
        elif times:
            best = min(values[-1] for values in times.values())
            racing = [c for c in racing if times[c][-1] <= best * (1 + CONTENDER)]
    return turns.summarize(turns.ratios, statistics.median, turns.by_round)


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
    turns = Turns()
    rounds: list[list[Look]] = []
    racing, rng = list(configs), random.Random(len(configs))
    while len(racing) > 1 and len(rounds) < 2 * SHORT_ROUNDS and not (rounds and is_over()):
        rng.shuffle(racing)
        racing = turns.run_round(racing, turn, TURN)
        rounds.append([Look(config, turns.times(config)[-1]) for config in racing])
        if len(rounds) == SHORT_ROUNDS:
            times = relative_times(rounds)
            racing = [config for config in racing if times[config] <= 1 + SHORT_RACE_CONTENDER]
    times_by_group = list(map(relative_times, group_rounds(rounds)))
    return turns.summarize(relative_times(rounds), _lower_quartile, times_by_group)


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


def _keep_undecided(times: Mapping[Config, Sequence[float]]) -> list[Config]:
    """Return the leader and the configs that their times do not tell apart from it, if any.

    Args:
        times: each config's time in each round, in which all of them ran.
    """
    if not times:
        return []
    leader = min(times, key=lambda config: statistics.median(times[config]))
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
