"""Engines that `dejavu-cache run` starts find the tuned tables of the store."""

from __future__ import annotations

import errno
import importlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.command_line import CommandResult, run_cli
from support.records import MOMENT, context

from dejavu_cache.model.record import Measurement, Record, Winner
from dejavu_cache.model.scenario import Config, Scenario
from dejavu_cache.stores import FileStore
from dejavu_cache.triton_internals.environment import triton_version

TABLE = "E=8,N=32,device_name=NVIDIA_H200"
LOADER = "srt/layers/moe/runner/utils/fused_moe_triton_config.py"


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make packages like the engines'; SGLang's has tables for Triton 3.1 and for the present."""
    site = tmp_path / "site"
    for engine in ("vllm", "sglang"):
        (site / engine).mkdir(parents=True)
        (site / engine / "__init__.py").touch()
    loader = site / "sglang" / LOADER
    for version in ("3.1.0", str(triton_version())):
        folder = loader.parent / "configs" / f"triton_{version.replace('.', '_')}"
        folder.mkdir(parents=True)
        for name in (TABLE, f"{TABLE}_down", "E=9,N=9,device_name=X", "E=9,N=9,device_name=X_down"):
            (folder / f"{name}.json").write_text('{"1": {"BLOCK_SIZE_M": 128}}')
    loader.touch()
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()
    yield site
    importlib.invalidate_caches()


def add_record(store: Path, block: int, days: int = 0) -> None:
    config = Config(params={"BLOCK_SIZE_M": block}, options={"num_warps": 4})
    args = {"M": 16, "E": 8, "N": 32, "group_n": 0, "group_k": 0}
    at = MOMENT.replace(day=1 + days)
    record = Record(
        scenario=Scenario(args=args),
        winner=Winner(config=config, at=at),
        measurements=(Measurement(config=config, median=1.0 / (1 + days), at=at),),
    )
    version = str(triton_version())
    FileStore(store).put(context(kernel="e.fused_moe_kernel", triton=version), [record])


NAMES = ("VLLM_TUNED_CONFIG_FOLDER", "SGLANG_MOE_CONFIG_DIR")


def silence_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(store: Any) -> Any:
        raise OSError("no answer")

    monkeypatch.setattr("dejavu_cache.engines.prepared_tables.collect_tables", raise_error)


def start(monkeypatch: pytest.MonkeyPatch, store: object, **env: Any) -> dict[str, str]:
    """Return the environment of a command that `run` starts."""
    started: list[dict[str, str]] = []

    def execute(file: str, words: Sequence[str], environment: dict[str, str]) -> None:
        started.append(environment)

    monkeypatch.setattr(os, "execvpe", execute)
    seen: CommandResult = run_cli("run", "--store", store, "--", sys.executable, "-c", "", **env)
    assert seen.returncode == 0, seen.stderr
    return started[0]


def read(folder: str, name: str) -> Any:
    return json.loads((Path(folder) / name).read_text())


def test_engines_find_the_tables_of_the_store(
    engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    add_record(store, 16)
    environment = start(monkeypatch, store)
    vllm, sglang = environment["VLLM_TUNED_CONFIG_FOLDER"], environment["SGLANG_MOE_CONFIG_DIR"]
    tuned = {"BLOCK_SIZE_M": 16, "num_warps": 4}
    version = str(triton_version())
    assert read(vllm, f"{TABLE}.json") == {"triton_version": version, "16": tuned}
    present = f"configs/triton_{version.replace('.', '_')}"
    assert read(sglang, f"{present}/{TABLE}.json") == {"16": tuned}
    shipped = {"1": {"BLOCK_SIZE_M": 128}}
    for name in ("E=9,N=9,device_name=X", "E=9,N=9,device_name=X_down"):
        assert read(sglang, f"{present}/{name}.json") == shipped, "which SGLang would not see"
    assert read(sglang, f"configs/triton_3_1_0/{TABLE}.json") == shipped
    for folder in (present, "configs/triton_3_1_0"):
        # SGLang stops where the second product's blocks differ from the first's.
        assert not (Path(sglang) / folder / f"{TABLE}_down.json").exists()


def test_tables_follow_the_store_and_outlive_its_silence(
    engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    add_record(store, 16)
    first = start(monkeypatch, store)["VLLM_TUNED_CONFIG_FOLDER"]
    assert start(monkeypatch, store)["VLLM_TUNED_CONFIG_FOLDER"] == first
    add_record(store, 32, days=1)
    second = start(monkeypatch, store)["VLLM_TUNED_CONFIG_FOLDER"]
    assert read(first, f"{TABLE}.json")["16"]["BLOCK_SIZE_M"] == 16, "an engine may still read it"
    assert read(second, f"{TABLE}.json")["16"]["BLOCK_SIZE_M"] == 32
    silence_stores(monkeypatch)
    assert start(monkeypatch, store)["VLLM_TUNED_CONFIG_FOLDER"] == second
    stopped = threading.Event()
    monkeypatch.setattr(
        "dejavu_cache.engines.prepared_tables.collect_tables", lambda store: stopped.wait(60)
    )
    monkeypatch.setattr("dejavu_cache.engines.prepared_tables.PATIENCE", 0.05)
    assert start(monkeypatch, store)["VLLM_TUNED_CONFIG_FOLDER"] == second, "it never ends"
    assert not stopped.is_set()
    stopped.set()
    monkeypatch.undo()
    old = time.time() - 40 * 86400
    os.utime(Path(first) / "content", (old, old))
    monkeypatch.syspath_prepend(engines)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    start(monkeypatch, store)
    assert not Path(first).exists()
    assert Path(second).exists()


def test_engines_that_start_at_once_all_get_tables(
    engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    add_record(store, 16)
    first = start(monkeypatch, store)
    folder = Path(first["SGLANG_MOE_CONFIG_DIR"])
    (folder / "content").unlink()  # as if the other start had not come to its end
    gone = folder.parent / "unused"
    gone.mkdir()
    (gone / "content").symlink_to(tmp_path / "deleted meanwhile")
    is_link = Path.is_symlink  # Says what a look before the other start says:
    monkeypatch.setattr(Path, "is_symlink", lambda path: path.suffix != ".json" and is_link(path))
    second = start(monkeypatch, store)
    assert second["SGLANG_MOE_CONFIG_DIR"] == str(folder)
    assert second["VLLM_TUNED_CONFIG_FOLDER"] == first["VLLM_TUNED_CONFIG_FOLDER"]


def test_a_folder_of_the_users_own_stays_and_nothing_is_set_without_tables(
    engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    damaged = tmp_path / "damaged"
    (damaged / ".imported" / "fused_moe_kernel.jsonl").mkdir(parents=True)
    for store in (empty, tmp_path / "missing", damaged, "nowhere://at-all"):
        assert not any(name in start(monkeypatch, store) for name in NAMES)
    add_record(tmp_path / "store", 16)
    environment = start(monkeypatch, tmp_path / "store", VLLM_TUNED_CONFIG_FOLDER="mine")
    assert environment["VLLM_TUNED_CONFIG_FOLDER"] == "mine"
    assert "SGLANG_MOE_CONFIG_DIR" in environment
    (engines / "sglang" / LOADER).unlink()
    environment = start(monkeypatch, tmp_path / "store", DEJAVU_CACHE_MODE="reuse")
    assert "VLLM_TUNED_CONFIG_FOLDER" in environment
    assert "SGLANG_MOE_CONFIG_DIR" not in environment, "its own tables would be hidden"
    assert not any(
        name in start(monkeypatch, tmp_path / "store", DEJAVU_CACHE_MODE="off") for name in NAMES
    )


def test_tables_that_were_recalled_do_not_come_back_when_the_store_is_silent(
    engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    add_record(store, 16)
    assert all(name in start(monkeypatch, store) for name in NAMES)
    shutil.rmtree(store)
    assert not any(name in start(monkeypatch, store) for name in NAMES)
    silence_stores(monkeypatch)
    assert not any(name in start(monkeypatch, store) for name in NAMES)


def test_tables_of_a_read_only_cache_are_used(
    engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    add_record(store, 16)
    first = start(monkeypatch, store)

    def refuse(path: Path, **_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "touch", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    second = start(monkeypatch, store)
    assert second["VLLM_TUNED_CONFIG_FOLDER"] == first["VLLM_TUNED_CONFIG_FOLDER"]


def test_a_second_sglang_gets_no_links_into_the_first(
    engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    add_record(store, 16)
    start(monkeypatch, store)
    second = tmp_path / "second"
    (engines / "sglang").rename(tmp_path / "sglang of an environment that is gone")
    shutil.copytree(tmp_path / "sglang of an environment that is gone", second / "sglang")
    monkeypatch.syspath_prepend(second)
    importlib.invalidate_caches()
    silence_stores(monkeypatch)
    assert "SGLANG_MOE_CONFIG_DIR" not in start(monkeypatch, store)
