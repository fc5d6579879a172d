"""TMA's descriptors of caches, by which the Hopper kernel loads pages; each is made once."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

from ...triton_internals.binder import RepeatedLaunch

__all__ = ["box_rows", "describe", "descriptor_of", "descriptors_like", "padded"]

SWIZZLED_ROW = 128
"""Bytes of a row of swizzled shared memory, which a box of TMA is as wide as, at most."""


def padded(head: int) -> int:
    """Return the head size of the kernel's tiles: a power of two, at least 64."""
    return max(64, 1 << (head - 1).bit_length())


def box_rows(page: int, tile: int) -> int:
    """Return the rows of a box of TMA, a power of two: at most 64, and none crosses page or tile."""
    return min(page & -page, tile, 64)


class Address(NamedTuple):
    """Memory of a tensor, without keeping it alive."""

    dtype: torch.dtype
    address: int

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return self.address


MOST_DESCRIPTORS = 4096
"""Limit of descriptors that are kept per shape."""


@lru_cache(maxsize=64)
def _descriptors(*form: Any) -> dict[int, Any]:
    return {}


def descriptors_like(cache: torch.Tensor, box: int, expanded: bool) -> dict[int, Any]:
    """Return the descriptors, by address, of the caches that have a cache's shape and strides.

    Args:
        cache: keys or values.
        box: of `box_rows`.
        expanded: whether they are tensor maps, as a repeated launch takes them.
    """
    return _descriptors(cache.shape, cache.stride(), cache.dtype, box, expanded)


def descriptor_of(
    cache: torch.Tensor, box: int, like: dict[int, Any], launch: RepeatedLaunch, name: str
) -> Any:
    """Return the descriptor of a cache, made once for the same memory and shape.

    Args:
        cache: keys or values.
        box: of `box_rows`.
        like: `descriptors_like` it.
        launch: what takes the descriptor.
        name: its argument's name.
    """
    address = cache.data_ptr()
    descriptor = like.get(address)
    if descriptor is None:
        if len(like) >= MOST_DESCRIPTORS:
            like.clear()
        described = describe(cache, box)
        described.base = Address(cache.dtype, address)
        descriptor = like[address] = launch.expand(name, described)
    return descriptor


def describe(cache: torch.Tensor, box: int) -> Any:
    """Make TMA's descriptor of a cache: a matrix whose rows are one token's heads, or one of them.

    Its rows are `cache.stride(1)` elements apart. Rows that belong to no token of this cache, as in
    memory that layers or keys and values share, are never read.

    Args:
        cache: keys or values.
        box: of `box_rows`.
    """
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    blocks, page, heads, head = cache.shape
    of_blocks, of_slots, of_heads, _ = cache.stride()
    rows = (blocks - 1) * (of_blocks // of_slots) + page
    columns = head
    if of_heads % of_slots == 0:
        rows += (heads - 1) * (of_heads // of_slots)
    else:
        columns += (heads - 1) * of_heads
    size = cache.element_size()
    width = min(SWIZZLED_ROW, size * padded(head))
    layout = swizzled_layout(width, 8 * size)
    return TensorDescriptor(cache, [rows, columns], [of_slots, 1], [box, width // size], layout)


@cache
def swizzled_layout(width: int, bits: int) -> Any:
    """Return the layout of shared memory whose rows have `width` bytes, with elements of `bits`."""
    from triton.experimental.gluon.language import NVMMASharedLayout

    return NVMMASharedLayout(swizzle_byte_width=width, element_bitwidth=bits, rank=2)
