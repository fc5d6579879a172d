"""Races of configs, with timings of known resolution."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import cycle

import pytest

from dejavu_cache.model.record import Measurement
from dejavu_cache.model.scenario import Config, now
from dejavu_cache.tuning.race import MOST_ROUNDS, Race

CONFIGS = [Config(params={"BLOCK": size}) for size in (16, 32, 64)]
LEFT, RIGHT, FAR = CONFIGS


def measure_of(config: Config, median: float) -> Measurement:
    return Measurement(config=config, median=median, at=now())


def run_race(race: Race, turn: Callable[[Config], Measurement | None]) -> list[Measurement]:
    for config in race.turns():
        race.note(turn(config))
    return race.conclude()


def screening_of(*medians: float) -> dict[Config, Measurement]:
    return {
        config: measure_of(config, median) for config, median in zip(CONFIGS, medians, strict=False)
    }


@pytest.mark.parametrize(
    ("before", "now", "enters"),
    [
        ((0.005, 0.006, 0.008), (0.006, 0.005, 0.008), False),  # one step of the timer
        ((0.050, 0.050, 0.075), (0.060, 0.050, 0.075), True),
        ((5.0, 5.3, 7.5), (5.5, 5.8, 8.2), False),  # the clock falls for all
        ((5.0, 5.0, 7.5), (5.9, 5.0, 7.5), True),
    ],
)
def test_more_configs_enter_where_the_device_does_not_repeat_its_timings(
    before: tuple[float, ...], now: tuple[float, ...], enters: bool
) -> None:
    """The third config is not close to the others, but might be on such a device."""
    times, seen = dict(zip(CONFIGS, now, strict=True)), []

    def turn(config: Config) -> Measurement:
        seen.append(config)
        return measure_of(config, times[config])

    run_race(Race(screening_of(*before), LEFT), turn)
    assert (seen.count(FAR) > 1) == enters
    assert seen.count(LEFT) <= MOST_ROUNDS


def test_a_race_in_which_no_config_runs_any_longer_has_no_results() -> None:
    """On a device that runs out of memory meanwhile."""
    assert run_race(Race(screening_of(1.0, 1.01), LEFT), lambda _: None) == []


@pytest.mark.parametrize("screened", [(), (1.0,), (1.0, 3.5, 20.0)])
def test_a_config_that_no_other_comes_close_to_needs_no_race(screened: tuple[float, ...]) -> None:
    assert (
        run_race(Race(screening_of(*screened), LEFT), lambda config: pytest.fail(str(config))) == []
    )


@pytest.mark.parametrize("seed", range(60))
def test_any_race_ends_with_at_most_one_result_of_each_screened_config(seed: int) -> None:
    """Whatever was screened, and whichever configs fail at whichever turn."""
    drawn = random.Random(seed)
    screened = screening_of(*(drawn.choice([0.0, 1.0, 1.01, 2.0, 9.0]) for _ in CONFIGS))
    screened = dict(drawn.sample(sorted(screened.items(), key=repr), drawn.randint(0, 3)))
    fails = drawn.choice([0.0, 0.1, 0.9])

    def turn(config: Config) -> Measurement | None:
        return None if drawn.random() < fails else measure_of(config, drawn.uniform(0.9, 1.1))

    until = drawn.choice([0.0, float("inf")])
    results = [result.config for result in run_race(Race(screened, LEFT, until), turn)]
    assert len(set(results)) == len(results)
    assert {*results} <= {*screened}


@pytest.mark.parametrize("runs", [1, 3])
def test_a_config_that_runs_alone_in_the_end_has_won(runs: int) -> None:
    left = iter(range(runs))

    def turn(config: Config) -> Measurement | None:
        if config == LEFT and next(left, None) is None:
            return None
        return measure_of(config, 1.0 if config == LEFT else 1.005 + 0.05 * (next(jitter)))

    jitter = cycle([0, 1, -1])
    results = run_race(Race(screening_of(1.0, 1.0), LEFT), turn)
    assert min(results, key=lambda result: result.median or 0.0).config == RIGHT


def test_time_that_is_over_after_one_round_is_enough_for_a_verdict() -> None:
    times = {LEFT: 1.0, RIGHT: 0.9}
    race = Race(screening_of(0.95, 1.0), LEFT, until=0.0)
    measured = run_race(race, lambda config: measure_of(config, times[config]))
    results = {result.config: result for result in measured}
    assert {config: result.median for config, result in results.items()} == times
    assert all(result.confidence is None for result in results.values())
