"""Records as if made with the installed Triton, and one folder prewarmed from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.prewarming import committed_records, prewarm, restamp
from support.shared_work import make_once

from dejavu_cache.stores import FileStore


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> FileStore:
    """Return a store with the committed records."""
    store = FileStore(tmp_path_factory.mktemp("prewarm") / "records")
    for record_set in map(restamp, committed_records()):
        store.put(record_set.context, record_set.records)
    return store


@pytest.fixture(scope="session")
def folder(records: FileStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder prewarmed for all devices; do not change it."""

    def build(out: Path) -> None:
        made = prewarm(records, out)
        assert made.returncode == 0, made.stderr

    return make_once(tmp_path_factory, "prewarmed", build)
