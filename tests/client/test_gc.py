"""`gc` deletes records of earlier code, and nothing that may be of use."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.command_line import run_cli
from support.records import MOMENT, context, measurement, record

from dejavu_cache.model.record import Record, RecordedLaunch
from dejavu_cache.model.scenario import Scenario, now
from dejavu_cache.stores import FileStore


def test_gc_deletes_older_sources_and_can_say_so_first(store: FileStore) -> None:
    newer = context(source="f" * 32)
    store.put(newer, [record(16, measurement(64, 1.0, MOMENT + timedelta(days=1)))])
    assert "2 records would be deleted: repeat" in run_cli("gc", "--store", store.root).stdout
    assert len(list(store.contexts())) == 2
    run_cli("gc", "--yes", "--store", store.root)
    assert list(FileStore(store.root).contexts()) == [newer]
    run_cli("gc", "--days", "9999999999", "--yes", "--store", store.root)
    assert list(FileStore(store.root).contexts()) == [newer]
    run_cli("gc", "--days", "1", "--yes", "--store", store.root)
    assert list(FileStore(store.root).contexts()) == []


def test_gc_deletes_all_records_of_a_kernel_if_it_is_told_to(store: FileStore) -> None:
    other = context(kernel="pkg.other")
    store.put(other, [record(16)])
    assert run_cli("gc", "add", "--all", "--store", store.root).returncode == 0
    assert len(list(FileStore(store.root).contexts())) == 2
    out = run_cli("gc", "add", "--all", "--yes", "--store", store.root)
    assert "2 records deleted" in out.stdout
    assert list(FileStore(store.root).contexts()) == [other]
    assert run_cli("gc", "ad", "--all", "--yes", "--store", store.root).returncode == 1


def test_gc_keeps_recorded_launches_as_long_as_something_of_their_kernel(store: FileStore) -> None:
    """Nothing dates them; with heuristics, a kernel's launches have another hash than its tunes."""
    launches = Record(scenario=Scenario(), launches=(RecordedLaunch(wheel="w"),))
    old, current = (context(source=digit * 32, method="launch") for digit in "ef")
    untuned = [context(kernel="pkg.untuned", source=digit * 32, method="launch") for digit in "ef"]
    for recorded in (old, current, *untuned):
        store.put(recorded, [launches])
    newer = context(source="d" * 32)
    store.put(newer, [record(16, measurement(64, 1.0, MOMENT + timedelta(days=1)))])
    store.put(context(source="e" * 32), [record(16, measurement(64, 1.0))])
    assert run_cli("gc", "--yes", "--store", store.root).returncode == 0
    assert set(FileStore(store.root).contexts()) == {newer, current, *untuned}
    assert run_cli("gc", "--days", "1", "--yes", "--store", store.root).returncode == 0
    assert set(FileStore(store.root).contexts()) == {*untuned}


def test_gc_keeps_what_is_tuned_while_it_works(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of a branch tunes code that is not the newest when `gc` looks at it."""
    tuned_now, newer = context(source="e" * 32), context(source="f" * 32)
    store.put(tuned_now, [record(16)])
    store.put(newer, [record(16, measurement(64, 1.0, MOMENT + timedelta(days=1)))])
    delete = FileStore.delete

    def tune_before(target: FileStore, *arguments: Any) -> int:
        FileStore(store.root).put(tuned_now, [record(16, measurement(32, 0.5, now()))])
        return delete(target, *arguments)

    monkeypatch.setattr(FileStore, "delete", tune_before)
    out = run_cli("gc", "--yes", "--store", store.root)
    assert "(source eeeeeeee) on NVIDIA H200: kept, since" in out.stdout
    assert out.stdout.endswith("2 records deleted, 0 left-over files removed\n")
    assert set(FileStore(store.root).contexts()) == {tuned_now, newer}


def test_gc_removes_leftovers_of_every_folder_that_it_may_write(
    store: FileStore, tmp_path: Path
) -> None:
    """Also where the store is one of several, as in most settings of a team."""
    other, fixed = FileStore(tmp_path / "other"), FileStore(tmp_path / "fixed")
    leftovers = []
    for folder in (store, other, fixed):
        folder.put(context(), [record(16)])
        leftovers.append(folder.root / f"x.json.tmp-1-{'0' * 16}")
        leftovers[-1].touch()
        os.utime(leftovers[-1], (0, 0))
    urls = f"{store.root},{other.root},file://{fixed.root}?read_only=1"
    assert "2 left-over files removed" in run_cli("gc", "--yes", "--store", urls).stdout
    assert [path.exists() for path in leftovers] == [False, False, True]
