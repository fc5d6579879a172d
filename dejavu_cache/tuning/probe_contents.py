"""Contents of floating-point tensors by which to see what a launch writes.

Integers are not changed: they may be addresses, or locks for which a kernel waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..triton_internals.triton_objects import dtype_name

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "blank_elements",
    "can_be_probed",
    "checksums",
    "choose",
    "equal_bits",
    "fill_blank",
    "have_same_bits",
    "is_nudged",
    "nudge",
]

BLANKS = {
    "float64": 0x7FFA5A5A5A5A5A5A,
    "float32": 0x7FDA5A5A,
    "float16": 0x7EDA,
    "bfloat16": 0x7FDA,
    "float8_e4m3fn": -1,
    "float8_e5m2": -2,
    "float8_e4m3fnuz": -128,
    "float8_e5m2fnuz": -128,
}
"""A NaN by dtype, as an integer: where the type allows it, one that no computation yields."""

PIECE = 2**24
"""Number of elements that are changed at once."""

SUMMED = 2**20
"""Number of elements with one checksum."""


def can_be_probed(tensor: Tensor) -> bool:
    """Return whether a tensor is of a type that has NaN."""
    return dtype_name(tensor.dtype) in BLANKS


def fill_blank(tensor: Tensor, mask: Tensor) -> None:
    """Fill the elements of a mask with the NaN of the tensor's dtype."""
    _bits(tensor).masked_fill_(mask, BLANKS[dtype_name(tensor.dtype)])


def blank_elements(tensor: Tensor) -> Tensor:
    """Return which elements hold the NaN of `fill_blank`."""
    return _bits(tensor) == BLANKS[dtype_name(tensor.dtype)]


def equal_bits(left: Tensor, right: Tensor) -> Tensor:
    """Return which elements of two tensors hold the same bits."""
    return _bits(left) == _bits(right)


def have_same_bits(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors of one dtype hold the same bits, NaN included."""
    import torch

    if left.dtype.is_floating_point:
        left, right = _bits(left), _bits(right)
    return bool(torch.equal(left, right))


def choose(mask: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return the elements of `left` where a mask is true, and of `right` elsewhere."""
    import torch

    return torch.where(mask, _bits(left), _bits(right)).view(left.dtype)


def nudge(tensor: Tensor, number: int) -> None:
    """Change the last bits of all elements, those excepted that are or become not finite.

    A launch then computes nearly what it would compute without that. So nothing can go wrong that
    NaN in an input may cause, such as an index out of bounds.

    Args:
        tensor: the tensor.
        number: the bits to flip; tensors that are copies of each other need different ones.
    """
    for piece in _pieces(tensor):
        piece.copy_(_flip_last_bits(piece, number))


def is_nudged(tensor: Tensor, original: Tensor, number: int) -> bool:
    """Return whether a tensor holds what `nudge` made of the original, in all elements."""
    return all(
        bool(equal_bits(piece, _flip_last_bits(before, number)).all())
        for piece, before in zip(_pieces(tensor), _pieces(original), strict=True)
    )


def checksums(tensor: Tensor) -> Tensor:
    """Return numbers by which to see a change of a tensor's bits or of their order."""
    import torch

    # No longer than the tensor: torch uses threads for long ones, which a forked child has lost.
    weights = torch.arange(1, 2 * min(SUMMED, tensor.numel()), 2, device=tensor.device)
    sums = [
        (bits * weights[: bits.numel()]).sum()
        for piece in _pieces(tensor, SUMMED)
        for bits in _bits(piece).flatten().split(SUMMED)
    ]
    return torch.stack(sums)


def _flip_last_bits(tensor: Tensor, number: int) -> Tensor:
    import torch

    changed = (_bits(tensor) ^ number).view(tensor.dtype)
    return choose(torch.isfinite(tensor.float()) & torch.isfinite(changed.float()), changed, tensor)


def _pieces(tensor: Tensor, elements: int = PIECE) -> Iterator[Tensor]:
    """Yield views of parts, so that a large input needs no further copies as a whole."""
    if not tensor.dim():
        yield tensor.detach()
        return
    longest = max(range(tensor.dim()), key=tensor.size)
    length = max(1, elements * tensor.size(longest) // tensor.numel())
    yield from tensor.detach().split(length, longest)


def _bits(tensor: Tensor) -> Tensor:
    """Return a view of a tensor's bits as integers, unseen by autograd."""
    import torch

    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().view(integers[tensor.element_size()])
