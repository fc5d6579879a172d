"""Sweep suite of flash-linear-attention's operations, forward and backward, in bfloat16.

    dejavu-cache sweep records/fla_suite.py

Heads and widths are those of models: Qwen3-Next (gated delta rule), Kimi Linear (KDA), and the
library's own of 1.3B parameters. Inputs are batch and length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from operation_cases import DEVICE, cases_of, operations_of, randn

from dejavu_cache.sweep.suite import Case

INPUTS = ((1, 2048), (4, 4096), (1, 32768))
HELD_OUT = ((1, 8192), (4, 1536))
NORM_INPUTS = ((1, 3072), (1, 5120), (1, 7168))
"""Two, three and four times 65,536 rows of 32 heads at most: these are in keys of norms."""


def _gate(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    """Return logarithms of numbers between 0 and 1."""
    gate = torch.nn.functional.logsigmoid(torch.randn(*shape, device=DEVICE))
    return gate.to(dtype).requires_grad_()


def _share(*shape: int) -> Any:
    return torch.rand(*shape, device=DEVICE).bfloat16().requires_grad_()


def gated_delta_rule(batch: int, length: int, **options: Any) -> Any:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    q, k = (randn(batch, length, 16, 128) for _ in range(2))
    v, share = randn(batch, length, 32, 128), _share(batch, length, 32)
    gate = _gate(batch, length, 32)
    return chunk_gated_delta_rule(q, k, v, gate, share, use_qk_l2norm_in_kernel=True, **options)[0]


def kda(batch: int, length: int, **options: Any) -> Any:
    from fla.ops.kda import chunk_kda

    q, k, v = (randn(batch, length, 32, 128) for _ in range(3))
    gate, share = _gate(batch, length, 32, 128), _share(batch, length, 32)
    return chunk_kda(q, k, v, gate, share, use_qk_l2norm_in_kernel=True, **options)[0]


@torch.no_grad()
def gated_delta_rule_prompt(batch: int, length: int) -> Any:
    return gated_delta_rule(batch, length, output_final_state=True)


@torch.no_grad()
def kda_prompt(batch: int, length: int) -> Any:
    return kda(batch, length, output_final_state=True)


def gated_norm(batch: int, length: int) -> Any:
    from fla.modules.norm.fused_norm_gate import rms_norm_gated

    x, gate = (randn(batch, length, 32, 128) for _ in range(2))
    return rms_norm_gated(x, gate, randn(128), None)


@torch.no_grad()
def l2norm(batch: int, length: int) -> Any:
    """Run it alone; delta rules have gradients of 16 bits for it, KDA of 32."""
    from fla.modules.norm.l2norm import l2norm_bwd, l2norm_fwd

    y, rstd = l2norm_fwd(randn(batch, length, 32, 128))
    for dtype in (torch.bfloat16, torch.float32):
        l2norm_bwd(y, rstd, randn(*y.shape, dtype=dtype))
    return y


def short_convolution(batch: int, length: int) -> Any:
    from fla.modules.causal_conv1d import causal_conv1d

    return causal_conv1d(randn(batch, length, 8192), randn(8192, 4), activation="silu")[0]


def norm(batch: int, length: int) -> Any:
    from fla.modules.norm.layernorm import rms_norm

    return rms_norm(randn(batch, length, 2048), randn(2048), None)


def delta_rule(batch: int, length: int) -> Any:
    from fla.ops.delta_rule import chunk_delta_rule

    q, k, v = (randn(batch, length, 16, 128) for _ in range(3))
    share = _share(batch, length, 16)
    return chunk_delta_rule(q, k, v, share, use_qk_l2norm_in_kernel=True)[0]


def simple_gla(batch: int, length: int) -> Any:
    from fla.ops.simple_gla import chunk_simple_gla

    q, k, v = (randn(batch, length, 16, 128) for _ in range(3))
    return chunk_simple_gla(q, k, v, _gate(batch, length, 16))[0]


def gla(batch: int, length: int) -> Any:
    from fla.ops.gla import chunk_gla

    q, k, v = (randn(batch, length, 4, width) for width in (256, 256, 512))
    return chunk_gla(q, k, v, _gate(batch, length, 4, 256, dtype=torch.bfloat16))[0]


def rwkv7(batch: int, length: int) -> Any:
    from fla.ops.rwkv7 import chunk_rwkv7

    r, k, v, key = (randn(batch, length, 32, 64) for _ in range(4))
    key = torch.nn.functional.normalize(key, dim=-1)
    decay = _gate(batch, length, 32, 64, dtype=torch.bfloat16)
    return chunk_rwkv7(r, decay, k, v, -key, key * _share(batch, length, 32, 1))[0]


FUNCTIONS = (
    *(gated_delta_rule, gated_delta_rule_prompt, kda, kda_prompt),
    *(gated_norm, l2norm, short_convolution, norm, delta_rule),
    *(simple_gla, gla, rwkv7),
)


def suite(only: str = "") -> Iterator[Case]:
    """Yield a case for each launch of the operations."""
    operations = operations_of(FUNCTIONS, INPUTS, only)
    chosen = {operation.function for operation in operations}
    norms = [norm for norm in (gated_norm, l2norm) if norm in chosen]
    yield from cases_of([*operations, *operations_of(norms, NORM_INPUTS)])
