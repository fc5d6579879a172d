"""Winners of fused experts become the tables that engines read, and nothing else does."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.command_line import run_cli
from support.records import MOMENT, context

from dejavu_cache.engines.tuned_tables import TABLE_FILES, collect_tables
from dejavu_cache.model.record import Measurement, Pin, Record, Winner
from dejavu_cache.model.scenario import Config, Context, Scenario
from dejavu_cache.stores import FileStore, MemoryStore, Store

TABLE = "E=128,N=768,device_name=NVIDIA_H200.json"
ARGS = {"M": 64, "E": 128, "N": 768, "K": 2048, "top_k": 8, "group_n": 0, "group_k": 0}
ARGS |= {"use_fp8_w8a8": False}


def of_engine(source: str = "a" * 32, triton: str = "3.6.0", **changes: Any) -> Context:
    names = {"kernel": "vllm.fused_moe.fused_moe_kernel", **changes}
    return context(source=source, triton=triton, **names)


def config(block: Any = 16, **params: Any) -> Config:
    return Config(
        params={"BLOCK_SIZE_M": block, "GROUP_SIZE_M": 1, **params},
        options={"num_warps": 4, "num_stages": 3, "num_ctas": 1},
    )


def record(block: Any = 16, *, days: int = 0, best: Config | None = None, **args: Any) -> Record:
    best, at = best or config(block), MOMENT + timedelta(days=days)
    return Record(
        scenario=Scenario(args={**ARGS, **args}),
        winner=Winner(config=best, at=at),
        measurements=(Measurement(config=best, median=1.0, at=at),),
    )


def line(block: int) -> dict[str, int]:
    return {"BLOCK_SIZE_M": block, "GROUP_SIZE_M": 1, "num_stages": 3, "num_warps": 4}


def exported(store: Store, engine: str = "vllm", version: str = "3.6.0") -> dict[str, Any]:
    return TABLE_FILES[engine](collect_tables(store), version)


def test_winners_become_a_table_of_their_version_of_triton() -> None:
    store = MemoryStore()
    in_blocks: dict[str, Any] = {"use_fp8_w8a8": True, "group_n": 128, "group_k": 128}
    records = [
        record(16),
        record(32, M=4096),
        record(64, **in_blocks),
        record(8, use_fp8_w8a8=True),
    ]
    store.put(of_engine(), records)
    store.put(of_engine(triton="3.4.0"), [record(128, days=9)])
    store.put(of_engine(kernel="mine"), [record(1)])
    float8 = TABLE.replace(".json", ",dtype=fp8_w8a8.json")
    blocks = TABLE.replace(".json", ",dtype=fp8_w8a8,block_shape=[128,128].json")
    stamp = {"triton_version": "3.6.0"}
    assert exported(store) == {
        TABLE: {**stamp, "64": line(16), "4096": line(32)},
        float8: {**stamp, "64": line(8)},
        blocks: {**stamp, "64": line(64)},
    }
    assert exported(store, "sglang", "") == {
        f"configs/triton_3_4_0/{TABLE}": {"64": line(128)},
        f"configs/triton_3_6_0/{TABLE}": {"64": line(16), "4096": line(32)},
        f"configs/triton_3_6_0/{float8}": {"64": line(8)},
        f"configs/triton_3_6_0/{blocks.replace('128,128', '128, 128')}": {"64": line(64)},
    }


def test_the_latest_version_of_a_kernel_and_a_pin_decide() -> None:
    store = MemoryStore()
    store.put(of_engine("a" * 32), [record(16)])
    store.put(of_engine("b" * 32), [record(32, days=1)])
    assert exported(store)[TABLE]["64"] == line(32)
    pin = Pin(config=config(64), at=MOMENT + timedelta(days=2))
    store.put(of_engine("a" * 32), [record(64).model_copy(update={"pin": pin})])
    assert exported(store)[TABLE]["64"] == line(64)


def test_vllm_has_one_name_for_all_kinds_of_h200() -> None:
    store = MemoryStore()
    for device, block in (("NVIDIA H200 NVL", 64), ("NVIDIA H200", 16)):
        store.put(of_engine(device=device), [record(block)])
    assert exported(store)[TABLE]["64"] == line(16), "those of the kind itself stay"
    assert len(exported(store, "sglang")) == 2


def test_no_version_of_triton_has_a_folder_at_which_sglang_stops() -> None:
    """It reads the names of all folders as numbers, whichever version runs."""
    versions = ["3.4.0", "3.4.0+git1a2b", "3.5.0+rocm7.1", "3.6.0rc1", "3.7.0.post1", "git"]
    store = MemoryStore()
    for block, version in enumerate(versions):
        store.put(of_engine(triton=version), [record(block)])
    files = {path: lines["64"] for path, lines in exported(store, "sglang", "").items()}
    assert files == {
        f"configs/triton_{folder}/{TABLE}": line(block)
        for folder, block in {"3_4_0": 0, "3_5_0": 2, "3_6_0": 3, "3_7_0": 4}.items()
    }, "a release's own table comes before that of a build of it"


@pytest.mark.parametrize(
    "odd",
    [
        record().model_copy(update={"winner": None}),
        *map(record, (-1, 1 << 17, "16", True)),
        record(best=config(ptx_options=1)),
        *(record(E=value) for value in ("../../8", -8, True, None)),
        record(M="many"),
        record(epilogue="relu"),
        record(use_fp8_w8a8=1),
        record(group_n=128, group_k=64, use_fp8_w8a8=True),
        record(group_n=128, group_k=128),
    ],
)
def test_what_an_engine_must_not_launch_is_left_out(odd: Record) -> None:
    store = MemoryStore()
    store.put(of_engine(), [odd])
    store.put(of_engine("b" * 32), [record(16, M=1)])
    for engine in TABLE_FILES:
        ((_, lines),) = exported(store, engine).items()
        assert lines.keys() - {"triton_version"} == {"1"}


@pytest.mark.parametrize(
    ("device", "names"),
    [
        ("../../L40", ["E=128,N=768,device_name=.._.._L40.json"]),
        ("..\\L40", []),
        ("L" * 240, []),
        ("L\u202840", []),
    ],
)
def test_no_name_of_a_gpu_leads_to_another_folder(device: str, names: list[str]) -> None:
    store = MemoryStore()
    store.put(of_engine(device=device), [record()])
    assert list(exported(store)) == names


def test_an_export_names_the_versions_that_there_are_and_what_is_left_out(tmp_path: Path) -> None:
    assert run_cli("export", "--vllm", tmp_path / "out").returncode != 0
    store = FileStore(tmp_path / "store")
    odd = record(best=config(USE_TMA=1), M=1)
    store.put(of_engine(triton="3.1.0"), [record(), odd])
    seen = run_cli("export", "--vllm", tmp_path / "out", "--store", store.root)
    assert "for 3.1.0: choose one by --triton" in seen.stderr
    assert not (tmp_path / "out").exists()
    words = ("--triton", "3.1.0", "--store", store.root)
    seen = run_cli("export", "--vllm", tmp_path / "out", *words)
    assert (seen.returncode, "1 config left out" in seen.stderr) == (0, True)
    assert "set no USE_TMA" in seen.stderr
    written = json.loads((tmp_path / "out" / TABLE).read_text())
    assert written == {"triton_version": "3.1.0", "64": line(16)}
    assert run_cli("export", "all.jsonl", "--vllm", tmp_path / "out").returncode == 2


@pytest.mark.parametrize(("blocked", "code"), [(TABLE, 3), (TABLE.replace("768", "999"), 5)])
def test_an_export_that_ends_halfway_names_the_file_and_what_is_written(
    blocked: str, code: int, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "store")
    store.put(of_engine(), [record(16), record(32, N=999)])
    (tmp_path / "out" / blocked).mkdir(parents=True)
    words = ("--triton", "3.6.0", "--store", store.root)
    seen = run_cli("export", "--vllm", tmp_path / "out", *words)
    assert (seen.returncode, f"{blocked} cannot be written" in seen.stderr) == (code, True), seen
    assert ("1 table of 2 written before it" in seen.stderr) == (code == 5)
    assert (tmp_path / "out" / TABLE).is_file() == (code == 5)


def test_no_link_below_the_folder_is_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "configs").symlink_to(victim)
    FileStore(tmp_path / "store").put(of_engine(), [record()])
    seen = run_cli("export", "--sglang", tmp_path / "out", "--store", tmp_path / "store")
    assert (seen.returncode, "cannot be written" in seen.stderr) == (3, True)
    assert list(victim.iterdir()) == []
