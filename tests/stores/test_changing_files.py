"""A folder's files may be cut, replaced, planted or kept locked by others at any moment."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st
from support.processes import run_python
from support.records import MOMENT, context, record

from dejavu_cache.errors import DamagedRecordsError, StoreError
from dejavu_cache.model.decision_tree import Leaf, Regret, Tree
from dejavu_cache.model.scenario import Config
from dejavu_cache.stores import FileStore, folder
from dejavu_cache.stores.file_layout import FileBlocks
from dejavu_cache.stores.folder import Folder

LOOK_UP = """
import sys, time, warnings
from support.records import context, record
from dejavu_cache.stores import FileStore

warnings.simplefilter("ignore")
until = time.monotonic() + 3
while time.monotonic() < until:
    FileStore(sys.argv[1], read_only=True).get(context(), record(17).scenario)
print("ended")
"""


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "store")
    store.put(context(), [record(16), record(32)])
    return store


def lock_of(store: FileStore) -> FileLock:
    return FileLock(store.root / ".locks" / f"{context().digest}.lock")


PARTS = st.lists(
    st.one_of(
        st.sampled_from([b"\n{", b"\n", b"{", b",\n"]),
        st.builds(bytes.__mul__, st.just(b"x"), st.integers(0, 20_000)),
    ),
    max_size=12,
)


@given(PARTS, st.sampled_from([b"\n{", b",\n"]), st.data())
def test_a_search_finds_what_a_search_of_the_bytes_finds(
    parts: list[bytes], text: bytes, data: st.DataObject
) -> None:
    content = b"".join(parts)
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, len(content)))
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        blocks = FileBlocks(file.fileno())
        assert blocks.find(text, start, stop) == content.find(text, start, stop)


def test_a_file_that_becomes_shorter_ends_its_search() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * 100_000)
        file.flush()
        blocks = FileBlocks(file.fileno())
        file.truncate(10)
        with pytest.raises(ValueError, match="shorter"):
            blocks.find(b"\n{", 0, blocks.length)


def test_a_search_reads_no_more_than_its_bound() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(1 << 40)
        blocks = FileBlocks(file.fileno())
        with pytest.raises(ValueError, match="too much"):
            blocks.find(b"\n{", 0, blocks.length)


def test_a_program_outlives_a_file_that_is_rewritten_in_place(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    store.put(context(), [record(m) for m in range(1, 2001)])
    path = store.path(context())
    backup = shutil.copy(path, tmp_path)
    is_over = threading.Event()

    def rewrite() -> None:
        while not is_over.is_set():
            shutil.copyfile(backup, path)

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        assert run_python(LOOK_UP, str(store.root)).stdout == "ended\n"
    finally:
        is_over.set()
        writer.join()


@pytest.mark.parametrize("length", [1 << 26, 1 << 40])
def test_a_sparse_file_counts_as_damaged(store: FileStore, length: int) -> None:
    """It has a valid begin and end, and takes no room on the disk."""
    path = store.path(context())
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(length)
        file.seek(length - 5)
        file.write(whole[-5:])
    reader = FileStore(store.root)
    assert reader.get(context(), record(64).scenario) is None
    assert [aside.stat().st_size for aside in reader.damaged_files()] == [length]


def test_a_folder_that_goes_while_trees_are_listed_hides_no_other_tree(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(params={"BLOCK": 16})
    regret = Regret(mean=0.0, max=0.0, scenarios=10, folds=10)
    root = Leaf(ranking=(0,))
    store.put_tree(
        Tree(context=context(), configs=(config,), root=root, bound=0.05, regret=regret, at=MOMENT)
    )
    (store.root / "gone").mkdir()
    scandir = os.scandir

    def scan(path: str) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        if os.path.basename(path) == "gone":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert len(list(store.trees())) == 1


def test_a_warning_moves_no_cursor(store: FileStore, caplog: pytest.LogCaptureFixture) -> None:
    """A file's name is another user's choice in a shared folder."""
    (store.root / "\x1b[2J\u202e.json").write_text("{")
    list(store.contexts())
    assert "\\u001b[2J\\u202e.json is passed over" in caplog.messages[-1]


def test_a_line_without_end_is_passed_over_in_lists(store: FileStore) -> None:
    with store.path(context()).with_name("endless.json").open("wb") as file:
        file.truncate(1 << 40)
    assert [found.text for found in store.contexts()] == [context().text]


def test_a_writer_that_is_stuck_is_waited_for_once(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    hold = folder.hold_lock

    def watched(path: Path, wait: float) -> AbstractContextManager[None]:
        waits.append(wait)
        return hold(path, wait)

    monkeypatch.setattr(folder, "hold_lock", watched)
    monkeypatch.setattr(folder, "_WAIT", 0.3)
    with lock_of(store):
        for m in (64, 128):
            with pytest.raises(StoreError, match="locked by another writer"):
                store.put(context(), [record(m)])
    for m in (64, 128):
        store.put(context(), [record(m)])
    assert waits == [0.3, 0.1, 0.1, 0.3]
    assert len(list(FileStore(store.root).records(context()))) == 4


def test_a_file_that_was_mended_meanwhile_stays(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process reads a damaged file; another one has replaced it before the first acts."""
    reader = FileStore(store.root)

    def late(*_: object) -> None:
        monkeypatch.undo()
        raise DamagedRecordsError("it was damaged")

    monkeypatch.setattr(reader, "_load", late)
    assert list(reader.records(context())) == []
    assert reader.damaged_files() == []
    assert FileStore(store.root).get(context(), record(16).scenario) is not None


def test_a_damaged_file_that_somebody_writes_is_left_to_them(
    store: FileStore, caplog: pytest.LogCaptureFixture
) -> None:
    path = store.path(context())
    path.write_text("{")
    with lock_of(store):
        assert FileStore(store.root).get(context(), record(16).scenario) is None
        assert path.exists()
    assert "another process has its lock" in caplog.text
    assert FileStore(store.root).get(context(), record(16).scenario) is None
    assert not path.exists()


def test_an_editor_may_drop_the_last_line_end(store: FileStore) -> None:
    path = store.path(context())
    path.write_text(path.read_text().rstrip("\n").replace('"median"', '"medixn"', 1))
    assert len(list(FileStore(store.root).records(context()))) == 1
    (damages,) = FileStore(store.root).damaged_records().values()
    assert len(damages) == 1


def test_a_file_that_another_process_deletes_meanwhile_is_no_file(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = store.path(context()), Folder.read

    def late(folder: Folder, of: Path) -> str:
        path.unlink(missing_ok=True)
        return read(folder, of)

    monkeypatch.setattr(Folder, "read", late)
    assert list(FileStore(store.root).records(context())) == []
    store.put(context(), [record(64)])
    monkeypatch.undo()
    assert len(list(FileStore(store.root).records(context()))) == 1
