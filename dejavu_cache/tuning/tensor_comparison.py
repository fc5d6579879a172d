"""Tell whether two tensors agree, up to what may differ between configs of one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TOLERANCES", "describe_difference", "have_same_bits"]

TOLERANCES = {"float64": 1e-6, "float32": 1e-2, "float16": 2e-2, "bfloat16": 4e-2}
"""Largest difference by dtype, as a share of an element plus the root mean square of its tensor.

Configs differ in the order of their sums and in what passes through TF32; wrong ones differ by
whole terms.
"""

LOW_PRECISION = 0.25
"""The same for floating-point types of 8 bits and less."""


def describe_difference(actual: Tensor, expected: Tensor, tolerance: float | None = None) -> str:
    """Describe how far a tensor is from the expected one; return an empty string if they agree.

    Integers and booleans must be equal. NaN and infinities must stand in the same places.

    Args:
        actual: a tensor of the shape and dtype of `expected`.
        expected: a tensor.
        tolerance: the largest relative difference; None for that of the dtype.
    """
    import torch

    if not expected.is_floating_point():
        unequal = int((actual != expected).sum())
        return f"differs in {unequal} of {expected.numel()} elements" if unequal else ""
    if tolerance is None:
        name = str(expected.dtype).removeprefix("torch.")
        tolerance = TOLERANCES.get(name, LOW_PRECISION)
    wide = torch.float64 if expected.dtype == torch.float64 else torch.float32
    left, right = actual.to(wide), expected.to(wide)
    finite = torch.isfinite(right)
    magnitude = torch.where(finite, right.abs(), torch.zeros_like(right))
    scale = (magnitude.square().sum() / finite.sum().clamp(min=1)).sqrt()
    odd = torch.where(
        finite, ~torch.isfinite(left), ~((left == right) | (left.isnan() & right.isnan()))
    )
    error = torch.where(finite & ~odd, (left - right).abs(), torch.zeros_like(right))
    far = odd | (error > tolerance * (magnitude + scale))
    if not bool(far.any()):
        return ""
    extent = f"differs in {int(far.sum())} of {expected.numel()} elements"
    if bool(odd.any()):
        return f"{extent}, {int(odd.sum())} of them NaN or infinite on one side only"
    return (
        f"{extent}, by up to {float(error.max()):.3g}; the root mean square is {float(scale):.3g}"
    )


def have_same_bits(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors hold the same bits, NaN included."""
    import torch

    if not left.dtype.is_floating_point:
        return bool(torch.equal(left, right))
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    as_integer = integers[left.element_size()]
    return bool(torch.equal(left.detach().view(as_integer), right.detach().view(as_integer)))
