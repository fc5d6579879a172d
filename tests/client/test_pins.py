"""`pin` and `pin --remove` do what they say, whatever clock dated the earlier pin."""

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest
from support.command_line import run_cli
from support.records import MOMENT, config, context, measurement, record

from dejavu_cache.model.record import Failure, Measurement, Pin, Record
from dejavu_cache.model.scenario import Context, now
from dejavu_cache.stores import FileStore

FAST, SLOW = config(64), config(32)
CLOCKS_AHEAD = [timedelta(hours=-1), timedelta(hours=10), timedelta(days=3)]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "store")
    store.put(context(), [record(16, measurement(64, 1.0), measurement(32, 2.0))])
    return store


def pin_ahead(store: FileStore, ahead: timedelta) -> None:
    """Pin the fast config as a machine would whose clock is ahead."""
    pin = Pin(config=FAST, at=now() + ahead, by="ann@there")
    store.put(context(), [Record(scenario=record(16).scenario, pin=pin)])


def pinned_in(store: FileStore) -> object:
    (stored,) = FileStore(store.root).records(context())
    return stored.pinned


@pytest.mark.parametrize("ahead", CLOCKS_AHEAD, ids=str)
def test_a_pin_that_is_dated_ahead_is_replaced_and_removed(
    store: FileStore, ahead: timedelta
) -> None:
    for option, said, pinned in (
        ("--config BLOCK=32", "pinned to BLOCK=32, num_warps=4, 2.00x the time of the fast", SLOW),
        ("--remove", "no longer pinned", None),
    ):
        pin_ahead(store, ahead)
        out = run_cli("pin", "add", *option.split(), "--store", store.root)
        assert out.returncode == 0, out.stderr
        assert said in out.stdout
        assert pinned_in(store) == pinned
        shown = run_cli("explain", "add", "--store", store.root).stdout
        assert ("pinned: BLOCK=32" in shown) == (pinned == SLOW)


def test_the_scenarios_of_a_file_are_pinned_by_one_write(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of thousands would else be written as often, for hours. What failed is not pinned."""
    failed = Measurement(config=config(128), failure=Failure(kind="skipped", reason=""), at=MOMENT)
    measured = measurement(64, 1.0), measurement(32, 2.0), failed
    for target in (context(), context(device="NVIDIA B200")):
        store.put(target, [record(m, *measured) for m in (16, 32, 64)])
    written: list[object] = []
    put = FileStore.put

    def put_noted(own: FileStore, target: Context, records: Iterable[Record]) -> None:
        written.append(target)
        put(own, target, records)

    monkeypatch.setattr(FileStore, "put", put_noted)
    for options, said, count, writes in (
        ("--config BLOCK=32 --config BLOCK=64", "pinned", 0, 0),
        ("--config BLOCK=32", "pinned to BLOCK=32", 6, 2),
        ("--config BLOCK=128", "pinned", 0, 2),
        ("--remove --device B200 --triton 3.6.0", "B200, Triton 3.6.0, source", 3, 3),
        ("--remove", "no longer pinned", 3, 4),
    ):
        out = run_cli("pin", "add", *options.split(), "--store", store.root)
        assert (out.stdout.count(said), len(written)) == (count, writes)


def test_two_stores_that_are_read_together_are_pinned_together(
    store: FileStore, tmp_path: Path
) -> None:
    """One of them may only be read, and has the pin that is dated ahead."""
    pin_ahead(store, timedelta(hours=10))
    both = f"{tmp_path / 'mine'},{store.url}?read_only=1"
    (tmp_path / "mine").mkdir()
    assert run_cli("pin", "add", "--config", "BLOCK=32", "--store", both).returncode == 0
    assert pinned_in(FileStore(tmp_path / "mine")) == SLOW
    assert pinned_in(store) == FAST


def test_of_two_sources_the_one_that_was_tuned_last_is_pinned(store: FileStore) -> None:
    """The older one may lack the config; both may have it, and another deployment run it."""
    older, newer = context(source="1" * 32), context(source="2" * 32)
    store.put(older, [record(32, measurement(64, 1.0)), record(64, measurement(32, 1.0))])
    later = MOMENT + timedelta(hours=1)
    store.put(newer, [record(m, measurement(32, 2.0, at=later)) for m in (32, 64)])
    out = run_cli("pin", "add", "--config", "BLOCK=32", "--store", store.root)
    assert out.returncode == 0, out.stderr
    assert [entry.pinned for entry in store.records(newer)] == [SLOW, SLOW]
    assert [entry.pinned for entry in store.records(older)] == [None, None]
    assert len(set(out.stdout.splitlines())) == 2
    assert "Triton 3.6.0, source 22222222): pinned to BLOCK=32" in out.stdout
    store.put(older, [Record(scenario=record(32).scenario, pin=Pin(config=FAST, at=now(), by="x"))])
    assert run_cli("pin", "add", "--remove", "--store", store.root).returncode == 0
    for found in store.contexts():
        assert [entry.pinned for entry in store.records(found) if entry.pinned] == []
