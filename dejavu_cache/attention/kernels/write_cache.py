"""A kernel that writes new tokens' keys and values into the cache, for attention that reads them.

An engine's own kernel may take a program per token: for 8,000 tokens, four times as long as memory
needs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ...triton_internals.binder import RepeatedLaunch
from ..batch import Batch, NewTokens
from .kernel_call import KernelCall

ROWS = 16
"""Tokens of a program, each with one KV head."""


@triton.jit
def write_rows(
    cache, rows, slots, first, count, kv_head, stride_token, stride_head, stride_page, stride_slot,
    stride_kv_head, ROWS: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Write one KV head's keys or values of new tokens into the cache, but for negative slots."""
    tokens = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_PADDED)
    slot = tl.load(slots + first + tokens, mask=tokens < count, other=-1)
    inside = (slot >= 0)[:, None] & (dims < HEAD)[None, :]
    head = kv_head.to(tl.int64)
    source = rows + (first + tokens).to(tl.int64)[:, None] * stride_token + head * stride_head
    at = slot // PAGE * stride_page + slot % PAGE * stride_slot + head * stride_kv_head
    tl.store(
        cache + at[:, None] + dims[None, :],
        tl.load(source + dims[None, :], mask=inside),
        mask=inside,
    )


@triton.jit(do_not_specialize=["num_tokens"])
def write_cache_kernel(
    k_cache, v_cache, new_keys, new_values, new_slots, num_tokens, stride_page, stride_slot, stride_kv_head,
    stride_new_key, stride_new_key_head, stride_new_value, stride_new_value_head,
    KV_HEADS: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Write the keys or the values of some tokens and one KV head."""
    kv_head = tl.program_id(0) % KV_HEADS
    first = tl.program_id(0) // KV_HEADS * ROWS
    count = num_tokens - first
    if tl.program_id(1) == 0:
        write_rows(
            k_cache, new_keys, new_slots, first, count, kv_head, stride_new_key, stride_new_key_head,
            stride_page, stride_slot, stride_kv_head, ROWS, HEAD, HEAD_PADDED, PAGE,
        )  # fmt: skip
    else:
        write_rows(
            v_cache, new_values, new_slots, first, count, kv_head, stride_new_value, stride_new_value_head,
            stride_page, stride_slot, stride_kv_head, ROWS, HEAD, HEAD_PADDED, PAGE,
        )  # fmt: skip


def suits(batch: Batch, new: NewTokens) -> bool:
    """Check that a batch's new keys and values can be written as they are."""
    return (
        batch.k_cache.dtype == batch.q.dtype
        and new.keys.dtype == new.values.dtype == batch.q.dtype
        and new.keys.stride(2) == new.values.stride(2) == 1
        and new.slots.dtype == torch.int64
        and len(new.slots) == batch.num_tokens
    )


def write(batch: Batch, new: NewTokens) -> RepeatedLaunch | None:
    """Write a batch's new keys and values into its caches, and return how to write others.

    Returns:
        A launch of caches, keys, values and slots; None if nothing can be repeated.
    """
    cache = batch.k_cache
    blocks = -(-batch.num_tokens // ROWS)
    call = KernelCall(
        write_cache_kernel,
        (blocks * batch.kv_heads, 2),
        (
            cache, batch.v_cache, *new, batch.num_tokens, *cache.stride()[:3],
            *new.keys.stride()[:2], *new.values.stride()[:2],
        ),
        {
            "KV_HEADS": batch.kv_heads, "HEAD": cache.shape[3], "HEAD_PADDED": batch.head_padded,
            "PAGE": cache.shape[1], "ROWS": ROWS,
        },
    )  # fmt: skip
    return call.launch(("k_cache", "v_cache", "new_keys", "new_values", "new_slots"))
