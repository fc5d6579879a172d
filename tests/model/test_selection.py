"""Who wins in a scenario and over several cases, and who stands in."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import MOMENT, config, measurement, record

from dejavu_cache.model.record import Failure, Measurement, Winner
from dejavu_cache.model.scenario import Scenario
from dejavu_cache.model.selection import BEHIND, MOST_SLOWDOWN, CaseScores, distance, winner

ALL = {config(16), config(32), config(64)}


WINNERS: dict[str, tuple[dict[int, float], int | None, int | None, int]] = {
    "the fastest": ({16: 1.0, 32: 2.0, 64: 3.0}, None, None, 16),
    "a near tie does not flip": ({16: 1.0, 32: 1.005}, 32, None, 32),
    "a clear difference flips": ({16: 1.0, 32: 1.2}, 32, None, 16),
    "the default where it ties with the best": ({16: 1.0, 32: 1.005, 64: 1.002}, 32, 64, 64),
}
"""Medians by block, the recorded winner, the default, and who wins."""


@pytest.mark.parametrize("case", WINNERS)
def test_who_wins(case: str) -> None:
    medians, recorded, default, best = WINNERS[case]
    won = Winner(config=config(recorded), at=MOMENT) if recorded else None
    full = record(32, *(measurement(block, at) for block, at in medians.items()), winner=won)
    assert winner(full, ALL, default=config(default) if default else None) == config(best)


def test_only_declared_configs_that_ran_win() -> None:
    failure = Failure(kind="compile_error", reason="no")
    failed = Measurement(config=config(16), failure=failure, at=MOMENT)
    some = record(32, failed, measurement(32, 9.0), measurement(64, 9.9))
    assert winner(some, ALL) == config(32)
    assert winner(some, {config(16), config(64)}) == config(64)
    assert winner(some, {config(16)}) is None
    assert winner(some, {config(128)}) is None


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


def test_distances_are_on_a_log_scale_and_only_numbers_may_differ() -> None:
    wanted = Scenario(args={"M": 32, "causal": True}, dtypes={"x": "float16"})
    for args, dtypes, gap in (
        ({"M": 8}, {}, 2.0),
        ({"M": 512}, {}, 4.0),
        ({"causal": False}, {}, math.inf),
        ({}, {"x": "float32"}, math.inf),
        ({"M": None}, {}, math.inf),
        ({"M": -32}, {}, math.inf),
    ):
        other = Scenario(args={**wanted.args, **args}, dtypes={**wanted.dtypes, **dtypes})
        assert distance(wanted, other) == gap, other


def test_a_decision_stands_until_something_newer_speaks_against_it() -> None:
    """Close contenders are repeated before the tuner decides; a reader need not know that."""
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


def test_the_best_mean_wins() -> None:
    scores = CaseScores({"even": {"a": 1.1, "b": 11.0}, "uneven": {"a": 1.0, "b": 11.4}})
    assert scores.best == {"a": 1.0, "b": 11.0}
    assert scores.leaders == ["even", "uneven"][:: 1 if 1.1 < 11.4 / 11 else -1]
    assert scores.score("even") == pytest.approx(1.1**0.5)
    assert scores.equivalent("even") == pytest.approx((1.1 * 11.0) ** 0.5)


def test_a_config_that_is_bad_in_one_case_loses_to_one_that_is_good_in_all() -> None:
    cases = [f"{n}" for n in range(10)]
    bad_once = dict.fromkeys(cases, 1.0) | {"3": 1.5}
    even = dict.fromkeys(cases, 1.06) | {"3": 1.0}
    scores = CaseScores({"bad once": bad_once, "even": even})
    assert scores.score("bad once") == pytest.approx(1.5 / MOST_SLOWDOWN)
    assert scores.leaders == ["even", "bad once"]


def test_a_config_is_left_out_when_it_is_too_far_behind_to_win() -> None:
    scores = CaseScores({"leader": {"a": 1.0}, "close": {"a": 1.3}, "far": {"a": 1.4}})
    assert [scores.may_win(config, 4) for config in ("leader", "close", "far")] == [
        True,
        True,
        1.4 / MOST_SLOWDOWN < BEHIND,
    ]


def test_a_config_that_was_left_out_is_recorded_behind_the_leader() -> None:
    scores = CaseScores({"leader": {"a": 2.0, "b": 1.0}, "left": {"a": 1.0}, "other": {"b": 0.5}})
    assert scores.leaders == ["leader"]
    assert scores.equivalent("left") > scores.equivalent("leader")


def test_without_cases_there_is_no_leader() -> None:
    scores: CaseScores[str] = CaseScores({"untimed": {}})
    assert (scores.leaders, scores.level, "untimed" in scores) == ([], 0.0, False)
