"""A file store loses nothing, whatever happens to its files, its disk and its writers."""

import errno
import gzip
import json
import os
import random
import re
import runpy
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
from filelock import FileLock
from hypothesis import given
from support.checkout import ROOT
from support.processes import run_python
from support.records import MOMENT, context, measurement, record
from support.strategies import RECORDS

from dejavu_cache.errors import NewerFormatError, ReadOnlyStoreError, SettingsError, StoreError
from dejavu_cache.model.merge import part_digest
from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.stores import FileStore, file, make_absolute, open_store
from dejavu_cache.stores.file_layout import LARGEST_PACKED, Page
from dejavu_cache.stores.tiered import as_tiers
from dejavu_cache.system import safe_files


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "store")
    store.put(context(), [record(16), record(32)])
    return store


def only_file(store: FileStore) -> Path:
    (path,) = store.root.rglob("*.json")
    return path


def reopen(store: FileStore) -> FileStore:
    return FileStore(store.root)


class TestTheFile:
    def test_lies_where_a_person_looks(self, store: FileStore) -> None:
        assert only_file(store).relative_to(store.root).parts[:3] == (
            "pkg.kernels.add",
            "NVIDIA-H200",
            "triton-3.6.0",
        )

    def test_is_json_with_a_line_per_measurement(self, store: FileStore) -> None:
        text = only_file(store).read_text()
        assert RecordSet.model_validate_json(text).context == context()
        lines = [line for line in text.splitlines() if '"median"' in line]
        assert [json.loads(line.strip().rstrip(","))["median"] for line in lines] == [1.0, 1.0]

    def test_is_the_same_however_it_came_about(self, store: FileStore, tmp_path: Path) -> None:
        other = FileStore(tmp_path / "other")
        for m in (32, 16, 32):
            other.put(context(), [record(m)])
        assert only_file(other).read_bytes() == only_file(store).read_bytes()

    def test_a_new_measurement_changes_one_line(self, store: FileStore) -> None:
        before = only_file(store).read_text().splitlines()
        store.put(context(), [record(16, measurement(64, 2.0, MOMENT + timedelta(days=1)))])
        after = only_file(store).read_text().splitlines()
        assert sum(old != new for old, new in zip(before, after, strict=True)) == 1

    def test_is_not_touched_by_a_write_that_changes_nothing(self, store: FileStore) -> None:
        before = only_file(store).stat()
        store.put(context(), [record(16)])
        assert only_file(store).stat().st_mtime_ns == before.st_mtime_ns

    def test_is_read_whatever_its_layout(self, store: FileStore) -> None:
        path = only_file(store)
        path.write_text(json.dumps(json.loads(path.read_text()), indent=4))
        again = reopen(store)
        assert again.get(context(), record(16).scenario) is not None
        again.put(context(), [record(64)])
        assert len(list(reopen(store).records(context()))) == 3

    def test_may_have_a_record_twice(self, store: FileStore) -> None:
        """As after a merge of branches that kept both."""
        store.put(context(), [record(16, measurement(32, 2.0))])
        path = only_file(store)
        path.write_text(path.read_text().replace('"M": 32', '"M": 16'))
        again = reopen(store)
        assert list(again.scenario_texts(context())) == [record(16).scenario.text]
        found = again.get(context(), record(16).scenario)
        assert found is not None
        assert len(found.record.measurements) == 2

    def test_gives_one_record_without_being_cut(
        self, store: FileStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Find the first, the last, any and no record, in whatever order somebody put them."""
        store.put(context(), [record(m) for m in range(100, 1000)])
        path = only_file(store)
        head, *cuts = re.split(r",?\n\{", path.read_text().removesuffix("\n]}\n"))
        monkeypatch.setattr(Page, "parse", None)
        for order in (cuts, cuts[::-1], cuts[::2] + cuts[1::2]):
            text = "\n{".join([head, ",\n{".join(order)]) + "\n]}\n"
            path.write_bytes(text.encode().replace(b'"M": 500', b'"M": "\xff"'))  # costs no other
            for m in (0, 16, 32, 99, *range(100, 1000, 29), 999, 1000, 999_999):
                found = reopen(store).get(context(), record(m).scenario, fresh=True)
                is_there = m in (16, 32, *range(100, 1000))
                assert found == ((record(m), store.url, False) if is_there else None), m


@given(RECORDS)
def test_a_record_survives_its_page(written: Record) -> None:
    page = Page(context(), "here")
    page.merge([written])
    assert list(Page.parse(page.text.encode(), "here").records()) == [written]


DAMAGE = {
    "truncated": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "not JSON": lambda text: "hello",
    "not a record set": lambda text: "[1, 2]",
    "binary": lambda text: "\udc80\udcff",
    "another kernel's": lambda text: text.replace("pkg.kernels.add", "pkg.kernels.mul"),
}


def kept_copies(store: FileStore) -> list[Path]:
    return sorted(store.root.rglob("*.json.damaged-*"))


@pytest.mark.parametrize("read_first", [True, False])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_kept_whole(
    store: FileStore, damage: str, read_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = only_file(store)
    damaged = DAMAGE[damage](path.read_text()).encode(errors="surrogateescape")
    path.write_bytes(damaged)
    again = reopen(store)
    if read_first:
        assert again.get(context(), record(16).scenario) is None
        assert path.read_bytes() == damaged
    again.put(context(), [record(64)])
    assert [entry.scenario for entry in again.records(context())] == [record(64).scenario]
    (copy,) = kept_copies(again)
    assert copy.read_bytes() == damaged
    assert len(caplog.records) == 1 + read_first
    assert copy.name in caplog.text
    assert (again.problems(), again.damaged_copies()) == ({}, [copy])


RECORD_DAMAGE = {
    "a flipped byte": ('"median": 1.0', '"median": 1.O'),
    "NaN": ('"median": 1.0', '"median": NaN'),
    "a newer version's field": ('"median": 1.0', '"p99": 3.0, "median": 1.0'),
    "a newer version's failure": ('"median": 1.0', '"failure": {"kind": "late", "reason": "x"}'),
    "a scenario that is none": ('{"M": 500, "N": 64}', '{"M": [500], "N": 64}'),
    "a broken scenario": ('"M": 500,', '"M": 500'),
    "a lost brace": ('{"scenario": {"args": {"M": 500', '"scenario": {"args": {"M": 500'),
    "a lost opening": ('{"scenario": {"args": {"M": 500', '{"scene": {"args": {"M": 500'),
    "a merge conflict": ('{"scenario": {"args": {"M": 500', '<<<<<<< ours\n{"scenario": 7'),
}
COUNT = 510


def damage_record_500(store: FileStore, damage: str) -> Path:
    """Damage one of many records in a store's file, and return the file."""
    store.put(context(), [record(m) for m in range(COUNT)])
    path, (old, new) = only_file(store), RECORD_DAMAGE[damage]
    before, at, after = path.read_text().partition('{"scenario": {"args": {"M": 500,')
    after = at + after
    assert old in after
    path.write_text(before + after.replace(old, new, 1))
    return path


@pytest.mark.parametrize("damage", RECORD_DAMAGE)
def test_a_damaged_record_costs_no_other_and_is_not_lost(
    store: FileStore, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = damage_record_500(store, damage)
    damaged_lines = set(path.read_text().splitlines())
    lost = {50, 500} if damage in ("a lost brace", "a merge conflict") else {500}
    for read_all in (True, False):
        again = reopen(store)
        if read_all:
            assert len(list(again.records(context()))) >= COUNT - len(lost)
            assert again.scenario_texts(context())
        for m in set(range(495, 505)) - lost:
            found = again.get(context(), record(m).scenario)
            assert found is not None
            assert found.record == record(m)
        assert again.get(context(), record(500).scenario) is None
    assert again.problems()
    again.put(context(), [record(COUNT)])
    after = reopen(store)
    assert after.problems() or after.damaged_copies()
    again.put(context(), [record(m) for m in range(498, 502)])
    after = reopen(store)
    assert [entry.scenario for entry in after.records(context())].count(record(500).scenario) == 1
    texts = "".join(file.read_text() for file in [path, *kept_copies(after)])
    assert {line.rstrip(",") for line in damaged_lines} <= {
        line.rstrip(",") for line in texts.splitlines()
    }
    assert "damaged" in caplog.text


def test_a_file_that_was_cut_between_two_records_is_damaged(store: FileStore) -> None:
    path = only_file(store)
    text = path.read_text()
    path.write_text(text[: text.rindex("\n{")])
    again = reopen(store)
    assert list(again.records(context())) == [record(16)]
    assert again.problems() == {path: ["its end is missing"]}
    again.put(context(), [record(64)])
    for written in (again, reopen(store)):
        assert (written.problems(), written.damaged_copies()) == ({}, kept_copies(written))
        assert list(written.records(context())) == [record(16), record(64)]


def test_a_damaged_file_in_a_read_only_store_stays(
    store: FileStore, caplog: pytest.LogCaptureFixture
) -> None:
    path = only_file(store)
    path.write_text("hello")
    assert FileStore(store.root, read_only=True).get(context(), record(16).scenario) is None
    assert path.read_text() == "hello"
    assert "passed over" in caplog.text


def test_a_newer_format_is_refused_and_not_touched(store: FileStore) -> None:
    path = only_file(store)
    newer = path.read_text().replace('"format": 2', '"format": 99')
    path.write_text(newer)
    again = reopen(store)
    with pytest.raises(NewerFormatError, match=r"format 99.*upgrade dejavu-cache"):
        again.get(context(), record(16).scenario)
    with pytest.raises(NewerFormatError):
        again.put(context(), [record(64)])
    assert path.read_text() == newer


def test_a_read_only_store_is_not_written(store: FileStore) -> None:
    locked = open_store(f"{store.url}?read_only=1")
    assert locked.get(context(), record(16).scenario) is not None
    with pytest.raises(ReadOnlyStoreError):
        locked.put(context(), [record(64)])
    with pytest.raises(ReadOnlyStoreError):
        locked.delete(context())


def test_damage_of_one_file_hides_no_damage_of_another(store: FileStore) -> None:
    store.put(context(device="NVIDIA B200"), [record(16)])
    for path in store.root.rglob("*.json"):
        path.write_text(path.read_text()[:-40])
    assert len(store.problems()) == 2


def test_litter_of_killed_writers_can_be_swept(store: FileStore) -> None:
    litter = only_file(store).with_name("x.json.tmp-1-0123456789abcdef")
    litter.write_text("half")
    os.utime(litter, (0, 0))
    assert store.delete_leftovers() == 1
    assert not litter.exists()
    assert only_file(store).exists()


def test_records_are_parsed_one_by_one_and_are_those_of_the_call(store: FileStore) -> None:
    amount = 2000
    store.put(context(), [record(m) for m in range(amount)])
    tracemalloc.start()
    try:
        records = store.records(context())
        store.delete(context(), [record(0).scenario])
        assert sum(1 for _ in records) == amount
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2500 * amount, "parsed, a record takes some 3500 bytes"


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


WRITES: dict[str, Callable[[FileStore], object]] = {
    "put": lambda store: store.put(context(), [record(64)]),
    "delete": lambda store: store.delete(context(), [record(16).scenario]),
    "recall": lambda store: store.recall(
        context(), {record(16).scenario: [part_digest(measurement())]}
    ),
}


@pytest.mark.parametrize("write", WRITES)
def test_of_a_write_that_failed_nothing_is_read(
    store: FileStore, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of one to a size that is not read again: the file would count as damaged."""
    with monkeypatch.context() as small:
        small.setattr(safe_files, "MAX_BYTES", 100)
        with pytest.raises(StoreError, match="File too large; delete records"):
            WRITES[write](store)
    for opening in (store, reopen(store)):
        assert list(opening.records(context())) == [record(16), record(32)]
    WRITES[write](store)
    assert list(store.records(context())) != [record(16), record(32)]


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_file_system_without_locks_is_still_written(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(code, os.strerror(code))))
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
    assert "\\u001b[2J\\u202e.json is damaged: " in caplog.messages[-1]


def test_a_line_without_end_is_passed_over_in_lists(store: FileStore) -> None:
    with store.path(context()).with_name("endless.json").open("wb") as file:
        file.truncate(1 << 40)
    assert [found.text for found in store.contexts()] == [context().text]


def test_a_writer_that_is_stuck_is_waited_for_once(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    hold = file.hold_lock

    def hold_and_note(path: Path, wait: float) -> AbstractContextManager[None]:
        waits.append(wait)
        return hold(path, wait)

    monkeypatch.setattr(file, "hold_lock", hold_and_note)
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
    path = store.path(context())

    def late(of: Path, root: Path) -> bytes:
        path.unlink(missing_ok=True)
        return safe_files.read_file(of, root)

    monkeypatch.setattr(file, "read_file", late)
    assert list(FileStore(store.root).records(context())) == []
    store.put(context(), [record(64)])
    monkeypatch.undo()
    assert len(list(FileStore(store.root).records(context()))) == 1


def test_a_packed_file_is_read_and_damage_passed_over(store: FileStore, tmp_path: Path) -> None:
    (package := tmp_path / "package").mkdir()
    pack_records = runpy.run_path(str(ROOT / "tools/ship_attention_records.py"))["pack_records"]
    pack_records(store.root, package)
    (path,) = package.rglob("*.json.gz")
    unnamed = measurement().model_copy(update={"by": ""})  # a package names nobody
    records = [record(16, unnamed), record(32, unnamed)]
    texts = FileStore(package, read_only=True).scenario_texts(context())
    assert [*texts] == [*store.scenario_texts(context())]
    content, draw = path.read_bytes(), random.Random(1)
    FileStore(package).put(context(), [record(64)])
    assert [*FileStore(package).records(context())] == [*records, record(64)]
    path.write_bytes(content)  # beside the file that stands for it
    assert FileStore(package).delete(context()) == 3
    assert [*FileStore(package).contexts()] == [], "a packed file came back"
    assert len(FileStore(package).damaged_copies()) == 1
    places = range(0, len(content), 5)
    changed = [content[:at] + draw.randbytes(1) + content[at + 1 :] for at in places]
    names = [one.scenario.digest.encode() for one in records]
    changed.append(re.sub(b"|".join(names), lambda name: names[name[0] == names[0]], content))
    for damaged in (content, *changed, *(content[:at] for at in places)):
        path.write_bytes(damaged)
        packed = FileStore(package, read_only=True)
        found = [packed.get(context(), one.scenario) for one in records]
        assert all(one is None or one.record == r for one, r in zip(found, records, strict=True))
        assert damaged != content or None not in found
        assert [*packed.records(context())] == records or packed.problems()
    last = content.index(names[1])
    path.write_bytes(content[: last + 60] + bytes(9) + content[last + 69 :])
    assert [*FileStore(package).records(context())] == records[:1], "the other member is whole"
    path.write_bytes(content[: last + 25] + gzip.compress(bytes(LARGEST_PACKED))[10:])
    assert FileStore(package).get(context(), records[1].scenario) is None
    assert "64.0 MiB" in str(FileStore(package).problems())
