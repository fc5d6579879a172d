"""A file store says what is wrong with its folder, and is named by any path."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes import run_python
from support.records import context, record

from dejavu_cache.errors import SettingsError, StoreError
from dejavu_cache.stores import FileStore, make_absolute, open_store
from dejavu_cache.stores.tiered import as_tiers
from dejavu_cache.system import safe_files


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "store")
    store.put(context(), [record(16), record(32)])
    return store


def test_a_missing_folder_is_an_empty_store(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "nowhere")
    assert store.get(context(), record(16).scenario) is None
    assert list(store.contexts()) == []
    assert not store.root.exists()


def test_a_file_in_the_folders_place_is_said(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        FileStore(tmp_path / "store").put(context(), [record(16)])


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


def test_a_folder_without_rights_is_said(store: FileStore) -> None:
    code = """
        import os, sys
        from support.records import context, record
        from dejavu_cache.errors import SettingsError, StoreError
        from dejavu_cache.stores import FileStore
        if os.getuid() == 0:
            os.setuid(65534)
        store = FileStore(sys.argv[1])
        assert store.get(context(), record(16).scenario) is not None
        try:
            store.put(context(), [record(64)])
        except StoreError as error:
            print(error)
    """
    # Outside pytest's folder, which other users cannot enter.
    with tempfile.TemporaryDirectory() as own:
        root = Path(own) / "store"
        shutil.copytree(store.root, root)
        folders = [Path(own), root, *(path for path in root.rglob("*") if path.is_dir())]
        for path in folders:
            path.chmod(0o555)
        try:
            assert "cannot be written: Permission denied" in run_python(code, str(root)).stdout
        finally:
            for path in folders:
                path.chmod(0o755)


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


@pytest.mark.parametrize("read", [open_store, make_absolute])
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
