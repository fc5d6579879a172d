"""Tuned tables of engines come out as they went in."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.command_line import run_cli
from support.tuned_tables import (
    FIRST,
    SECOND,
    contents,
    exported,
    imported,
    write_content,
)

from dejavu_cache.errors import StoreError
from dejavu_cache.integrations.foreign_files import read_foreign_files
from dejavu_cache.integrations.tuned_tables import (
    TABLE_FILES,
    TunedTable,
    collect_tables,
    format_labels,
    labels_of,
    launches_of,
    parse_labels,
    write_tables,
)
from dejavu_cache.model.foreign_result import ForeignResult
from dejavu_cache.stores import FileStore

NUMBERS = st.integers(1, 1 << 14).map(str)
DEVICES = st.sampled_from(["NVIDIA_H200", "AMD_Instinct_MI300X", "NVIDIA_H100_80GB_HBM3", "L-40.S"])
BLOCKS = st.builds("[{},{}]".format, st.integers(1, 256), st.integers(1, 256))
FUSED = st.fixed_dictionaries(
    {"E": NUMBERS, "N": NUMBERS, "device_name": DEVICES},
    optional={
        "dtype": st.sampled_from(["fp8_w8a8", "int8_w8a8", "int8_w8a16", "int4_w4a16", "float32"]),
        "block_shape": BLOCKS,
        "per_channel_quant": st.just("True"),
        "backend": st.sampled_from(["triton", "flydsl"]),
        "down": st.just("True"),
    },
)
SCALED = st.fixed_dictionaries(
    {
        "N": NUMBERS,
        "K": NUMBERS,
        "device_name": DEVICES,
        "dtype": st.sampled_from(["fp8_w8a8", "int8_w8a8"]),
        "block_shape": BLOCKS,
    }
)
STATES = st.fixed_dictionaries(
    {
        "headdim": NUMBERS,
        "dstate": NUMBERS,
        "device_name": DEVICES,
    },
    optional={"cache_dtype": st.sampled_from(["float16", "float32"])},
)


@given(st.one_of(FUSED, SCALED, STATES), st.booleans())
def test_a_table_s_name_says_for_which_launches_it_is(labels: dict[str, str], space: bool) -> None:
    name = format_labels(labels)
    assert parse_labels(name.replace(",", ", ") if space and "[" in name else name) == labels
    launches = launches_of({label: labels[label] for label in labels if label != "device_name"})
    assert launches is not None
    again = labels_of(*launches)
    assert again is not None
    assert again == {label: labels[label] for label in labels if label != "device_name"}
    assert format_labels({**again, "device_name": labels["device_name"]}) == name


def test_tables_of_vllm_come_out_as_they_went_in(tmp_path: Path) -> None:
    blocks = "dtype=fp8_w8a8,block_shape=[128,128]"
    tables: dict[str, dict[str, Any]] = {
        "E=8,N=7168,device_name=NVIDIA_H200.json": {"1": FIRST, "4096": SECOND},
        "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3.json": {"1": SECOND},
        "E=8,N=7168,device_name=NVIDIA_H200,dtype=int8_w8a8.json": {"1": SECOND},
        f"E=8,N=7168,device_name=NVIDIA_H200,{blocks}.json": {
            "triton_version": "3.5.0",
            "8": FIRST,
        },
        f"N=512,K=7168,device_name=NVIDIA_H200,{blocks}.json": {"2": FIRST},
        "N=512,K=7168,device_name=NVIDIA_H200,dtype=int8_w8a8,block_shape=[128, 128].json": {
            "2": SECOND
        },
        "headdim=64,dstate=128,device_name=NVIDIA_B200,cache_dtype=float32.json": {
            "triton_version": "3.6.0",
            "64": {"BLOCK_SIZE_M": 4, "num_warps": 1},
        },
    }
    for name, content in tables.items():
        write_content(tmp_path / "in" / name, content)
    assert run_cli("import", "--vllm", tmp_path / "in").returncode == 0
    seen = run_cli("export", "--vllm", tmp_path / "out", "--triton", "any")
    assert seen.returncode == 0, seen.stderr
    assert contents(tmp_path / "out") == tables
    seen = run_cli("export", "--vllm", tmp_path / "new", "--triton", "3.6.0")
    assert contents(tmp_path / "new") == {
        name: table for name, table in tables.items() if table.get("triton_version") != "3.5.0"
    }, "those of this version, and of an unknown one"
    run_cli("export", "--hf", tmp_path / "hf", "--triton", "any")
    assert {name: table for name, table in tables.items() if name[0] == "E"} == {
        **contents(tmp_path / "hf"),
        f"E=8,N=7168,device_name=NVIDIA_H200,{blocks}.json": {
            "triton_version": "3.5.0",
            "8": FIRST,
        },
    }, "without a stamp"


def test_tables_of_sglang_come_out_as_they_went_in(tmp_path: Path) -> None:
    blocks = "device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128]"
    tables = {
        f"configs/triton_3_4_0/E=8,N=7168,{blocks}.json": {"1": FIRST},
        f"configs/triton_3_5_1/E=8,N=7168,{blocks}.json": {"1": SECOND},
        f"configs/triton_3_5_1/E=8,N=7168,{blocks}_down.json": {"1": {**FIRST, "USE_TMA": True}},
        "configs/triton_3_5_1/E=8,N=7168,device_name=NVIDIA_H20,per_channel_quant=True.json": {
            "2": FIRST
        },
        f"quantization/N=512,K=7168,{blocks}.json": {
            "1": {**FIRST, "SPLIT_K": 4, "SWAP_AB": True},
            "2": FIRST,
        },
        f"quantization/N=512,K=32,{blocks}.json": {"1": {**FIRST, "SWAP_AB": True}},
    }
    for name, content in tables.items():
        write_content(tmp_path / "in" / name, content)
    run_cli("import", "--vllm", tmp_path / "in")
    run_cli("export", "--sglang", tmp_path / "out")
    assert contents(tmp_path / "out") == tables
    run_cli("export", "--vllm", tmp_path / "vllm")
    product = f"N=512,K=7168,{blocks}.json".replace(", ", ",")
    assert contents(tmp_path / "vllm") == {product: {"2": FIRST}}, "its kernel has no such options"


PRODUCT = "N=512,K=7168,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128].json"


def test_sglang_finds_the_folder_that_it_lists_also_beside_products_alone(tmp_path: Path) -> None:
    write_content(tmp_path / "in" / PRODUCT, {"1": FIRST})
    run_cli("import", "--vllm", tmp_path / "in", "--store", tmp_path / "store")
    run_cli("export", "--sglang", tmp_path / "out", "--store", tmp_path / "store")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["configs", "quantization"]


def test_a_gpu_s_name_has_underscores_for_spaces_and_slashes(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put_imported([imported("AMD Instinct MI250X/MI250", M="16")])
    assert list(exported(store)) == ["E=8,N=32,device_name=AMD_Instinct_MI250X_MI250.json"]


def test_no_version_of_triton_has_a_folder_at_which_sglang_stops() -> None:
    """It reads the names of all folders as numbers, whichever version runs."""

    def table(version: str, block: int, **labels: str) -> TunedTable:
        return TunedTable({"E": "8", "N": "32", **labels}, "X", version, {1: {"num_warps": block}})

    versions = ["3.4.0", "3.4.0+git1a2b", "3.5.0+rocm7.1", "3.6.0rc1", "3.7.0.post1", "git", ""]
    tables = [table(version, 1 + at) for at, version in enumerate(versions)]
    files = {file.path: file.content["1"] for file in TABLE_FILES["sglang"](tables, "any")}
    assert files == {
        f"configs/triton_{folder}/E=8,N=32,device_name=X.json": {"num_warps": block}
        for folder, block in {"3_4_0": 1, "3_5_0": 3, "3_6_0": 4, "3_7_0": 5}.items()
    }, "a release's own table comes before that of a build of it"
    products = [table(version, 1, K="8", dtype="fp8_w8a8") for version in versions]
    (file,) = TABLE_FILES["sglang"](products, "3.5.0+rocm7.1")
    assert Path(file.path).parent.name == "triton_3_5_0"


@pytest.mark.parametrize(
    "odd",
    [
        imported(M="9" * 5000),
        imported(M="16", E="8" * 300),
        imported(M="16", device="H" * 240),
        imported(M="16", device="../../H200"),
        imported(M="16", device="H\u2028200"),
    ],
    ids=["size", "label", "device", "folder", "line separator"],
)
def test_an_odd_line_keeps_no_other_table_from_being_written(
    odd: ForeignResult, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "store")
    store.put_imported([imported(M="16")])
    store.put_imported([odd])
    store.put_imported([imported(M="160")])
    files = TABLE_FILES["vllm"](collect_tables(store), "3.6.0")
    write_tables(files, tmp_path / "out")
    assert contents(tmp_path / "out") == {
        "E=8,N=32,device_name=NVIDIA_H200.json": {
            "16": {"BLOCK_SIZE_M": 2},
            "160": {"BLOCK_SIZE_M": 3},
        }
    }


def test_results_that_cannot_be_read_are_not_replaced_by_the_next_import(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put_imported([imported(M="16")])
    (path,) = (tmp_path / ".imported").iterdir()
    path.write_text(path.read_text() + "{")
    with pytest.raises(StoreError, match="does not hold results"):
        store.put_imported([imported(M="32")])
    assert path.read_text().endswith("{")


def test_another_kind_of_h200_does_not_replace_the_tables_of_the_kind_itself() -> None:
    tables = [
        TunedTable({"E": "8", "N": "32"}, device, "3.6.0", {1: {"BLOCK_SIZE_M": block}})
        for device, block in (("NVIDIA_H200", 16), ("NVIDIA_H200_NVL", 64))
    ]
    (file,) = TABLE_FILES["vllm"](tables, "3.6.0")
    assert file.content["1"] == {"BLOCK_SIZE_M": 16}


def test_tables_of_block_products_have_the_gpu_s_own_name_and_no_stamp() -> None:
    """Each kind of GPU has a name, and vLLM's loader takes every key for a batch size."""
    labels = {"N": "512", "K": "256", "dtype": "fp8_w8a8", "block_shape": "[128,128]"}
    tables = [
        TunedTable(labels, device, "3.6.0", {1: {"BLOCK_SIZE_M": block}})
        for device, block in (("NVIDIA_H200", 16), ("NVIDIA_H200_NVL", 64))
    ]
    files = {file.path: file.content for file in TABLE_FILES["vllm"](tables, "3.6.0")}
    assert files == {
        f"N=512,K=256,device_name={device},dtype=fp8_w8a8,block_shape=[128,128].json": {
            "1": {"BLOCK_SIZE_M": block}
        }
        for device, block in (("NVIDIA_H200", 16), ("NVIDIA_H200_NVL", 64))
    }


@given(
    st.dictionaries(NUMBERS, st.sampled_from([FIRST, SECOND]), min_size=1),
    st.one_of(FUSED, SCALED, STATES),
    st.data(),
)
def test_an_export_that_is_imported_and_exported_is_the_same(
    lines: dict[str, Any], labels: dict[str, str], data: st.DataObject
) -> None:
    version = data.draw(st.sampled_from(["3.4.0", "3.6.0"]))
    engine = data.draw(st.sampled_from(["vllm", "sglang"]))
    table = TunedTable({}, "", version, {int(size): line for size, line in lines.items()})
    device = labels.pop("device_name")
    files = list(TABLE_FILES[engine]([table._replace(labels=labels, device=device)], version))
    assume(files)  # SGLang reads no tables of states
    with TemporaryDirectory() as folder:
        first, second = Path(folder, "1"), Path(folder, "2")
        write_tables(files, first)
        for _ in range(2):
            store = FileStore(Path(folder, "store"))
            store.put_imported(read_foreign_files("vllm", first))
        write_tables(TABLE_FILES[engine](collect_tables(store), version), second)
        assert contents(second) == contents(first)
