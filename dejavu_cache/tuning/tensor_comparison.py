"""Tell how far two tensors differ, beyond what may differ between configs of one kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from ..triton_internals.triton_objects import dtype_name
from .argument_tensors import bits, pieces

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TOLERANCES", "compare_tensors", "describe_difference", "scale_of"]

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


def compare_tensors(actual: Tensor, expected: Tensor, tolerance: float | None = None) -> str:
    """Describe how far a tensor is from the expected one; return an empty string if they agree.

    Integers and booleans must be equal. NaN and infinities must stand in the same places.

    Args:
        actual: a tensor of the shape and dtype of `expected`.
        expected: a tensor.
        tolerance: the largest relative difference; None for that of the dtype.
    """
    if not expected.numel():
        return ""
    scale = scale_of(lambda: (part for (part,) in pieces(expected)))
    return describe_difference(pieces(actual, expected), scale, tolerance)


def describe_difference(
    parts: Iterable[tuple[Tensor, Tensor]], scale: float, tolerance: float | None = None
) -> str:
    """Describe how far a tensor is from the expected one, as `compare_tensors` does.

    Args:
        parts: the same parts of both, one after the other; one at least.
        scale: the expected tensor's, by `scale_of`.
        tolerance: the largest relative difference; None for that of the dtype.
    """
    import torch

    counts, errors, elements = [], [], 0
    for actual, expected in parts:
        elements += expected.numel()
        far, odd, error = _compare(actual, expected, scale, tolerance)
        counts.append(torch.stack([far.sum(), odd.sum()]))
        errors.append(error)
    unequal, odd_ones = torch.stack(counts).sum(0).tolist()
    if not unequal:
        return ""
    extent = f"differs in {unequal} of {elements} elements"
    if not expected.is_floating_point():
        return extent
    if odd_ones:
        return f"{extent}, {odd_ones} of them NaN or infinite on one side only"
    largest = float(torch.stack(errors).max())
    return f"{extent}, by up to {largest:.3g}; the tensor's scale is {scale:.3g}"


def _compare(
    actual: Tensor, expected: Tensor, scale: float, tolerance: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return which elements differ, which by NaN or infinity, and the largest other difference."""
    import torch

    if not expected.is_floating_point():
        unequal = bits(actual) != bits(expected)
        return unequal, unequal, unequal.any()
    if tolerance is None:
        tolerance = TOLERANCES.get(dtype_name(expected.dtype), LOW_PRECISION)
    left, right = _widen(actual), _widen(expected)
    finite = torch.isfinite(right)
    odd = torch.where(
        finite, ~torch.isfinite(left), ~((left == right) | (left.isnan() & right.isnan()))
    )
    error = torch.where(finite & ~odd, (left - right).abs(), 0.0)
    # Two products: the sum of the largest numbers would be infinite.
    far = odd | (error > tolerance * _magnitude(expected) + tolerance * scale)
    return far, odd, error.max()


def _widen(tensor: Tensor) -> Tensor:
    import torch

    return tensor.to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)


def _magnitude(tensor: Tensor) -> Tensor:
    """Return the absolute values of a part, 0 where they are not finite."""
    import torch

    wide = _widen(tensor)
    return torch.where(torch.isfinite(wide), wide.abs(), 0.0)


def scale_of(parts: Callable[[], Iterator[Tensor]]) -> float:
    """Return the size of a tensor's typical elements, by which those near 0 are judged.

    It is the root mean square, but at most a few medians: one element of -1e9 must not hide
    that all others are wrong. It belongs to the tensor and not to the element, because an element
    near 0 may be a sum of large terms. Of other than floating-point tensors it is 0.

    Args:
        parts: iterates over the tensor's parts; called several times.
    """
    import torch

    first = next(parts())
    if not first.is_floating_point():
        return 0.0
    peaks = [
        torch.stack([part.max().double(), torch.isfinite(_widen(tensor)).sum().double()])
        for tensor in parts()
        for part in [_magnitude(tensor)]
    ]
    largest = torch.stack(peaks)
    peak, count = float(largest[:, 0].max()), float(largest[:, 1].sum())
    if not peak:
        return 0.0
    # Relative to about the largest, squares do not overflow. CUDA multiplies by the reciprocal,
    # which must be no subnormal number.
    bound = 1e300 if first.dtype == torch.float64 else 1e30
    unit = min(max(peak, 1 / bound), bound)
    squares = [(_magnitude(part) / unit).square().sum(dtype=torch.float64) for part in parts()]
    root_mean_square = unit * math.sqrt(float(torch.stack(squares).sum()) / count)
    return min(root_mean_square, MEDIANS * _median(parts))


def _median(parts: Callable[[], Iterator[Tensor]]) -> float:
    """Return the median of the elements that are neither 0 nor a fill value.

    Elements that are 0 are skipped, since results may be sparse.
    """
    import torch

    ordered = _sample(parts).sort().values
    median = _middle(ordered)
    # A mask may cover most elements: then the median is its value, exactly and many times.
    smaller = ordered[: int(torch.searchsorted(ordered, median))]
    fills = int((ordered == median).sum())
    is_fill = 4 * fills >= ordered.numel() and 64 * smaller.numel() >= ordered.numel()
    if is_fill and float(median) > FILL_RATIO * float(_middle(smaller)):
        median = _middle(smaller)
    return float(median)


def _sample(parts: Callable[[], Iterator[Tensor]]) -> Tensor:
    """Return magnitudes that are not 0, evenly spaced, or the first ones where those are few."""
    import torch

    step = -(-sum(part.numel() for part in parts()) // SAMPLE)
    start, spaced = 0, []
    for part in parts():
        magnitude = _magnitude(part).flatten()
        spaced.append(magnitude[start::step].clone())  # a view would keep the whole part
        start = (start - magnitude.numel()) % step
    sample = torch.cat(spaced)
    sample = sample[sample > 0]
    if sample.numel():
        return sample
    first = (_magnitude(part) for part in parts())
    return next(part[part > 0] for part in first if bool((part > 0).any()))[:SAMPLE]


def _middle(ordered: Tensor) -> Tensor:
    return ordered[(ordered.numel() - 1) // 2]
