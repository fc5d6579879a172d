"""Tell how far two tensors differ, beyond what may differ between configs of one kernel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..triton_internals.triton_objects import dtype_name

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TOLERANCES", "describe_difference"]

TOLERANCES = {"float64": 1e-6, "float32": 1e-2, "float16": 2e-2, "bfloat16": 4e-2}
"""Largest difference by dtype, as a share of an element plus the scale of its tensor.

Configs differ in the order of their sums and in what passes through TF32; wrong ones differ by
whole terms.
"""

LOW_PRECISION = 0.25
"""The same for floating-point types of 8 bits and less."""

MEDIANS = 8.0
"""Largest scale of a tensor in medians of its elements, so that outliers do not hide the others."""

FILL_RATIO = 4096.0
"""Least ratio to the other elements of a value that masks or pads, such as -1e4 in logits."""

SAMPLE = 2**20
"""Number of elements, evenly spaced, of which the median is taken."""


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
        tolerance = TOLERANCES.get(dtype_name(expected.dtype), LOW_PRECISION)
    wide = torch.float64 if expected.dtype == torch.float64 else torch.float32
    left, right = actual.to(wide), expected.to(wide)
    finite = torch.isfinite(right)
    magnitude = torch.where(finite, right.abs(), torch.zeros_like(right))
    scale = _scale(magnitude, int(finite.sum()))
    odd = torch.where(
        finite, ~torch.isfinite(left), ~((left == right) | (left.isnan() & right.isnan()))
    )
    error = torch.where(finite & ~odd, (left - right).abs(), torch.zeros_like(right))
    # Two products: the sum of the largest numbers would be infinite.
    far = odd | (error > tolerance * magnitude + tolerance * scale)
    if not bool(far.any()):
        return ""
    extent = f"differs in {int(far.sum())} of {expected.numel()} elements"
    if bool(odd.any()):
        return f"{extent}, {int(odd.sum())} of them NaN or infinite on one side only"
    return f"{extent}, by up to {float(error.max()):.3g}; the tensor's scale is {scale:.3g}"


def _scale(magnitude: Tensor, count: int) -> float:
    """Return the size of a tensor's typical elements, by which those near 0 are judged.

    It is the root mean square, but at most a few medians: one element of -1e9 must not hide
    that all others are wrong. It belongs to the tensor and not to the element, because an element
    near 0 may be a sum of large terms.

    Args:
        magnitude: absolute values, 0 where they are not finite.
        count: the number of finite elements.
    """
    import torch

    peak = float(magnitude.max()) if count else 0.0
    if not peak:
        return 0.0
    # Relative to about the largest, squares do not overflow. CUDA multiplies by the reciprocal,
    # which must be no subnormal number.
    bound = 1e300 if magnitude.dtype == torch.float64 else 1e30
    unit = min(max(peak, 1 / bound), bound)
    squares = (magnitude / unit).square().sum(dtype=torch.float64)
    root_mean_square = unit * math.sqrt(float(squares) / count)
    return min(root_mean_square, MEDIANS * _median(magnitude))


def _median(magnitude: Tensor) -> float:
    """Return the median of the elements that are neither 0 nor a fill value.

    Elements that are 0 are skipped, since results may be sparse.
    """
    import torch

    elements = magnitude.flatten()
    sample = elements[:: -(-elements.numel() // SAMPLE)]
    ordered = sample[sample > 0].sort().values
    if not ordered.numel():  # few elements are not 0, and the sample has none of them
        ordered = elements[elements > 0][:SAMPLE].sort().values
    median = _middle(ordered)
    # A mask may cover most elements: then the median is its value, exactly and many times.
    smaller = ordered[: int(torch.searchsorted(ordered, median))]
    fills = int((ordered == median).sum())
    is_fill = 4 * fills >= ordered.numel() and 64 * smaller.numel() >= ordered.numel()
    if is_fill and float(median) > FILL_RATIO * float(_middle(smaller)):
        median = _middle(smaller)
    return float(median)


def _middle(ordered: Tensor) -> Tensor:
    return ordered[(ordered.numel() - 1) // 2]
