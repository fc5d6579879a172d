"""What wins over several cases is good on average and not bad in any."""

from __future__ import annotations

import pytest

from dejavu_cache.model.selection import BEHIND, MOST_SLOWDOWN, CaseScores


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
