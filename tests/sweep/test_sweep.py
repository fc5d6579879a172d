"""A sweep measures what is missing, once, and says what became of it."""

from __future__ import annotations

import json

import pytest
from sweeping import Sweeps

from dejavu_cache.errors import SettingsError
from dejavu_cache.sweep.runner import shard_of


def test_the_second_sweep_measures_nothing(sweeps: Sweeps) -> None:
    assert "8 cases tuned, 32 configs measured" in sweeps.run()
    assert sweeps.recorded == sweeps.whole()
    assert "0 cases tuned, 0 configs measured" in sweeps.run()
    assert len(sweeps.measured) == 32


def test_a_dry_run_says_how_much_and_how_long_and_measures_nothing(sweeps: Sweeps) -> None:
    assert "32 configs of 8 cases to measure" in sweeps.run("--dry-run")
    assert sweeps.measured == []
    sweeps.run("--option", "cases=2", BENCH_SECONDS="0.2")
    plan = sweeps.json("--dry-run")
    due = [each for each in plan["outcomes"] if each["status"] == "due"]
    assert sum(each["due"] for each in due) == 24
    assert sum(each["estimate"] for each in due) == pytest.approx(24 * 0.2, rel=0.5)
    assert len(sweeps.measured) == 8


def test_shards_are_disjoint_and_make_up_the_whole(sweeps: Sweeps) -> None:
    names = [f"case {n}" for n in range(10)]
    parts = [shard_of(names, f"{n}/3") for n in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    for wrong in ("0/3", "4/3", "1", "a/b", "1/0"):
        with pytest.raises(SettingsError, match="--shard"):
            shard_of(names, wrong)
    for n in (1, 2):
        sweeps.run("--shard", f"{n}/2")
    assert len(sweeps.measured) == 32
    assert sweeps.recorded == sweeps.whole()


def test_a_budget_ends_a_sweep_and_the_next_one_goes_on(sweeps: Sweeps) -> None:
    out = sweeps.run("--budget", "2s", code=1, BENCH_SECONDS="0.5")
    assert "the budget is used up" in out
    assert "what was measured is kept" in out
    some = len(sweeps.measured)
    assert 0 < some <= 6
    sweeps.run()
    assert len(sweeps.measured) == 32
    assert sweeps.recorded == sweeps.whole()


def test_verifying_measures_winners_again_and_records_nothing(sweeps: Sweeps) -> None:
    assert "nothing of this suite is tuned yet" in sweeps.run("--verify", "3", code=2)
    sweeps.run()
    before = sweeps.recorded
    checked = sweeps.json("--verify", "3")["outcomes"]
    assert [(each["status"], each["recorded"], each["again"]) for each in checked] == [("verified", 16.0, 16.0)] * 3
    assert len(sweeps.measured) == 35
    assert sweeps.recorded == before


def test_drift_is_reported(sweeps: Sweeps) -> None:
    sweeps.run("--option", "cases=1")
    (path,) = sweeps.store.rglob("*.json")
    path.write_text(path.read_text().replace('"median": 16.0', '"median": 8.0'))
    assert "+100.0%" in sweeps.run("--verify", "1", code=1)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("raises", "bad: failed: ZeroDivisionError: mine"),
        ("full", "bad: no memory for it"),
        ("plain", "bad: failed: SettingsError: case bad: its kernel is not decorated with @cached_autotune"),
    ],
)
def test_a_bad_case_costs_itself_and_nothing_else(sweeps: Sweeps, bad: str, message: str) -> None:
    out = sweeps.run("--option", "cases=2", "--option", f"bad={bad}", code=1)
    assert message in out
    assert sweeps.recorded == sweeps.whole(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"suite": ":nothing"}, "has no suite 'nothing'"),
        ({"suite": ":broken"}, "the suite raised for (): ZeroDivisionError: mine"),
    ],
)
def test_a_suite_that_cannot_be_used_is_said_in_a_line(sweeps: Sweeps, arguments: dict[str, str], message: str) -> None:
    out = sweeps.run(code=2, **arguments)  # type: ignore[arg-type]
    assert message in out
    assert "Traceback" not in out


def test_a_sweep_into_memory_is_refused(sweeps: Sweeps) -> None:
    assert "would be lost" in sweeps.run("--store", "memory://", code=2)


def test_json_tells_every_outcome(sweeps: Sweeps) -> None:
    told = sweeps.json("--option", "cases=2")
    assert (told["complete"], told["measured"], told["left"]) == (True, 8, [])
    assert json.dumps(told["outcomes"][0]["case"]) == '"n=100"'
