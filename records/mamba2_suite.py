"""Sweep suite of Mamba 2's operations in mamba-ssm, forward and backward, in bfloat16.

    dejavu-cache sweep records/mamba2_suite.py

Heads and widths are those of Mamba 2 with 2.7B parameters. Inputs are batch and length.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from operation_cases import DEVICE, cases_of, operations_of, randn

from dejavu_cache.sweep.suite import Case

INPUTS = ((1, 2048), (4, 4096), (1, 32768))
HELD_OUT = ((1, 8192), (4, 1536))

HEADS, WIDTH, STATE, CHUNK, FEATURES = 80, 64, 128, 256, 2560


def _import_triton_code() -> None:
    """Have the package be without its `__init__`, which needs its compiled extension."""
    if "mamba_ssm" not in sys.modules:
        spec = importlib.util.find_spec("mamba_ssm")
        if spec is None:
            raise ModuleNotFoundError("No module named 'mamba_ssm'")
        package = sys.modules["mamba_ssm"] = types.ModuleType("mamba_ssm")
        package.__path__ = list(spec.submodule_search_locations or ())


def _scan(batch: int, length: int, **options: Any) -> Any:
    _import_triton_code()
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    x, steps = randn(batch, length, HEADS, WIDTH), randn(batch, length, HEADS)
    b, c = (randn(batch, length, 1, STATE) for _ in range(2))
    decay = -torch.rand(HEADS, device=DEVICE)
    skip, bias = torch.ones(HEADS, device=DEVICE), torch.rand(HEADS, device=DEVICE)
    per_head = [tensor.requires_grad_() for tensor in (decay, skip, bias)]
    return mamba_chunk_scan_combined(
        x, steps, per_head[0], b, c, CHUNK,
        D=per_head[1], dt_bias=per_head[2], dt_softplus=True, **options,
    )  # fmt: skip


def scan(batch: int, length: int) -> Any:
    return _scan(batch, length)


@torch.no_grad()
def scan_prompt(batch: int, length: int) -> Any:
    return _scan(batch, length, return_final_states=True)[0]


def norm(batch: int, length: int) -> Any:
    _import_triton_code()
    from mamba_ssm.ops.triton.layer_norm import rms_norm_fn

    residual = randn(batch, length, FEATURES, dtype=torch.float32)
    weight = randn(FEATURES, dtype=torch.float32)
    return rms_norm_fn(randn(batch, length, FEATURES), weight, None, residual=residual)


FUNCTIONS = (scan, scan_prompt, norm)


def suite(only: str = "") -> Iterator[Case]:
    """Yield a case for each launch of the operations."""
    yield from cases_of(operations_of(FUNCTIONS, INPUTS, only))
