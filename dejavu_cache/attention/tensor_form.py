"""Class `TensorForm`: what a planned launch takes for granted of a tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["TensorForm", "form_of", "has_form"]


@dataclass(frozen=True, slots=True)
class TensorForm:
    """Properties of a layer's tensor that must be as planned.

    `misaligned` is its address modulo 16.
    """

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    misaligned: int


def form_of(tensor: torch.Tensor) -> TensorForm:
    """Return a tensor's form."""
    return TensorForm(
        tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.data_ptr() & 15
    )


def has_form(tensor: torch.Tensor, form: TensorForm) -> bool:
    """Check a tensor for a form; each layer asks, so nothing is built for the comparison."""
    return (
        tensor.shape == form.shape
        and tensor.stride() == form.strides
        and tensor.dtype is form.dtype
        and tensor.device == form.device
        and tensor.data_ptr() & 15 == form.misaligned
    )
