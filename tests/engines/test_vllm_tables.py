"""vLLM reads the table that is exported for it, by its own functions; skipped without vLLM."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from support.records import MOMENT, context

from dejavu_cache.engines.tuned_tables import collect_tables, vllm_files, write_table
from dejavu_cache.model.record import Measurement, Record, Winner
from dejavu_cache.model.scenario import Config, Scenario
from dejavu_cache.stores import MemoryStore

vllm = pytest.importorskip("vllm")
pytestmark = pytest.mark.filterwarnings("ignore")

DEVICE = "NVIDIA H200"
LAYER = {"E": 8, "N": 128, "K": 512, "top_k": 2}


@pytest.mark.parametrize("block", [None, 0, 128])
def test_vllm_reads_what_is_exported(
    block: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = import_module("vllm.model_executor.layers.fused_moe.fused_moe")
    platform = type(loader.current_platform)
    monkeypatch.setattr(platform, "get_device_name", classmethod(lambda cls, device_id=0: DEVICE))
    monkeypatch.setenv("VLLM_TUNED_CONFIG_FOLDER", str(tmp_path))
    values = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}
    best = Config(params=values, options={"num_warps": 4, "num_stages": 3, "num_ctas": 1})
    scales = dict.fromkeys(("group_n", "group_k"), block or 0)
    record = Record(
        scenario=Scenario(args={**LAYER, **scales, "use_fp8_w8a8": block is not None, "M": 64}),
        winner=Winner(config=best, at=MOMENT),
        measurements=(Measurement(config=best, median=1.0, at=MOMENT),),
    )
    store = MemoryStore()
    store.put(context(kernel="fused_moe_kernel", device=DEVICE, triton="3.6.0"), [record])
    for name, content in vllm_files(collect_tables(store), "3.6.0").items():
        write_table(name, content, tmp_path)
    loader.get_moe_configs.cache_clear()
    dtype = None if block is None else "fp8_w8a8"
    table = loader.get_moe_configs(LAYER["E"], LAYER["N"], dtype, block or None, block or None)
    loader.get_moe_configs.cache_clear()
    assert table == {64: {**values, "num_warps": 4, "num_stages": 3}}
