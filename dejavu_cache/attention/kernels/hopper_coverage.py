"""What the Hopper kernel covers: the GPU, and a batch's dtypes, alignment and features."""

from __future__ import annotations

from functools import cache

import torch

from ...triton_internals.environment import is_interpreting
from ...triton_internals.versions import GLUON_IS_COVERED
from ..batch import Batch
from .hopper_descriptors import padded

__all__ = ["available", "has_no_gaps", "holds_words", "needs_heads_first", "suits"]

CONVERTED_DTYPES = torch.float8_e4m3fn, torch.float8_e5m2
"""Dtypes of caches whose tiles the kernel converts; `hopper_cast` says how."""


def suits(batch: Batch) -> bool:
    """Check a batch for a Hopper GPU, dtypes that it covers, TMA's alignment and plain features."""
    cache = batch.k_cache
    aligned = 16 // cache.element_size()
    return (
        batch.alibi_slopes is None
        and batch.q.element_size() == 2
        and (cache.dtype == batch.q.dtype or cache.dtype in CONVERTED_DTYPES)
        and batch.group <= 64
        and holds_words(batch.q)
        and holds_words(batch.out)
        and cache.shape[1] % 8 == 0
        and cache.stride(1) > 0
        and cache.stride(1) % aligned == 0
        and cache.stride(0) % cache.stride(1) == 0
        and (cache.stride(2) % cache.stride(1) == 0 or cache.stride(2) % aligned == 0)
        and has_no_gaps(cache, padded(cache.shape[3]))
        and cache.data_ptr() % 16 == 0
        and batch.v_cache.data_ptr() % 16 == 0
        and available(batch.q.device)
    )


def holds_words(tensor: torch.Tensor) -> bool:
    """Check that the rows of a tensor, [token, head], consist of words of two 2-byte elements."""
    return (
        tensor.data_ptr() % 4 == 0
        and tensor.shape[2] % 2 == 0
        and tensor.stride(0) % 2 == 0
        and tensor.stride(1) % 2 == 0
    )


def has_no_gaps(cache: torch.Tensor, head_padded: int) -> bool:
    """Check that what is loaded beyond a head's end is another head of the cache, or zeros.

    Zeros of the queries multiply it, and zero times NaN is not zero.

    Args:
        cache: keys.
        head_padded: elements of a head that are loaded.
    """
    _, _, heads, head = cache.shape
    heads_are_rows = cache.stride(2) % cache.stride(1) == 0
    return heads == 1 or heads_are_rows or cache.stride(2) == head or head_padded == head


def needs_heads_first(head: int, heads: int) -> bool:
    """Check whether a cache of keys beside values has gaps where a token's heads follow each other.

    Args:
        head: elements of a head.
        heads: number of KV heads.
    """
    return heads > 1 and padded(head) != head


@cache
def available(device: torch.device) -> bool:
    """Return whether the kernel runs on a device at all."""
    if (
        not GLUON_IS_COVERED
        or device.type != "cuda"
        or not torch.cuda.is_available()
        or is_interpreting()
    ):
        return False
    return torch.version.hip is None and torch.cuda.get_device_capability(device)[0] == 9
