"""Sweep suite of what Liger autotunes, forward and backward, in bfloat16.

    dejavu-cache sweep records/liger_suite.py

That is its fused experts (here Qwen3-30B-A3B's) and DyT; its fused MLP, which has a key for every
128 tokens, is left out. Norms, losses, RoPE, SwiGLU and GeGLU compute their one config from the
sizes. Inputs are tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from operation_cases import DEVICE, cases_of, operations_of, randn

from dejavu_cache.sweep.suite import Case

INPUTS = ((2048,), (16384,))
HELD_OUT = ((4096,), (12288,))


def experts(tokens: int) -> Any:
    from liger_kernel.ops.fused_moe import LigerFusedMoEFunction

    weights, chosen = torch.rand(tokens, 128, device=DEVICE).softmax(-1).topk(8)
    layers = randn(128, 2 * 768, 2048), randn(128, 2048, 768)
    x, weights = randn(tokens, 2048), weights.bfloat16().requires_grad_()
    return LigerFusedMoEFunction.apply(x, *layers, chosen.int(), weights)


def dyt(tokens: int) -> Any:
    from liger_kernel.ops.dyt import LigerDyTFunction

    return LigerDyTFunction.apply(randn(tokens, 4096), randn(1), randn(4096), randn(4096))


FUNCTIONS = (experts, dyt)


def suite(only: str = "") -> Iterator[Case]:
    """Yield a case for each launch of the operations."""
    yield from cases_of(operations_of(FUNCTIONS, INPUTS, only))
