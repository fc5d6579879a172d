"""A folder's files may be cut, replaced, planted or kept locked by others at any moment."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from filelock import FileLock
from support.records import MOMENT, context, record

from dejavu_cache.errors import StoreError
from dejavu_cache.model.decision_tree import Leaf, Regret, Tree
from dejavu_cache.model.scenario import Config
from dejavu_cache.stores import FileStore, file


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "store")
    store.put(context(), [record(16), record(32)])
    return store


def lock_of(store: FileStore) -> FileLock:
    return FileLock(store.root / ".locks" / f"{context().digest}.lock")


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
    hold = file.hold_lock

    def watched(path: Path, wait: float) -> AbstractContextManager[None]:
        waits.append(wait)
        return hold(path, wait)

    monkeypatch.setattr(file, "hold_lock", watched)
    monkeypatch.setattr(file, "_WAIT", 0.3)
    with lock_of(store):
        for m in (64, 128):
            with pytest.raises(StoreError, match="locked by another writer"):
                store.put(context(), [record(m)])
    for m in (64, 128):
        store.put(context(), [record(m)])
    assert waits == [0.3, 0.1, 0.1, 0.3]
    assert len(list(FileStore(store.root).records(context()))) == 4


def test_an_editor_may_drop_the_last_line_end(store: FileStore) -> None:
    path = store.path(context())
    path.write_text(path.read_text().rstrip("\n").replace('"median"', '"medixn"', 1))
    assert len(list(FileStore(store.root).records(context()))) == 1
    (problems,) = FileStore(store.root).problems().values()
    assert len(problems) == 1


def test_a_file_that_another_process_deletes_meanwhile_is_no_file(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = store.path(context()), file.read_text

    def late(of: Path, root: Path) -> str:
        path.unlink(missing_ok=True)
        return read(of, root)

    monkeypatch.setattr(file, "read_text", late)
    assert list(FileStore(store.root).records(context())) == []
    store.put(context(), [record(64)])
    monkeypatch.undo()
    assert len(list(FileStore(store.root).records(context()))) == 1
