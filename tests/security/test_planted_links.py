"""Nobody's files are hurt, and nobody waits, for what a stranger put into a shared folder."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from dejavu_client.http.sender import Spool
from support.processes import dejavu

from dejavu_cache.errors import StoreError
from dejavu_cache.model.record import RecordSet
from dejavu_cache.model.scenario import canonical_json
from dejavu_cache.runtime.run_files import read_events
from dejavu_cache.stores import FileStore
from dejavu_cache.sweep.journal import Journal
from dejavu_cache.system.safe_files import open_to_append
from dejavu_cache.testing import _context, _record

PRECIOUS = "precious"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Make a folder of the victim's own, outside the shared one, with one file."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "file").write_text(PRECIOUS)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "shared")


def plant(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def state(folder: Path) -> dict[Path, tuple[int, int, int]]:
    stats = {path: path.stat() for path in folder.rglob("*")}
    return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


def assert_unhurt(victim: Path) -> None:
    assert [path.name for path in victim.iterdir()] == ["file"]
    assert (victim / "file").read_text() == PRECIOUS


def try_put(store: FileStore) -> None:
    """Put a record into a store, which may refuse it."""
    with suppress(StoreError):
        store.put(_context(), [_record(1)])


def test_a_link_under_the_name_of_a_lock(store: FileStore, victim: Path) -> None:
    plant(store.root / ".locks" / f"{_context().digest}.lock", victim / "file")
    try_put(store)
    assert not store.path(_context()).exists()
    assert_unhurt(victim)


def test_a_temporary_file_that_exists_is_not_written(
    store: FileStore, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is drawn, and cannot be known beforehand."""
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    path = store.path(_context())
    plant(path.with_name(f"{path.name}.tmp-{os.getpid()}-{'0' * 16}"), victim / "file")
    with pytest.raises(StoreError, match="exists"):
        store.put(_context(), [_record(1)])
    assert_unhurt(victim)


def test_a_link_as_the_file_of_records_is_not_read_and_stays(
    store: FileStore, victim: Path
) -> None:
    path = store.path(_context())
    plant(path, victim / "file")
    with pytest.raises(StoreError, match="links are not followed"):
        store.get(_context(), _record(1).scenario)
    try_put(store)
    assert path.is_symlink()
    assert_unhurt(victim)


@pytest.mark.parametrize("depth", [0, 1, 2, ".locks"])
def test_a_link_as_a_folder(store: FileStore, victim: Path, depth: int | str) -> None:
    """Neither records nor locks are written through it, and none are read."""
    context = _context()
    elsewhere = FileStore(victim)
    folder = store.path(context).parent
    folders = [folder.parents[1], folder.parents[0], folder]
    path = store.root / depth if isinstance(depth, str) else folders[depth]
    elsewhere.put(context, [_record(2)])
    inside = victim / path.relative_to(store.root)
    inside.mkdir(parents=True, exist_ok=True)
    before = state(victim)
    plant(path, inside)
    with pytest.raises(StoreError, match="links are not followed"):
        store.put(context, [_record(1)])
    if depth != ".locks":
        with pytest.raises(StoreError, match="links are not followed"):
            store.get(context, _record(2).scenario)
        assert list(store.contexts(context.kernel.name)) == []
    assert state(victim) == before


def test_a_pipe_or_an_endless_device_holds_nobody(store: FileStore, victim: Path) -> None:
    path = store.path(_context())
    path.parent.mkdir(parents=True)
    for make in (os.mkfifo, lambda planted: Path(planted).symlink_to("/dev/zero")):
        make(path)
        with pytest.raises(StoreError, match="cannot be read"):
            store.get(_context(), _record(1).scenario)
        assert list(store.contexts()) == []
        path.unlink()


def test_sweeping_deletes_nothing_behind_a_link(store: FileStore, victim: Path) -> None:
    for name in ("a.lease", "b.tmp-1-0123456789abcdef"):
        (victim / name).touch()
        os.utime(victim / name, (0, 0))
    before = state(victim)
    plant(store.root / ".locks", victim)
    plant(store.root / "kernel", victim)
    (store.root / "folder.tmp-1-0123456789abcdef").mkdir()
    assert store.delete_leftovers(older_than=-1.0) == 0
    assert state(victim) == before


def spool_record(folder: Path) -> None:
    record_set = RecordSet(context=_context(), records=(_record(1),))
    Spool("https://server", folder).write(canonical_json(record_set).encode())


def write_journal(folder: Path) -> None:
    Journal(FileStore(folder / "store"), folder / "journals").put(_context(), [_record(1)])


@pytest.mark.parametrize("write", [spool_record, write_journal])
def test_links_under_the_names_of_files_that_will_be_written(
    write: Callable[[Path], None], tmp_path: Path, victim: Path
) -> None:
    """A dry run shows the names; where they can be foretold, links are planted there."""
    write(tmp_path / "dry")
    for path in (tmp_path / "dry").rglob("*"):
        if path.is_file() and "store" not in path.parts:
            planted = tmp_path / "wet" / path.relative_to(tmp_path / "dry")
            plant(planted, victim / "file")
            if not planted.with_suffix(".tmp").is_symlink():
                plant(planted.with_suffix(".tmp"), victim / "file")
    write(tmp_path / "wet")
    assert_unhurt(victim)


def test_targets_that_a_user_names_are_not_written_through_a_link(
    tmp_path: Path, victim: Path
) -> None:
    plant(tmp_path / "export.jsonl", victim / "file")
    FileStore(tmp_path / "shared").put(_context(), [_record(1)])
    ran = dejavu("export", tmp_path / "export.jsonl", "--store", tmp_path / "shared")
    assert ran.returncode == 0, ran.stderr
    assert not (tmp_path / "export.jsonl").is_symlink()
    assert_unhurt(victim)


def test_links_are_not_appended_to(tmp_path: Path, victim: Path) -> None:
    plant(tmp_path / "link", victim / "file")
    os.link(victim / "file", tmp_path / "hard")
    for name, said in (("link", "symbolic"), ("hard", "somebody else")):
        with pytest.raises(OSError, match=said):
            open_to_append(tmp_path / name)
    assert_unhurt(victim)


def test_activity_reports_of_strangers_are_passed_over(tmp_path: Path, victim: Path) -> None:
    """The folder of `verify` may be written by everybody, since programs change their user."""
    os.mkfifo(tmp_path / "1.jsonl")
    plant(tmp_path / "2.jsonl", victim / "file")
    (tmp_path / "3.jsonl").write_bytes(b'{"what": "hit", "about": "k"}\n\xff\n[[[[\n')
    assert [event.about for event in read_events(tmp_path)] == ["k"]
