"""Winners become tuned tables that engines read."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.command_line import run_cli
from support.records import MOMENT, context
from support.tuned_tables import (
    TABLE,
    exported,
)

from dejavu_cache.integrations.tuned_tables import collect_tables, launches_of
from dejavu_cache.model.foreign_result import ForeignResult, ForeignTiming
from dejavu_cache.model.record import Measurement, Pin, Record, Winner
from dejavu_cache.model.scenario import Config, Context, Scenario
from dejavu_cache.stores import FileStore, MemoryStore

SCENARIO = {"M": 64, "E": 128, "N": 768, "K": 2048, "top_k": 8, "group_n": 0, "group_k": 0}
FLAGS = {"use_fp8_w8a8": False, "use_int8_w8a16": False}


def engine_context(source: str = "a" * 32, triton: str = "3.6.0") -> Context:
    return context(kernel="vllm.fused_moe.fused_moe_kernel", source=source, triton=triton)


def engine_record(block: int, days: int = 0, **changes: Any) -> Record:
    config = Config(
        params={"BLOCK_SIZE_M": block, "GROUP_SIZE_M": 1},
        options={"num_warps": 4, "num_stages": 3, "num_ctas": 1},
    )
    at = MOMENT + timedelta(days=days)
    fields: dict[str, Any] = {
        "scenario": Scenario(args={**SCENARIO, **FLAGS}),
        "winner": Winner(config=config, at=at),
        "measurements": (Measurement(config=config, median=1.0, at=at),),
    }
    return Record(**{**fields, **changes})


def lines(*sizes: int, block: int) -> dict[str, Any]:
    config = {"BLOCK_SIZE_M": block, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}
    return {str(size): config for size in sizes}


def test_winners_become_a_table_of_their_version_of_triton() -> None:
    store = MemoryStore()
    quantized = {**SCENARIO, **FLAGS, "use_fp8_w8a8": True, "group_n": 128, "group_k": 128}
    store.put(
        engine_context(),
        [
            engine_record(16),
            engine_record(32, scenario=Scenario(args={**SCENARIO, **FLAGS, "M": 4096})),
            engine_record(64, scenario=Scenario(args=quantized)),
        ],
    )
    store.put(engine_context(triton="3.4.0"), [engine_record(128, days=9)])
    blocks = TABLE.replace(".json", ",dtype=fp8_w8a8,block_shape=[128,128].json")
    assert exported(store) == {
        TABLE: {"triton_version": "3.6.0", **lines(64, block=16), **lines(4096, block=32)},
        blocks: {"triton_version": "3.6.0", **lines(64, block=64)},
    }
    assert set(exported(store, "sglang")) == {
        f"configs/triton_3_6_0/{TABLE}",
        f"configs/triton_3_6_0/{blocks.replace('128,128', '128, 128')}",
    }


def test_the_latest_version_of_a_kernel_and_a_pin_decide_and_imports_fill_in() -> None:
    store = MemoryStore()
    store.put(engine_context("a" * 32), [engine_record(16)])
    store.put(engine_context("b" * 32), [engine_record(32, days=1)])
    assert exported(store)[TABLE] == {"triton_version": "3.6.0", **lines(64, block=32)}
    pinned = engine_record(64).winner
    assert pinned is not None
    pin = Pin(config=pinned.config, at=MOMENT + timedelta(days=2))
    store.put(engine_context("a" * 32), [engine_record(16, pin=pin)])
    assert exported(store)[TABLE] == {"triton_version": "3.6.0", **lines(64, block=64)}


def test_imported_lines_fill_in_what_no_record_says(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put(engine_context(), [engine_record(16)])
    launches = launches_of({"E": "128", "N": "768"})
    assert launches is not None
    function, named = launches
    config = Config(params=lines(1, block=256)["1"])
    store.put_imported(
        ForeignResult(
            origin="vllm",
            function=function,
            named={**named, "M": size},
            device="NVIDIA_H200",
            triton="3.6.0",
            timings=(ForeignTiming(config=config),),
        )
        for size in ("64", "128")
    )
    (table,) = collect_tables(store)
    assert {size: line["BLOCK_SIZE_M"] for size, line in table.configs.items()} == {
        64: 16,
        128: 256,
    }


@pytest.mark.parametrize(
    "record",
    [
        engine_record(16, winner=None),
        engine_record(0 - 1),
        engine_record(1 << 17),
        engine_record(16, scenario=Scenario(args={**SCENARIO, "E": "../../8"})),
        engine_record(16, scenario=Scenario(args={**SCENARIO, "M": "many"})),
        engine_record(16, scenario=Scenario(args={"M": 64, "N": 768})),
        engine_record(16, scenario=Scenario(args={**SCENARIO, "epilogue": "relu"})),
        engine_record(16, scenario=Scenario(args={**SCENARIO, "use_a": True, "use_b": True})),
        engine_record(16, winner=Winner(config=Config(params={"ptx_options": 1}), at=MOMENT)),
        engine_record(16, winner=Winner(config=Config(params={"BLOCK_SIZE_M": "16"}), at=MOMENT)),
        engine_record(16, winner=Winner(config=Config(params={"BLOCK_SIZE_M": True}), at=MOMENT)),
    ],
)
def test_what_an_engine_must_not_launch_is_left_out(record: Record) -> None:
    if record.winner is not None:
        config = record.winner.config
        measured = Measurement(config=config, median=1.0, at=MOMENT)
        record = record.model_copy(update={"measurements": (measured,)})
    store = MemoryStore()
    store.put(engine_context(), [record])
    assert exported(store) == exported(store, "sglang") == {}


def test_an_export_without_tables_says_which_versions_there_are(tmp_path: Path) -> None:
    seen = run_cli("export", "--vllm", tmp_path / "out")
    assert seen.returncode != 0
    store = FileStore(tmp_path / "store")
    store.put(engine_context(triton="3.1.0"), [engine_record(16)])
    seen = run_cli("export", "--vllm", tmp_path / "out", "--store", tmp_path / "store")
    assert "3.1.0" in seen.stderr
    assert "--triton any" in seen.stderr
    assert not (tmp_path / "out").exists()
    seen = run_cli("export", "all.jsonl", "--hf", tmp_path / "out", "--store", tmp_path / "store")
    assert seen.returncode == 2


@pytest.mark.parametrize(("blocked", "code"), [(TABLE, 3), (TABLE.replace("768", "999"), 5)])
def test_an_export_that_ends_halfway_names_the_file_and_what_is_written(
    blocked: str, code: int, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "store")
    wide = engine_record(32, scenario=Scenario(args={**SCENARIO, **FLAGS, "N": 999}))
    store.put(engine_context(), [engine_record(16), wide])
    (tmp_path / "out" / blocked).mkdir(parents=True)
    seen = run_cli("export", "--vllm", tmp_path / "out", "--triton", "any", "--store", store.root)
    assert (seen.returncode, f"{blocked} cannot be written" in seen.stderr) == (code, True), seen
    assert ("1 table of 2 written before it" in seen.stderr) == (code == 5)
    assert (tmp_path / "out" / TABLE).is_file() == (code == 5)


def test_no_link_below_the_folder_is_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "configs").symlink_to(victim)
    FileStore(tmp_path / "store").put(engine_context(), [engine_record(16)])
    seen = run_cli("export", "--sglang", tmp_path / "out", "--store", tmp_path / "store")
    assert (seen.returncode, "cannot be written" in seen.stderr) == (3, True)
    assert list(victim.iterdir()) == []
