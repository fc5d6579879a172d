"""Comparisons of configs in turns, with timings of known resolution."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dejavu_cache.model.record import Measurement
from dejavu_cache.model.scenario import Config, now
from dejavu_cache.tuning.device_timer import Effort
from dejavu_cache.tuning.race import race, race_unsteadily, survey

LEFT, RIGHT = Config(params={"BLOCK": 16}), Config(params={"BLOCK": 32})


def times_of(*times: float) -> Iterator[float]:
    while True:
        yield from times


@pytest.mark.parametrize(
    ("left", "right", "is_steady"),
    [
        ((0.005, 0.006), (0.005, 0.005), True),  # one step of the timer, at five microseconds
        ((0.005, 0.006), (0.006, 0.005), True),
        ((0.050, 0.060), (0.050, 0.050), False),
        ((0.005, 0.009), (0.005, 0.005), False),
        ((5.0, 5.3), (5.0, 5.3), True),  # the clock falls for both
    ],
)
def test_the_resolution_of_the_timer_is_no_unsteadiness(
    left: tuple[float, ...], right: tuple[float, ...], is_steady: bool
) -> None:
    times = {LEFT: times_of(*left), RIGHT: times_of(*right)}

    def turn(config: Config, effort: Effort) -> Measurement:
        return Measurement(config=config, median=next(times[config]), at=now())

    results = race([LEFT, RIGHT], turn)
    assert (results.spread == 1.0 or results.spread < 1.01) == is_steady
    if is_steady and left[0] < 0.01:
        assert results.level_spread == 1.0


def test_a_race_in_which_no_config_runs_any_longer_has_no_results() -> None:
    """On a device that runs out of memory in the finals."""
    assert race_unsteadily([LEFT, RIGHT], lambda *_: None).measurements == {}
    assert survey([LEFT, RIGHT], lambda *_: None) == {}
