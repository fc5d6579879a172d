"""Records as if they had been made with the Triton that is installed, and one folder prewarmed from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.prewarming import committed, prewarm, restamped

from dejavu_cache.stores import FileStore


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> FileStore:
    """A store with the committed records."""
    store = FileStore(tmp_path_factory.mktemp("prewarm") / "records")
    for whole in map(restamped, committed()):
        store.put(whole.context, whole.records)
    return store


@pytest.fixture(scope="session")
def folder(records: FileStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was prewarmed for all devices; nobody may change it."""
    out = tmp_path_factory.mktemp("prewarmed") / "folder"
    made = prewarm(records, out)
    assert made.returncode == 0, made.stderr
    return out
