"""Names of kernels on the command line, and a kernel that moves and keeps its records."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from dejavu_client.cli.commands.rename import KernelRename, apply_rename
from dejavu_client.cli.errors import NothingFoundError
from dejavu_client.cli.queries import matching_kernels, shorten_kernels
from support.records import MOMENT, config, context, measurement, record

from dejavu_cache.errors import SettingsError, StoreError
from dejavu_cache.model.record import Pin, Record, Winner
from dejavu_cache.model.scenario import Context
from dejavu_cache.stores import FileStore, MemoryStore

OLD, NEW = context(kernel="pkg.old.add"), context(kernel="pkg.new.add")


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "store")
    winner = Winner(config=config(32), at=MOMENT)
    pin = Pin(config=config(64), at=MOMENT, by="ann@host")
    store.put(OLD, [record(16, measurement(32), measurement(64, 2.0), winner=winner, pin=pin)])
    store.put(OLD, [record(32, measurement(32))])
    store.put(context(kernel="pkg.older.add"), [record(64, measurement(32))])
    return store


@pytest.mark.parametrize(("old", "new"), [("pkg.old.", "pkg.old.inner."), ("pkg.*", "app.*")])
def test_a_prefix_moves_the_kernels_of_a_module_once(store: FileStore, old: str, new: str) -> None:
    rename = KernelRename.parse(old, new)
    assert list(apply_rename(store, rename))
    names = {entry.kernel.name for entry in store.contexts()}
    assert not list(apply_rename(store, rename))
    assert {entry.kernel.name for entry in store.contexts()} == names
    assert ("pkg.old.inner.add" if "inner" in new else "app.old.add") in names


def test_records_under_both_names_are_merged(store: FileStore) -> None:
    store.put(NEW, [record(16, measurement(128))])
    list(apply_rename(store, KernelRename.parse("pkg.old.add", "pkg.new.add")))
    stored = store.get(NEW, record(16).scenario)
    assert stored is not None
    assert set(stored.record.by_config) == {config(32), config(64), config(128)}


def test_an_interrupted_rename_is_completed(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(store.records(OLD))
    rename = KernelRename.parse("pkg.old.add", "pkg.new.add")
    with monkeypatch.context() as patched:
        patched.setattr(FileStore, "delete", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            list(apply_rename(store, rename))
    assert list(store.records(OLD)) == before
    (said,) = apply_rename(store, rename)
    assert said.endswith("H200 (2 records) renamed to pkg.new.add, which has records already")
    assert list(FileStore(store.root).records(NEW)) == before
    assert list(store.contexts("pkg.old.add")) == []
    assert len(list(store.contexts("pkg.older.add"))) == 1


def test_nothing_is_removed_that_was_not_written() -> None:
    class Forgetful(MemoryStore):
        def put(self, context: Context, records: Iterable[Record], *, now: bool = False) -> None:
            if not now:
                super().put(context, records)

    store = Forgetful()
    store.put(OLD, [record(16)])
    with pytest.raises(StoreError, match="stay under their old name"):
        list(apply_rename(store, KernelRename.parse("pkg.old.add", "pkg.new.add")))
    assert len(list(store.records(OLD))) == 1


@pytest.mark.parametrize(("old", "new"), [("a.b", "a.b"), ("a.", "b"), ("", "b"), ("a.b", "")])
def test_names_that_cannot_be_renamed_are_refused(old: str, new: str) -> None:
    with pytest.raises(SettingsError):
        KernelRename.parse(old, new)


@pytest.mark.parametrize("name", ["pkg.\n", "pkg.\udcff", "pkg." + "x" * 500])
def test_a_name_that_no_kernel_can_have_is_refused(name: str, store: FileStore) -> None:
    before = list(store.records(OLD))
    with pytest.raises(SettingsError, match="no kernel has a name like"):
        list(apply_rename(store, KernelRename.parse("pkg.old.add", name)))
    assert list(store.records(OLD)) == before


@pytest.mark.parametrize(
    ("pattern", "kernels"),
    [
        ("add", ["pkg.kernels.add"]),
        ("pkg.kernels.add", ["pkg.kernels.add"]),
        ("*add*", ["other.add_one", "pkg.kernels.add"]),
        ("kernels.*", ["pkg.kernels.add"]),
    ],
)
def test_a_kernel_is_named_by_its_end_or_a_glob(pattern: str, kernels: list[str]) -> None:
    assert matching_kernels(["pkg.kernels.add", "other.add_one"], pattern, "here") == kernels


@pytest.mark.parametrize("typo", ["ad", "kernels.ad", "pkg.kernels.addd", "Add"])
def test_a_similar_kernel_is_suggested(typo: str) -> None:
    with pytest.raises(NothingFoundError, match=r"did you mean pkg\.kernels\.add"):
        matching_kernels(["pkg.kernels.add", "pkg.kernels.mul"], typo, "here")


def test_a_kernel_is_shortened_to_an_end_that_names_it_alone() -> None:
    names = ["pkg.a.add", "pkg.b.add", "pkg.mul", "add", "", "pkg.a.add"]
    short = shorten_kernels(names)
    assert short == ["a.add", "b.add", "mul", "add", "", "a.add"]
    for name, end in zip(names[:4], short[:4], strict=True):
        assert matching_kernels(names[:4], end, "here") == [name]
