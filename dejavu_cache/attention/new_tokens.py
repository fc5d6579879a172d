"""Class `NewTokens`: keys and values that attention reads beside the cache, and writes into it."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["NewTokens", "check_new"]


class NewTokens(NamedTuple):
    """Keys and values of a batch's new tokens, which are not in the cache yet.

    Attributes:
        keys: [num_tokens, num_kv_heads, head_size], of the queries' dtype. Only the last dimension
            must be contiguous.
        values: likewise.
        slots: where each token belongs, [num_tokens], int64: the number of its block times the
            block's size, plus its place in the block. Tokens with a negative slot are not written.
    """

    keys: torch.Tensor
    values: torch.Tensor
    slots: torch.Tensor


def check_new(new: NewTokens, q: torch.Tensor, k_cache: torch.Tensor) -> None:
    """Check new tokens against the queries and keys of their layer.

    Raises:
        ValueError: they do not fit; the message names the tensor.
    """
    expected = (len(q), *k_cache.shape[2:])
    for name, tensor in (("keys", new.keys), ("values", new.values)):
        if tensor.shape != expected or tensor.dtype != q.dtype or tensor.device != q.device:
            raise ValueError(
                f"new.{name}: {list(tensor.shape)}, {tensor.dtype}, {tensor.device}; expected "
                f"{list(expected)}, {q.dtype}, {q.device}"
            )
        if tensor.stride(2) != 1:
            raise ValueError(
                f"new.{name}: strides {list(tensor.stride())}; expected 1 as the last of them"
            )
    slots = new.slots
    if slots.shape != expected[:1] or slots.dtype != torch.int64 or slots.stride() != (1,):
        raise ValueError(
            f"new.slots: {list(slots.shape)}, {slots.dtype}, strides {list(slots.stride())}; "
            f"expected {len(q)} numbers of 64 bits, one behind the other"
        )
    if slots.device != q.device:
        raise ValueError(f"new.slots: on {slots.device}; q is on {q.device}")
