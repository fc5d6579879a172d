"""Folders of records that commands look at."""

from pathlib import Path

import pytest
from support.records import MOMENT, context, measurement, record

from dejavu_cache.model.record import Failure, Measurement
from dejavu_cache.stores import FileStore


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "store")
    failed = Measurement(
        config=measurement(128).config,
        failure=Failure(kind="out_of_resources", reason="shared memory"),
        at=MOMENT,
    )
    store.put(
        context(), [record(16, measurement(32, 1.0), measurement(64, 2.0), failed), record(32)]
    )
    return store
