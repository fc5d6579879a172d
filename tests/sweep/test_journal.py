"""What a sweep left is handed over by the next one, unless another one is at it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from support.records import context, record

from dejavu_cache.errors import StoreError
from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Context
from dejavu_cache.stores import FileStore, Store
from dejavu_cache.sweep.journal import Journal, hand_over_what_is_left


class AwayStore(FileStore):
    """A folder that takes nothing."""

    def put(self, context: Context, records: Iterable[Record], *, now: bool = False) -> None:
        """Raise what a server that is away raises."""
        raise StoreError("it is away")


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """Return the folder of a journal with two records that a killed sweep left."""
    journal = Journal(AwayStore(tmp_path / "store"), tmp_path / "journal")
    journal.put(context(), [record(1)])
    with journal.lease(context(), record(2).scenario, wait=0.0):
        journal.put(context(), [record(2)])
    return tmp_path / "journal"


def sizes(store: Store) -> list[object]:
    return [entry.scenario.args["M"] for entry in store.records(context())]


def test_what_was_left_is_handed_over_and_removed(left: Path, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    assert sizes(FileStore(left)) == [1, 2]
    assert Journal(store, left).hand_over()
    assert (sizes(store), sizes(FileStore(left))) == ([1, 2], [])


def test_what_the_store_does_not_take_stays_and_is_read(left: Path, tmp_path: Path) -> None:
    journal = Journal(AwayStore(tmp_path / "store"), left)
    assert not journal.hand_over()
    found = journal.get(context(), record(1).scenario)
    assert found is not None
    assert found.record == record(1)


def test_what_another_sweep_measures_is_its_own(left: Path, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    with FileStore(left).lease(context(), record(1).scenario, wait=0.0):
        assert Journal(store, left).hand_over()
        assert (sizes(store), sizes(FileStore(left))) == ([2], [1])


def test_a_journal_that_cannot_be_handed_over_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "store").touch()
    store = FileStore(tmp_path / "store")
    journal = Journal(store)
    journal.put(context(), [record(1)])
    assert hand_over_what_is_left(store.url) == [str(journal.local.root)]
    (tmp_path / "store").unlink()
    assert hand_over_what_is_left(store.url) == []
    assert sizes(store) == [1]


def test_without_a_journal_measurements_go_to_the_store_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = FileStore(tmp_path / "store")
    Journal(store, tmp_path / "file" / "journal").put(context(), [record(1)])
    assert sizes(store) == [1]
