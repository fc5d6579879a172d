"""`explain` and `watch`, in this process."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from dejavu_client.cli.commands import watch
from dejavu_client.cli.main import run_command
from support.command_line import run_cli
from support.records import MOMENT, config, context, measurement, record

from dejavu_cache.model.record import OutputVerdict, Pin, Winner
from dejavu_cache.model.scenario import now
from dejavu_cache.stores import FileStore


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    filled = FileStore(tmp_path / "store")
    pair = (measurement(64, 1.0), measurement(128, 1.5))
    winner = Winner(config=config(64), at=MOMENT)
    filled.put(context(), [record(m, *pair, winner=winner) for m in (32, 64, 256)])
    return filled


def last_row(store: FileStore) -> dict[str, str]:
    """Return the last line of `show` by the names of its columns."""
    seen = run_cli("show", "add", "--store", store.root)
    assert seen.returncode == 0, seen
    header, row = (line.split("\t") for line in seen.stdout.splitlines()[-2:])
    return dict(zip(header, row, strict=True))


def test_a_scenario_without_a_winner_says_so(tmp_path: Path) -> None:
    interrupted = FileStore(tmp_path)
    interrupted.put(context(), [record(32, measurement(64, 1.0))])
    seen = run_cli("explain", "add", "--store", tmp_path)
    assert seen.returncode == 0
    assert "no winner, so a launch that compares results takes a fallback" in seen.stdout
    assert last_row(interrupted)["unfinished"] == "yes"


def test_a_winner_that_was_not_compared_says_so(tmp_path: Path) -> None:
    noisy = {
        "order": OutputVerdict(outcome="not_compared", reason="not repeatable"),
        "out": OutputVerdict(outcome="equal"),
    }
    for results, mark in ((None, "yes"), (noisy, None)):
        filled = FileStore(tmp_path / str(mark))
        winner = Winner(config=config(64), at=MOMENT, results=results)
        filled.put(context(), [record(32, measurement(64), measurement(32, 0.999), winner=winner)])
        reason = "order: not repeatable" if results else "all outputs: no comparison is recorded"
        explained = ("explain", "add", "--store", filled.root)
        assert f"not compared: {reason}" in run_cli(*explained).stdout
        (explanation,) = json.loads(run_cli(*explained, "--json").stdout)
        assert explanation["not_compared"] == [reason]
        assert last_row(filled).get("uncompared") == mark
        shown = run_cli("show", "add", "--store", filled.root).stdout
        assert "all winners: BLOCK=64" in shown, "though another was faster at the end"


def test_explain_tells_time_costs_age_and_author(store: FileStore) -> None:
    explained = ("explain", "add", "--store", store.root)
    out = run_cli(*explained, "--where", "M<60").stdout
    assert out.count("M=32") == 1
    for fact in (
        "recorded winner: BLOCK=64",
        "time: 1 ms",
        "measured:",
        "runner-up: BLOCK=128",
        "1.50x",
    ):
        assert fact in out
    (explanation,) = json.loads(run_cli(*explained, "--where", "M>64", "--json").stdout)
    assert explanation["scenario"]["args"]["M"] == 256
    assert explanation["evidence"][0].startswith("time: 1 ms")


def test_explain_begins_with_the_code_that_was_tuned_last(store: FileStore) -> None:
    """What is left out is said."""
    newer, far = measurement(64, 3.0, MOMENT + timedelta(days=2)), MOMENT + timedelta(days=1)
    store.put(context(source="f" * 32), [record(32, newer)])
    store.put(context(source="7" * 32), [record(4096, measurement(64, 4.0, far))])
    words = ["explain", "add", "--json", "--store", store.root]
    seen = run_cli(*words, "--limit", 3)
    times = [item["evidence"][0].split()[1] for item in json.loads(seen.stdout)]
    assert times == ["3", "4", "1"]
    assert "2 more" in seen.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("explain add --where Q=1", 2, "Q: no such argument; scenarios have"),
        ("explain add --where M=big", 1, "has no scenario of add with M=big"),
        ("explain add --where M>1e999", 1, "has no scenario of add with M>1e999"),
        ("explain subtract", 1, "subtract"),
        ("explain add --device B200", 1, "has no scenario of add"),
        ("watch --every inf", 2, "--every"),
    ],
)
def test_what_no_scenario_has_and_waiting_for_ever_are_refused(
    store: FileStore, words: str, code: int, message: str
) -> None:
    seen = run_cli(*words.split(), "--store", store.root)
    assert (seen.returncode, seen.stdout) == (code, "")
    assert message in seen.stderr


def test_watch_prints_what_happens_until_it_is_interrupted(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = measurement(64, 2.0)
    pin = Pin(config=config(128), at=now(), by="ann")
    pinned = record(32, measurement(64, 1.0), measurement(128, 1.5), pin=pin)
    changes: list[Callable[[], object]] = [
        lambda: store.put(context(), [record(512, slow)]),
        list,
        lambda: store.put(context(), [pinned]),
        lambda: store.delete(context(), [record(64).scenario]),
        lambda: store.put(context(device="other"), [record(1, slow)]),
    ]

    def change_something(seconds: float) -> None:
        if not changes:
            raise KeyboardInterrupt
        changes.pop(0)()

    # Other threads of this process sleep as ever.
    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=change_something))
    assert run_command(["watch", "add", "--json", "--store", str(store.root)]) == 0
    captured = capsys.readouterr()
    assert "watching 3 scenarios" in captured.err
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert [line["what"] for line in lines] == ["tuned", "changed", "deleted", "tuned"]
    assert "M=512" in lines[0]["scenario"]
    assert "2 ms" in lines[0]["detail"]
    assert "pinned BLOCK=128" in lines[1]["detail"]
