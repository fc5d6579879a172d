"""Records are values: they survive JSON, merge in any order, and say who wins."""

import itertools
import math
from datetime import timedelta
from functools import partial, reduce
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.records import MOMENT, config, context, measurement, record
from support.strategies import RECORDS, SCENARIOS

from dejavu_cache.model.merge import merge_records
from dejavu_cache.model.record import (
    NO_MEMORY,
    Confidence,
    Failure,
    Measurement,
    OutputVerdict,
    Pin,
    Record,
    Winner,
    join_results,
    reasons_not_compared,
)
from dejavu_cache.model.scenario import Device, Scenario, canonical_json, now
from dejavu_cache.model.selection import (
    BEHIND,
    MOST_SLOWDOWN,
    CaseScores,
    distance,
    evidence_lines,
    winner,
)


@given(SCENARIOS)
def test_a_scenario_survives_json_as_the_same_key(scenario: Scenario) -> None:
    again = Scenario.model_validate_json(scenario.text)
    assert repr(again) == repr(scenario), "the text, which is compared, has every field's value"
    reordered = Scenario(args=dict(reversed(scenario.args.items())), dtypes=scenario.dtypes)
    for same in (again, reordered):
        assert same == scenario
        assert hash(same) == hash(scenario)
        assert same.digest == scenario.digest


@pytest.mark.parametrize(
    ("left", "right"), list(itertools.combinations([1, True, 1.0, "1", None], 2))
)
def test_values_of_two_types_are_two_scenarios(left: object, right: object) -> None:
    """To Python 1, 1.0 and True are equal; to a compiler they are not."""
    assert Scenario(args={"x": left}) != Scenario(args={"x": right})


@given(st.lists(RECORDS, min_size=1, max_size=4), st.randoms())
def test_merging_in_any_order_loses_no_config(records: list[Record], random: object) -> None:
    merge_all = partial(reduce, merge_records)
    shuffled = list(records)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert merge_all(records) == merge_all(shuffled)
    assert merge_all([*records, *records]) == merge_all(records)
    assert {*merge_all(records).by_config} == {key for each in records for key in each.by_config}


@pytest.mark.parametrize("hours", [-1, 0, 1, 23.99, 24.01, 1000])
def test_a_pin_outlasts_the_one_that_it_replaces(hours: float) -> None:
    earlier = Pin(config=config(16), at=now() + timedelta(hours=hours), by="z")
    for choice in (config(32), None):
        later = Pin.after(earlier, choice, "a")
        before, after = (record(32, pin=pin) for pin in (earlier, later))
        assert merge_records(before, after).pin == merge_records(after, before).pin == later


@pytest.mark.parametrize("median", [math.nan, math.inf, -1.0, "fast", None])
def test_a_timing_that_cannot_be_is_refused(median: object) -> None:
    with pytest.raises(ValidationError):
        Measurement(config=config(), median=median, at=MOMENT)


@pytest.mark.parametrize(
    "at", ["2026-01-02T03:04:05+02:00", "2026-01-02t01:04:05.000z", MOMENT.astimezone()]
)
def test_a_moment_is_kept_in_utc(at: object) -> None:
    assert Pin.model_validate({"at": at}).at.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "at",
    [
        "2026-01-02T03:04:05",
        "2026-01-02",
        None,
        MOMENT.replace(year=2200),
        MOMENT.replace(tzinfo=None),
    ],
)
def test_a_moment_without_its_offset_is_refused(at: object) -> None:
    with pytest.raises(ValidationError, match="at"):
        Pin.model_validate({"at": at})


@pytest.mark.parametrize("year", [1970, 2200])
def test_a_clock_that_is_wrong_gives_a_moment(year: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=lambda _: MOMENT.replace(year=year))
    monkeypatch.setattr("dejavu_cache.model.scenario.datetime", clock)
    assert Pin(at=now()).at == MOMENT.replace(year=2000)


def test_numbers_are_not_read_out_of_texts() -> None:
    device = {"name": "NVIDIA H200", "arch": "sm_90", "units": 132, "memory_gib": 140}
    for field, wrong in itertools.product(("units", "memory_gib"), ("132", True, 132.0, 2**31)):
        with pytest.raises(ValidationError, match=field):
            Device.model_validate(device | {field: wrong})


def test_one_config_is_measured_once_in_a_record() -> None:
    with pytest.raises(ValidationError, match="two measurements of one config"):
        record(32, measurement(64, 1.0), measurement(64, 2.0))


def test_every_part_of_a_context_changes_its_digest() -> None:
    changed = {"kernel": "a.b", "source": "1" * 32, "device": "NVIDIA H100", "triton": "3.7.0"}
    digests = {context(**dict([change])).digest for change in changed.items()} | {context().digest}
    assert len(digests) == 5


LATER = MOMENT + timedelta(days=1)
OLD, PINNED = record(32, measurement(64, 1.0)), record(32, pin=Pin(config=config(16), at=MOMENT))
NEWER = record(32, measurement(64, 2.0, LATER))
SKIPPED = Measurement(config=config(), failure=Failure(kind="skipped", reason="full"), at=LATER)
REFUTED = Measurement(config=config(), failure=Failure(kind="wrong", reason="NaN"), at=MOMENT)
OVER_CASES = measurement(64, 1.0).model_copy(update={"cases": {"short": 1.0, "long": 2.0}})


@pytest.mark.parametrize(
    ("stands", "gives_way"),
    [
        (NEWER, OLD),
        (record(32, pin=Pin(config=None, at=LATER)), PINNED),
        (OLD, record(32, SKIPPED)),
        (record(32, REFUTED), NEWER),
        (record(32, OVER_CASES), NEWER),
    ],
    ids=["newer", "a pin that was taken back", "known, not skipped", "wrong", "more cases"],
)
def test_what_stands_when_two_records_are_merged(stands: Record, gives_way: Record) -> None:
    assert merge_records(stands, gives_way) == merge_records(gives_way, stands) == stands


def test_the_evidence_says_how_certain_a_race_was() -> None:
    first, second = (
        measurement(block, median).model_copy(update={"confidence": confidence})
        for block, median, confidence in (
            (16, 1.0, Confidence(error=0.002, rounds=8)),
            (32, 1.04, Confidence(error=0.006, rounds=3)),
        )
    )
    measured = record(1, first, second)
    for config_of_default in (second.config, first.config):
        lines = evidence_lines(measured, first.config, measured.by_config, config_of_default)
        assert f"runner-up: {second.config}, 1.04x to within 0.6%" in lines
    assert f"default: {first.config}, 1.00x" in lines


EQUAL = OutputVerdict(outcome="equal")
WRONG = OutputVerdict(outcome="wrong", reason="differs in 1 of 4 elements")
NOISY = OutputVerdict(outcome="not_compared", reason="not repeatable: differs from itself")
FULL = OutputVerdict(outcome="not_compared", reason=f"{NO_MEMORY} left on the device")


@pytest.mark.parametrize(
    ("results", "is_compared", "reasons"),
    [
        (None, False, ["all outputs: no comparison is recorded"]),
        ({}, False, ["all outputs: no comparison is recorded"]),
        ({"out": EQUAL}, True, []),
        ({"out": EQUAL, "order": NOISY}, True, [f"order: {NOISY.reason}"]),
        ({"order": NOISY}, False, [f"order: {NOISY.reason}"]),
        ({"out": EQUAL, "sum": FULL}, False, [f"sum: {FULL.reason}"]),
        ({"out": EQUAL, "sum": WRONG}, False, []),
    ],
)
def test_a_winner_says_whether_it_was_compared(
    results: dict[str, OutputVerdict] | None, is_compared: bool, reasons: list[str]
) -> None:
    won = Winner(config=config(16), at=MOMENT, results=results)
    assert (won.is_compared, reasons_not_compared(won.results)) == (is_compared, reasons)
    assert Winner.model_validate_json(canonical_json(won)) == won
    is_wrong = WRONG in (results or {}).values()
    assert record(32, measurement(16), winner=won).is_finished is not is_wrong


def test_over_several_launches_the_worst_verdict_on_an_output_counts() -> None:
    joined = join_results({"out": EQUAL, "sum": FULL}, {"out": WRONG, "sum": EQUAL})
    assert joined == {"out": WRONG, "sum": FULL}


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_a_winner_that_was_compared_stands_against_one_that_was_not(hours: int) -> None:
    compared = Winner(config=config(16), at=MOMENT, results={"out": EQUAL})
    at = MOMENT + timedelta(hours=hours)
    other = Winner(config=config(32), at=at, results={"out": FULL})
    for unsaid in (other, other.model_copy(update={"results": None})):
        merged = merge_records(record(32, winner=compared), record(32, winner=unsaid))
        assert merged.winner == compared


ALL = {config(16), config(32), config(64)}


WINNERS: dict[str, tuple[dict[int, float], int | None, int | None, int]] = {
    "the fastest": ({16: 1.0, 32: 2.0, 64: 3.0}, None, None, 16),
    "a near tie does not flip": ({16: 1.0, 32: 1.005}, 32, None, 32),
    "a clear difference flips": ({16: 1.0, 32: 1.2}, 32, None, 16),
    "the default where it ties with the best": ({16: 1.0, 32: 1.005, 64: 1.002}, 32, 64, 64),
    "a default that is slower loses": ({16: 1.0, 32: 1.2}, None, 32, 16),
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
    decision = Winner(config=config(32), at=LATER)
    for at, best in ((MOMENT, 32), (LATER + timedelta(seconds=1), 16)):
        timings = measurement(16, 1.0, at), measurement(32, 1.05)
        assert winner(record(32, *timings, winner=decision), ALL) == config(best)


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
