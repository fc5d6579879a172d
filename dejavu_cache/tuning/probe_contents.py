"""What outputs hold before a launch, so that elements which the launch does not write show.

It is a NaN in floating-point outputs, and in others the original content with some bits flipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..triton_internals.triton_objects import dtype_name
from .argument_tensors import bits, open_for_writes, pieces, pieces_on_device

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Filler", "find_filler"]

_NANS = {
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

_FLIPS = (0x5A, 0x33, 0x6C)
"""Bits to flip in an integer or boolean, of which one leads to no element's result."""


class Filler:
    """Content of one output that no launch computes.

    Args:
        nan: the bits of a NaN, or None.
        flip: the bits to flip in the original content, where there is no NaN.

    Attributes:
        is_nan: whether there is a NaN.
    """

    def __init__(self, nan: int | None, flip: int) -> None:
        """Keep what is described at the class."""
        self.is_nan = nan is not None
        self._nan = nan
        self._flip = flip

    def __str__(self) -> str:
        """Return a text for people."""
        return "NaN" if self.is_nan else "something else"

    def write(self, tensor: Tensor, original: Tensor) -> None:
        """Fill a tensor."""
        with open_for_writes(tensor) as opened:
            for part, before in pieces(opened, original):
                if self._nan is None:
                    bits(part).copy_(bits(before) ^ self._flip)
                else:
                    bits(part).fill_(self._nan)

    def holds(self, part: Tensor, original: Tensor) -> Tensor:
        """Return which elements of a part have not been written since."""
        return bits(part) == (bits(original) ^ self._flip if self._nan is None else self._nan)


def find_filler(tensor: Tensor, original: Tensor, *, with_integers: bool) -> Filler | None:
    """Return what to fill an output with whose result a tensor holds, or None.

    Args:
        tensor: an output, as a launch has left it.
        original: its content before.
        with_integers: whether others than floating-point outputs may be filled, too.
    """
    nan = _NANS.get(dtype_name(tensor.dtype))
    if nan is not None:
        return Filler(nan, 0)
    for flip in _FLIPS if with_integers else ():
        filler = Filler(None, flip)
        if not any(
            bool(filler.holds(part, before).any())
            for part, before in pieces_on_device(tensor, original)
        ):
            return filler
    return None
