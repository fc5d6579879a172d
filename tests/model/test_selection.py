"""Who wins, and who stands in."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from support.records import MOMENT, config, measurement, record

from dejavu_cache.model.record import Failure, Measurement, Winner
from dejavu_cache.model.scenario import Scenario
from dejavu_cache.model.selection import distance, winner

ALL = {config(16), config(32), config(64)}


def test_the_fastest_declared_config_wins() -> None:
    full = record(32, measurement(16, 1.0), measurement(32, 2.0), measurement(64, 3.0))
    assert winner(full, ALL) == config(16)
    assert winner(full, ALL - {config(16)}) == config(32)
    assert winner(full, {config(128)}) is None


def test_a_failed_config_never_wins() -> None:
    failed = Measurement(
        config=config(16), failure=Failure(kind="compile_error", reason="no"), at=MOMENT
    )
    assert winner(record(32, failed, measurement(32, 9.0)), ALL) == config(32)
    assert winner(record(32, failed), ALL) is None


def test_a_near_tie_does_not_flip() -> None:
    full = record(
        32,
        measurement(16, 1.0),
        measurement(32, 1.005),
        winner=Winner(config=config(32), at=MOMENT),
    )
    assert winner(full, ALL) == config(32)


def test_a_clear_difference_flips() -> None:
    full = record(
        32, measurement(16, 1.0), measurement(32, 1.2), winner=Winner(config=config(32), at=MOMENT)
    )
    assert winner(full, ALL) == config(16)


def test_the_default_wins_where_it_ties_with_the_best() -> None:
    """And so takes the place of a previous winner that is slower than it."""
    full = record(
        32,
        measurement(16, 1.0),
        measurement(32, 1.005),
        measurement(64, 1.002),
        winner=Winner(config=config(32), at=MOMENT),
    )
    assert winner(full, ALL, default=config(64)) == config(64)


@given(
    st.dictionaries(st.sampled_from([16, 32, 64]), st.floats(0.001, 1e3), min_size=1),
    st.sampled_from([16, 32, 64]),
)
def test_by_its_own_measurements_the_winner_beats_the_default(
    medians: dict[int, float], default: int
) -> None:
    full = record(32, *(measurement(block, median) for block, median in medians.items()))
    best = winner(full, ALL, default=config(default))
    assert best is not None
    chosen = full.by_config[best].median
    assert chosen is not None
    assert chosen <= medians.get(default, math.inf)


def test_distances_are_on_a_log_scale() -> None:
    wanted = record(64).scenario
    assert distance(wanted, record(16).scenario) == 2.0
    assert distance(wanted, record(1024).scenario) == 4.0


def test_only_numbers_may_differ() -> None:
    scenario = Scenario(args={"M": 32, "causal": True}, dtypes={"x": "float16"})
    assert (
        distance(scenario, Scenario(args={"M": 64, "causal": True}, dtypes={"x": "float16"})) == 1.0
    )
    assert (
        distance(scenario, Scenario(args={"M": 32, "causal": False}, dtypes={"x": "float16"}))
        == math.inf
    )
    assert (
        distance(scenario, Scenario(args={"M": 32, "causal": True}, dtypes={"x": "float32"}))
        == math.inf
    )
    assert (
        distance(scenario, Scenario(args={"M": None, "causal": True}, dtypes={"x": "float16"}))
        == math.inf
    )
    assert (
        distance(scenario, Scenario(args={"M": -32, "causal": True}, dtypes={"x": "float16"}))
        == math.inf
    )


def test_a_decision_stands_until_something_newer_speaks_against_it() -> None:
    """Close contenders are repeated before the tuner decides; a reader need not know that."""
    from datetime import timedelta

    later = MOMENT + timedelta(seconds=1)
    decided = record(
        32, measurement(16, 1.0), measurement(32, 1.05), winner=Winner(config=config(32), at=later)
    )
    assert winner(decided, ALL) == config(32)
    newer = measurement(16, 1.0, later + timedelta(seconds=1))
    challenged = record(
        32, newer, measurement(32, 1.05), winner=Winner(config=config(32), at=later)
    )
    assert winner(challenged, ALL) == config(16)
