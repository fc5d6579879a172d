"""A file store loses nothing, whatever happens to its files, its disk and its writers."""

from __future__ import annotations

import json
import os
import tracemalloc
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from support.records import MOMENT, context, measurement, record
from support.strategies import RECORDS

from dejavu_cache.errors import NewerFormatError, ReadOnlyStoreError
from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.stores import FileStore, open_store
from dejavu_cache.stores.file_layout import Page


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

    def test_gives_one_record_without_being_cut(
        self, store: FileStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Find the first, the last, any and no record, in whatever order somebody put them."""
        store.put(context(), [record(m) for m in range(100, 150)])
        path = only_file(store)
        head, *cuts = path.read_text().removesuffix("\n]}\n").split("\n{")
        cuts = [cut.removesuffix(",") for cut in reversed(cuts)]
        path.write_text("\n{".join([head, ",\n{".join(cuts)]) + "\n]}\n")
        monkeypatch.setattr(Page, "parse", None)
        for m in (16, 32, *range(100, 150)):
            stored = reopen(store).get(context(), record(m).scenario)
            assert stored is not None
            assert stored.record == record(m)
        for m in (0, 99, 1000, 999_999):
            assert reopen(store).get(context(), record(m).scenario, fresh=True) is None


@given(RECORDS)
def test_a_record_survives_its_page(written: Record) -> None:
    page = Page(context(), "here")
    page.merge([written])
    assert list(Page.parse(page.text, "here").records()) == [written]


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
    "negative": ('"median": 1.0', '"median": -1.0'),
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
