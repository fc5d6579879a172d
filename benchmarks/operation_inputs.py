"""Inputs of the operations that launch kernels of public libraries."""

from __future__ import annotations

from typing import Any

DEVICE = "cuda"

Tensors = dict[str, Any]


def randn(*shape: int, dtype: str = "float32") -> Any:
    """Return normally distributed numbers on the GPU."""
    import torch

    return torch.randn(*shape, device=DEVICE, dtype=getattr(torch, dtype))
