"""A frozen snapshot is named by its content, never changes under a job, and is missed loudly."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from support.addition import CONFIGS, add_one
from support.kernels import launch
from support.processes import dejavu
from support.records import MOMENT, config, context, measurement, record

from dejavu_cache import cached_autotune, open_store
from dejavu_cache.errors import (
    NewerFormatError,
    ReadOnlyStoreError,
    ScenarioNotTuned,
    SettingsError,
    StoreError,
)
from dejavu_cache.model.record import Failure, Measurement
from dejavu_cache.stores import FileStore
from dejavu_cache.stores.memory import freeze
from dejavu_cache.stores.urls import as_tiers

NO_UTF_8 = os.fsdecode(b"caf\xe9 of bytes")


def test_the_same_records_have_the_same_name(tmp_path: Path) -> None:
    left, right = FileStore(tmp_path / "one"), FileStore(tmp_path / "two")
    left.put(context(), [record(1), record(2)])
    right.put(context(), [record(2)])
    right.put(context(), [record(1)])
    first = freeze(left, tmp_path / "a")
    assert Path(first.url).name == Path(freeze(right, tmp_path / "b").url).name
    right.put(context(), [record(3)])
    assert Path(first.url).name != Path(freeze(right, tmp_path / "b").url).name


def test_it_holds_what_the_store_held_and_takes_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    store.put(context(), [record(1), record(2)])
    frozen = open_store(freeze(store, tmp_path / "frozen").url)
    assert list(frozen.record_sets()) == list(store.record_sets())
    for write in (
        lambda: frozen.put(context(), [record(3)]),
        lambda: frozen.delete(context()),
        lambda: frozen.recall(context(), {}),
    ):
        with pytest.raises(ReadOnlyStoreError):
            write()


def test_its_url_opens_it_whatever_the_folder_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path / "store")
    store.put(context(), [record(1)])
    monkeypatch.chdir(tmp_path)
    for folder in (Path("relative"), tmp_path / "a#b", tmp_path / "50%", tmp_path / NO_UTF_8):
        assert list(open_store(freeze(store, folder).url).records(context())) == [record(1)]


def test_a_mount_may_be_made_of_links(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    store.put(context(), [record(1)])
    path = Path(freeze(store, tmp_path / "data").url.removeprefix("frozen://"))
    link = tmp_path / "mount" / path.name
    link.parent.mkdir()
    link.symlink_to(path)
    assert list(open_store(f"frozen://{link}").records(context())) == [record(1)]


def test_a_snapshot_of_a_newer_version_says_so(tmp_path: Path) -> None:
    content = b'{"format": 99, "unknown": 1}\n'
    path = tmp_path / f"{hashlib.sha256(content).hexdigest()}.jsonl"
    path.write_bytes(content)
    with pytest.raises(NewerFormatError):
        open_store(f"frozen://{path}")


def test_a_message_may_hold_any_separator(tmp_path: Path) -> None:
    failure = Failure(kind="compile_error", reason="one\u2028two\u0085three")
    failed = record(16, measurement(32), Measurement(config=config(64), failure=failure, at=MOMENT))
    store = FileStore(tmp_path / "store")
    store.put(context(), [failed])
    assert list(freeze(store, tmp_path / "frozen").records(context())) == [failed]


def test_what_was_changed_or_is_missing_is_refused(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    store.put(context(), [record(1)])
    url = freeze(store, tmp_path).url
    path = Path(url.removeprefix("frozen://"))
    path.chmod(0o644)
    path.write_text(path.read_text().replace("1.0", "2.0"))
    with pytest.raises(StoreError, match="is not the snapshot that its name says"):
        open_store(url)
    path.unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        open_store(url)
    with pytest.raises(SettingsError, match="frozen:///folder/DIGEST"):
        open_store("frozen://host/x")


def test_a_job_in_strict_mode_runs_from_it(tmp_path: Path) -> None:
    tuned = cached_autotune(configs=CONFIGS, key=["n"], store=tmp_path / "store")(add_one)
    launch(tuned, 100)
    seen = dejavu("freeze", tmp_path / "frozen", "--store", tmp_path / "store")
    url = seen.stdout.strip()
    kernel = cached_autotune(configs=CONFIGS, key=["n"], store=url, mode="strict")(add_one)
    launch(kernel, 100)
    assert kernel.best_config is tuned.best_config
    with pytest.raises(ScenarioNotTuned):
        launch(kernel, 101)
    assert [tier.url for tier in as_tiers(url).tiers] == [url, "memory://"], (
        "no shipped records beside it"
    )
