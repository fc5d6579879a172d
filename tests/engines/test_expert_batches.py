"""Fused experts are measured on several batches where each of them chooses other experts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dejavu_cache.engines.vllm import fused_moe
from dejavu_cache.engines.vllm.fused_moe import BATCHES, ExpertLayer, make_arguments

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
