"""A file store says what is wrong with its folder, whatever others do to its files meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from filelock import FileLock
from support.processes import run_python
from support.records import context, record

from dejavu_cache.errors import SettingsError, StoreError
from dejavu_cache.stores import FileStore, file, make_absolute, open_store
from dejavu_cache.stores.tiered import as_tiers
from dejavu_cache.system import safe_files


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "store")
    store.put(context(), [record(16), record(32)])
    return store


def test_a_full_disk_is_said_and_what_was_there_stays(store: FileStore) -> None:
    """Limit the file size, so that the kernel refuses the write midway as a full disk does."""
    code = """
        import resource, signal, sys
        from support.records import context, record
        from dejavu_cache.errors import SettingsError, StoreError
        from dejavu_cache.stores import FileStore
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            FileStore(sys.argv[1]).put(context(), [record(m) for m in range(1, 100)])
        except StoreError as error:
            print(error)
    """
    before = store.path(context()).read_bytes()
    assert "cannot be written" in run_python(code, str(store.root)).stdout
    assert store.path(context()).read_bytes() == before
    assert not list(store.root.rglob("*.tmp-*"))


@pytest.mark.skipif(os.name != "posix", reason="uses a user without rights")
def test_a_file_never_grows_to_a_size_that_is_not_read_again(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would count as damaged, and be set aside with all of its records."""
    monkeypatch.setattr(safe_files, "MAX_BYTES", 10_000)
    with pytest.raises(StoreError, match="File too large; delete records"):
        store.put(context(), [record(m) for m in range(100)])
    assert list(FileStore(store.root).records(context())) == [record(16), record(32)]


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_file_system_without_locks_is_still_written(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", no_locks)
    store = FileStore(tmp_path / "store")
    for m in (16, 64):
        store.put(context(), [record(m)])
    assert len(list(FileStore(store.root).records(context()))) == 2
    with store.lease(context(), record(64).scenario, wait=1.0) as granted:
        assert granted
        with store.lease(context(), record(64).scenario, wait=0.0) as again:
            assert not again


@pytest.mark.parametrize("read", [open_store, make_absolute, FileStore])
def test_a_home_that_is_not_known_is_said(read: Callable[[str], object]) -> None:
    with pytest.raises(SettingsError, match="home folder of this user is not known: write"):
        read("~nobody-of-this-name/records")


def test_a_path_may_have_any_name(tmp_path: Path) -> None:
    for name in ("a,b", "ab:c", os.fsdecode(b"caf\xe9")):
        as_tiers(tmp_path / name).put(context(), [record(1)])
        assert len(list(FileStore(tmp_path / name).records(context()))) == 1


@pytest.mark.parametrize(
    "url",
    [
        "file://", "file:///a#b", "file:///a%00b", "file:/a", "https:/host", "memory:",
        "http://[::1", "/a?read_only=1", "file:///a?read_only=", "file://host/a",
    ],
)  # fmt: skip
def test_a_mistyped_url_is_no_folder(url: str) -> None:
    with pytest.raises(SettingsError):
        open_store(url)


@pytest.mark.parametrize("name", ["a b", "ü", "50%", "%41", "a#b", "a?b=1", "a;b", "a\nb", "~"])
def test_any_folder_is_named_by_its_path_and_by_its_url(name: str, tmp_path: Path) -> None:
    by_path = open_store(str(tmp_path / name))
    assert isinstance(by_path, FileStore)
    by_url = open_store(by_path.url)
    assert isinstance(by_url, FileStore)
    assert by_path.root == by_url.root == tmp_path / name


def test_a_folder_that_nobody_may_look_into_opens_and_fails_as_a_store(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / ("long" * 70)))
    with pytest.raises(StoreError, match="too long"):
        store.put(context(), [record()])


def lock_of(store: FileStore) -> FileLock:
    return FileLock(store.root / ".locks" / f"{context().digest}.lock")


def test_a_folder_that_goes_while_files_are_listed_hides_no_other_file(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(context(), [record()])
    (store.root / "gone").mkdir()
    scandir = os.scandir

    def scan(path: str) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        if os.path.basename(path) == "gone":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert list(store.contexts()) == [context()]


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
