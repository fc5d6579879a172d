"""Device functions of the Hopper kernel that write new keys and values into the cache, in decoding.

Each unit writes the new tokens among its own keys just before it loads their tile, so that none
waits for what another one writes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

__all__ = ["NewRows", "write_tile"]


class NewRows(NamedTuple):
    """New keys and values in memory, [token, head], and the caches that they belong in.

    Attributes:
        new_keys: pointer to the first token's keys.
        new_values: likewise.
        new_slots: as in `NewTokens`.
        k_cache: pointer to the cache's keys.
        v_cache: likewise.
        stride_token: elements from one new token to the next, in keys and values.
        stride_head: elements from one of its heads to the next.
        stride_slot: elements from one token of the cache to the next, in a page.
    """

    new_keys: Any
    new_values: Any
    new_slots: Any
    k_cache: Any
    v_cache: Any
    stride_token: Any
    stride_head: Any
    stride_slot: Any


@gluon.jit
def write_tile(new, first, tokens, position, start, kv_head, page_rows, head_rows, head_columns, KIND: gl.constexpr):  # fmt: skip
    """Write the new tokens among a tile's keys, of all KV heads of a unit; runs in one warp.

    Args:
        new: `NewRows`.
        first: the unit's first new token.
        tokens: number of its new tokens.
        position: position of the first one.
        start: position of the tile's first key.
        kv_head: the unit's first KV head.
        page_rows: rows of TMA's matrix from one page to the next.
        head_rows: likewise, from one KV head to the next.
        head_columns: columns from one KV head to the next.
        KIND: the binary's.
    """
    WIDTH: gl.constexpr = KIND.head_padded // 2
    LANES: gl.constexpr = 32 // KIND.heads
    LAYOUT: gl.constexpr = gl.BlockedLayout(
        [1, WIDTH // LANES], [KIND.heads, LANES], [1, 1], [1, 0]
    )
    heads = kv_head + gl.arange(0, KIND.heads, gl.SliceLayout(1, LAYOUT))
    words = gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    inside = (heads >= 0)[:, None] & (words < KIND.head // 2)[None, :]
    begin = gl.maximum(position, start)
    for place in range(begin, gl.minimum(position + tokens, start + KIND.tile)):
        token = first + place - position
        slot = gl.load(new.new_slots + token)
        source = (token.to(gl.int64) * new.stride_token + heads * new.stride_head) // 2
        keys = gl.load(as_words(new.new_keys) + (source[:, None] + words[None, :]), mask=inside)
        values = gl.load(as_words(new.new_values) + (source[:, None] + words[None, :]), mask=inside)
        row = slot // KIND.page * page_rows + slot % KIND.page + heads * head_rows
        at = (row * new.stride_slot + heads * head_columns) // 2
        written = inside & (slot >= 0)
        gl.store(as_words(new.k_cache) + (at[:, None] + words[None, :]), keys, mask=written)
        gl.store(as_words(new.v_cache) + (at[:, None] + words[None, :]), values, mask=written)
    show_stores(begin)


@gluon.jit
def as_words(pointer):
    """Return a pointer to words of two 2-byte elements."""
    return pointer.to(gl.pointer_type(gl.int32), bitcast=True)


@gluon.jit
def show_stores(number):
    """Let TMA see what the threads of this warp have stored."""
    gl.inline_asm_elementwise(
        "fence.proxy.async.global; bar.warp.sync 0xffffffff; mov.b32 $0, $1;", "=r,r", [number],
        dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip
