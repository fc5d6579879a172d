"""vLLM's block-scaled products are tuned by its own code; those parts are skipped without vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from dejavu_cache.engines.vllm.block_products import (
    BlockProduct,
    engine_config,
    make_arguments,
    product_kernel,
    run_product,
)
from dejavu_cache.engines.vllm.block_products_suite import PRESETS, cases
from dejavu_cache.engines.vllm.shipped_tables import shipped_configs
from dejavu_cache.integrations.table_files import TABLE_FILES, write_tables
from dejavu_cache.integrations.table_names import BLOCK_PRODUCTS, TableEntry
from dejavu_cache.integrations.tuned_tables import collect_tables
from dejavu_cache.runtime.resolver import Resolver
from dejavu_cache.settings import Mode, current_settings
from dejavu_cache.stores import FileStore, TieredStore
from dejavu_cache.sweep.requests import make_request
from dejavu_cache.sweep.suite import Case

LAYER = BlockProduct(48, 64, block=32)
FIRST = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1}
SMALL = {**FIRST, "num_warps": 1, "num_stages": 1}


@pytest.mark.parametrize("layer", [LAYER, *PRESETS["deepseek-v3"]])
def test_a_layer_s_key_names_its_table(layer: BlockProduct) -> None:
    named = {name: str(value) for name, value in layer.key(8).items()}
    assert TableEntry(BLOCK_PRODUCTS["fp8_w8a8"], named, "M").labels() == layer.labels


def test_gpus_share_what_a_layer_divides_and_odd_shapes_are_refused() -> None:
    assert BlockProduct(64, 32, "outputs").on_each_of(4) == BlockProduct(16, 32)
    assert BlockProduct(64, 32, "inputs").on_each_of(4) == BlockProduct(64, 8)
    assert BlockProduct(64, 32).on_each_of(4) == BlockProduct(64, 32)
    for layer, gpus in ((BlockProduct(64, 32, "inputs"), 5), (LAYER, 0)):
        with pytest.raises(ValueError, match="tp="):
            layer.on_each_of(gpus)
    for wrong in ({"outputs": 0}, {"divided": "rows"}, {"block": 0}):
        with pytest.raises(ValueError, match=r"above 0|choose"):
            BlockProduct(**{"outputs": 64, "inputs": 32, **wrong})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="choose one of"):
        next(cases(preset="unknown"))


def test_tables_of_a_family_differ_in_sizes_and_the_number_of_the_gpu(tmp_path: Path) -> None:
    blocks = "dtype=fp8_w8a8,block_shape=[128,128].json"
    for at, name in enumerate(
        (
            f"N=1,K=2,device_name=NVIDIA_H100_80GB_HBM3,{blocks}",
            f"N=3,K=4,device_name=NVIDIA_H200,{blocks}",
            f"N=3,K=4,device_name=NVIDIA_A100-SXM4-80GB,{blocks}",
            "N=3,K=4,device_name=NVIDIA_H200,dtype=int8_w8a8,block_shape=[128,128].json",
            "N=3,K=4,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[64,64].json",
        )
    ):
        content = {"triton_version": "3.5.0", "1": {"num_warps": at}, "64": {"num_warps": 10 + at}}
        (tmp_path / name).write_text(json.dumps(content))
    wanted = f"N=512,K=512,device_name=NVIDIA_H20,{blocks}"
    assert [c["num_warps"] for c in shipped_configs(tmp_path, wanted, 8)] == [0, 1]
    assert [c["num_warps"] for c in shipped_configs(tmp_path, wanted, 4096)] == [10, 11]


@pytest.fixture
def fp8_utils(import_engine: Callable[[str], ModuleType]) -> Any:
    """Return vLLM's module."""
    module: Any = import_engine("vllm.model_executor.layers.quantization.utils.fp8_utils")
    module.get_w8a8_block_fp8_configs.cache_clear()
    return module


def expected(arguments: dict[str, Any], block: int) -> torch.Tensor:
    a, b = (arguments[name].float() for name in "AB")
    a_scale = arguments["As"].repeat_interleave(block, 1)[:, : a.shape[1]]
    b_scale = arguments["Bs"].repeat_interleave(block, 0).repeat_interleave(block, 1)
    return (a * a_scale) @ (b * b_scale[: b.shape[0], : b.shape[1]]).T


@pytest.mark.filterwarnings("ignore")
def test_vllm_multiplies_with_the_config_of_the_tuner(fp8_utils: Any) -> None:
    arguments = make_arguments(LAYER, 5)
    run_product(arguments, SMALL)
    reference = expected(arguments, LAYER.block)
    assert torch.allclose(arguments["out"].float(), reference, rtol=0.02, atol=0.02)
    assert engine_config(LAYER, 5)["BLOCK_SIZE_M"] == 64, "vLLM's default"
    with pytest.raises(Exception, match="BLOCK_SIZE_N"):
        run_product(arguments, {"BLOCK_SIZE_M": 16})
    assert fp8_utils.get_w8a8_block_fp8_configs.__module__ == fp8_utils.__name__


@pytest.mark.filterwarnings("ignore")
def test_a_product_that_takes_no_config_is_not_tuned(
    fp8_utils: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = make_arguments(LAYER, 5)
    result = torch.zeros_like(arguments["out"])
    monkeypatch.setattr(fp8_utils, "w8a8_triton_block_scaled_mm", lambda *_: result)
    with pytest.raises(RuntimeError, match="no tuned config"):
        run_product(arguments, SMALL)


@pytest.mark.filterwarnings("ignore")
def test_vllm_reads_the_table_of_a_tuned_product(
    fp8_utils: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dejavu_cache.engines.vllm.block_products._grid_configs", lambda *_: [SMALL]
    )
    store = FileStore(tmp_path / "store")
    resolver = Resolver(TieredStore([store]), Mode.TUNE, 0.0, current_settings())
    for tokens in (4, 2):
        kernel = product_kernel(LAYER, (2, 4))
        case = Case(f"{tokens}", kernel, (1,), partial(make_arguments, LAYER, tokens))
        resolver.resolve(make_request(case), wait=0.0)
    (table,) = collect_tables(store)
    assert set(table.configs) == {2, 4}
    (file,) = TABLE_FILES["vllm"]([table._replace(device="NVIDIA_H200")], table.triton)
    write_tables([file], tmp_path / "configs")
    monkeypatch.setattr(fp8_utils, "__file__", str(tmp_path / "fp8_utils.py"))
    fp8_utils.get_w8a8_block_fp8_configs.cache_clear()
    for tokens in (2, 4):
        assert engine_config(LAYER, tokens) == table.configs[tokens]
