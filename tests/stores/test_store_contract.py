"""Every local store keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

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
