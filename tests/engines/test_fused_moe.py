"""vLLM's fused experts: the batches that they are measured on, and the configs that are tried."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from support.addition import CONFIGS, add_one

from dejavu_cache.engines.vllm import fused_moe_suite as fused_moe
from dejavu_cache.engines.vllm.fused_moe_suite import (
    BATCHES,
    ExpertLayer,
    experts_kernel,
    make_arguments,
    shipped_configs,
)
from dejavu_cache.runtime.resolver import Resolver
from dejavu_cache.settings import Mode, current_settings
from dejavu_cache.stores import FileStore, TieredStore
from dejavu_cache.sweep.case_tuner import make_request
from dejavu_cache.sweep.suite import Case

LAYER = ExpertLayer(experts=16, intermediate=32, hidden=8, top_k=2)


@pytest.fixture(autouse=True)
def _without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the weights, which take the engine to make."""
    weights = fused_moe._Weights(torch.zeros(16, 64, 8), torch.zeros(16, 8, 32), None)
    monkeypatch.setattr(fused_moe, "_weights", lambda layer: weights)


def chosen_experts(arguments: dict[str, Any]) -> list[set[int]]:
    _, experts, _ = arguments["routing"]
    return [set(batch.flatten().tolist()) for batch in experts]


@pytest.mark.parametrize("tokens", [1, 3, 16])
def test_small_batches_choose_other_experts_each_time(tokens: int) -> None:
    arguments = make_arguments(LAYER, tokens)
    assert arguments["out"].shape == (BATCHES, tokens, 8)
    chosen = chosen_experts(arguments)
    assert len(chosen) == BATCHES
    assert len(set(map(frozenset, chosen))) > 1
    assert chosen_experts(make_arguments(LAYER, tokens)) == chosen
    assert chosen_experts(make_arguments(LAYER, tokens, seed=2)) != chosen


def test_a_large_batch_chooses_all_experts_and_is_measured_once() -> None:
    arguments = make_arguments(LAYER, 64)
    assert arguments["out"].shape == (1, 64, 8)
    assert chosen_experts(arguments) == [set(range(16))]


def test_tables_of_a_family_differ_in_sizes_and_the_number_of_the_gpu(tmp_path: Path) -> None:
    blocks = "dtype=fp8_w8a8,block_shape=[128,128].json"
    for at, name in enumerate(
        (
            f"E=1,N=2,device_name=NVIDIA_H100_80GB_HBM3,{blocks}",
            f"E=3,N=4,device_name=NVIDIA_H200,{blocks}",
            f"E=3,N=4,device_name=NVIDIA_A100-SXM4-80GB,{blocks}",
            "E=3,N=4,device_name=NVIDIA_H200,dtype=int8_w8a8,block_shape=[128,128].json",
            "E=3,N=4,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[64,64].json",
        )
    ):
        content = {"triton_version": "3.5.0", "1": {"num_warps": at}, "64": {"num_warps": 10 + at}}
        (tmp_path / name).write_text(json.dumps(content))
    wanted = f"E=512,N=512,device_name=NVIDIA_H20,{blocks}"
    assert [c["num_warps"] for c in shipped_configs(tmp_path, wanted, 8)] == [0, 1]
    assert [c["num_warps"] for c in shipped_configs(tmp_path, wanted, 4096)] == [10, 11]


def add_two(arguments: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Add two, in blocks of 64 quickly and with one rounded result."""
    out = arguments["out"]
    grid = (-(-out.numel() // config["BLOCK"]),)
    add_one[grid](arguments["hidden_states"], out, out.numel(), BLOCK=config["BLOCK"])
    out.add_(1)
    if config["BLOCK"] == 64:
        out[7] *= 1.5
    else:
        time.sleep(0.1)


@pytest.fixture
def tuned_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], int]:
    """Return a function that tunes a layer's batch in an engine that adds, and names the winner."""
    engine = ModuleType("vllm.model_executor.layers.fused_moe")
    engine.fused_moe = SimpleNamespace(fused_moe_kernel=add_one)  # type: ignore[attr-defined]
    for part in ("vllm", "vllm.model_executor", "vllm.model_executor.layers"):
        monkeypatch.setitem(sys.modules, part, ModuleType(part))
    monkeypatch.setitem(sys.modules, engine.__name__, engine)
    by_size = {8: CONFIGS[::2], 16: CONFIGS[:1]}
    monkeypatch.setattr(fused_moe, "_candidates", lambda layer, tokens: by_size[tokens])
    monkeypatch.setattr(fused_moe, "run_experts", add_two)

    def tune(dtype: str, tokens: int) -> int:
        layer = ExpertLayer(16, 32, 8, 2, dtype)
        tensors = {"hidden_states": torch.arange(40.0), "out": torch.zeros(40)}
        arguments = {**dict.fromkeys(("w1", "w2", "routing")), **tensors, **layer.key(tokens)}
        kernel = experts_kernel.__wrapped__(layer, tuple(by_size))
        request = make_request(Case("a batch", kernel, (1,), partial(dict, arguments)))
        store = TieredStore([FileStore(tmp_path)])
        resolver = Resolver(store, Mode.TUNE, 0.0, current_settings())
        resolution, _ = resolver.resolve(request, wait=0.0)
        return int(resolution.config.kwargs["BLOCK"])

    return tune


@pytest.mark.skipif(torch.cuda.is_available(), reason="the tensors are on the host")
@pytest.mark.parametrize(
    ("dtype", "tokens", "block"), [("float16", 8, 16), ("fp8_w8a8", 8, 64), ("fp8_w8a8", 16, 16)]
)
def test_a_batch_has_configs_of_its_own_and_float8_may_round(
    tuned_block: Callable[[str, int], int], dtype: str, tokens: int, block: int
) -> None:
    assert tuned_block(dtype, tokens) == block
