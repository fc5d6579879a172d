"""Class `LayerTensors`: what one layer brings to the attention of a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .new_tokens import NewTokens

__all__ = ["LayerTensors", "Scales"]

Scales = tuple[torch.Tensor, torch.Tensor]
"""Factors of the cached keys and of the cached values, one float32 each."""


@dataclass(eq=False, slots=True)
class LayerTensors:
    """Tensors of one layer, as in `Plan.run`.

    Every layer makes one, and a NamedTuple takes twice as long to make.

    Attributes:
        q: queries.
        k_cache: keys.
        v_cache: values.
        out: tensor to write to.
        new: new tokens to write into the cache; None if they are there already.
        scales: factors of the cache; None unless there are both.
    """

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    out: torch.Tensor
    new: NewTokens | None
    scales: Scales | None
