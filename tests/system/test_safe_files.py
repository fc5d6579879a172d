"""A file is replaced as a whole, on whatever file system."""

from __future__ import annotations

import errno
import os
import stat
import tracemalloc
from pathlib import Path

import pytest

from dejavu_cache.system.safe_files import read_file, replace_file


def refuse_to_sync(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have folders refuse to be synced, as those of some network file systems do."""
    sync = os.fsync

    def sync_files_alone(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(error, os.strerror(error))
        sync(handle)

    monkeypatch.setattr(os, "fsync", sync_files_alone)


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_is_written_where_folders_cannot_be_synced(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_sync(error, monkeypatch)
    replace_file(tmp_path / "records", b"content")
    assert (tmp_path / "records").read_bytes() == b"content"


def test_a_disk_that_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_to_sync(errno.EIO, monkeypatch)
    with pytest.raises(OSError, match="Input/output error"):
        replace_file(tmp_path / "records", b"content")


def test_reading_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"content")
    tracemalloc.start()
    try:
        assert read_file(tmp_path / "small") == b"content"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
