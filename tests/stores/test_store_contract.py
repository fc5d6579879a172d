"""Every local store keeps the contract, and lets what supersedes stand, whatever clock dated it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from support.records import config, context, measurement, record

from dejavu_cache.model.record import Winner
from dejavu_cache.model.scenario import now
from dejavu_cache.model.selection import winner
from dejavu_cache.stores import FileStore, MemoryStore, Store, TieredStore, open_store
from dejavu_cache.testing import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()

    def reopen(self, store: Store) -> Store:
        return store  # it has no other opening


class TestFileStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return FileStore(tmp_path / "store")

    def reopen(self, store: Store) -> Store:
        return open_store(store.url)


class TestTieredStore(StoreContract):
    """Folders may be tiered: a shared one before one's own, and a read-only one before both."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        read_only = FileStore(tmp_path / "shipped", read_only=True)
        return TieredStore([read_only, FileStore(tmp_path / "one"), FileStore(tmp_path / "two")])

    def reopen(self, store: Store) -> Store:
        return open_store(store.url)


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return FileStore(tmp_path / "store") if request.param == "file" else MemoryStore()


@pytest.mark.parametrize("hours", [-1, 10, 72])
def test_what_supersedes_stands(store: Store, hours: int) -> None:
    then = now() + timedelta(hours=hours)
    before = record(
        16,
        measurement(64, 1.0, then),
        measurement(32, 1.5, then),
        winner=Winner(config=config(64), at=then),
    )
    store.put_now(context(), [before])
    slow, at = measurement(64, 9.0, now()), now()
    store.supersede(context(), record(16, slow, winner=Winner(config=config(32), at=at)))
    (after,) = store.records(context())
    assert after.by_config[config(64)].median == 9.0
    assert after.by_config[config(32)] == before.by_config[config(32)]
    assert after.winner
    assert after.winner.config == config(32)
    assert after.winner.at >= after.by_config[config(64)].at
    assert winner(after, set(after.by_config)) == config(32)


def test_nothing_is_dated_anew_without_need(store: Store) -> None:
    store.put_now(context(), [record(16, measurement(64, 1.0))])
    later = record(16, measurement(64, 9.0, now()), winner=Winner(config=config(64), at=now()))
    store.supersede(context(), later)
    assert list(store.records(context())) == [later]
