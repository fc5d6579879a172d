"""Device functions of the Hopper kernel for the rows of a Q block: queries, softmax and results."""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ...triton_internals.versions import reinterpret_shared
from ..schedule import PART_COLUMNS
from .hopper_kind import ROWS
from .hopper_products import first_column, product_layout, take_columns

__all__ = [
    "EXTRA", "LANES", "LOG2E", "WORDS", "TokenHeads", "as_words", "load_queries", "softmax", "store_part",
    "store_rows",
]  # fmt: skip

reinterpret = reinterpret_shared(gl)

EXTRA = gl.constexpr(PART_COLUMNS)
"""Columns of a partial result beside the output."""

LANES = gl.constexpr(
    gl.DistributedLinearLayout(
        [[8, 0]], [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [ROWS.value, 4]
    )
)
"""Layout of one number per row and lane that holds some of the row of a product of wgmma."""

WORDS = gl.constexpr(gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0]))
"""Layout of rows that are read and written 16 bytes at a time, as words of two 2-byte elements.

Triton moves 2-byte elements through a register each, and packs and unpacks them.
"""

LOG2E = gl.constexpr(1.4426950408889634)

GROWTH = gl.constexpr(8.0)
"""Binary orders by which scores of a prompt may exceed their peak until it is raised.

Weights are at most 256 then, which float16 holds. FlashAttention 4 leaves its maximum likewise.
"""


class TokenHeads(NamedTuple):
    """Queries or outputs in memory, [token, head]: a pointer to the first, and the strides."""

    pointer: Any
    stride_token: Any
    stride_head: Any


@gluon.jit
def as_words(tile, TOKENS: gl.constexpr, HEAD_PADDED: gl.constexpr):
    """View a tile in swizzled shared memory, [TOKENS, HEAD_PADDED], as words."""
    return reinterpret(tile, gl.int32, [TOKENS, HEAD_PADDED // 2], gl.NVMMASharedLayout(128, 32, 2))


@gluon.jit
def find_words(memory, first, tokens, kv_head, COLUMN: gl.constexpr, WIDTH: gl.constexpr, KIND: gl.constexpr):  # fmt: skip
    """Return pointers to WIDTH columns of half a Q block, [ROWS, WIDTH // 2], and which exist."""
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, WORDS))
    words = COLUMN // 2 + gl.arange(0, WIDTH // 2, gl.SliceLayout(0, WORDS))
    at = (first + rows // KIND.group).to(gl.int64) * (memory.stride_token // 2) + (
        kv_head * KIND.group + rows % KIND.group
    ) * (memory.stride_head // 2)
    there = (rows < tokens * KIND.group)[:, None] & (words < KIND.head // 2)[None, :]
    begin = memory.pointer.to(gl.pointer_type(gl.int32), bitcast=True)
    return begin + (at[:, None] + words[None, :]), there


@gluon.jit
def load_queries(q, first, tokens, kv_head, KIND: gl.constexpr):
    """Load the queries of half a Q block as words, padded with zeros."""
    at, there = find_words(q, first, tokens, kv_head, 0, KIND.head_padded, KIND)
    return gl.load(at, mask=there, other=0)


@gluon.jit
def split_columns(scores, TILE: gl.constexpr):
    """Reshape a tile so that axis 2 counts the lanes that share a row, in wgmma's layout.

    Reducing the other axes takes no exchange between lanes.
    """
    return gl.reshape(scores, [ROWS, TILE // 8, 4, 2])


@gluon.jit
def hide(scores, positions, start, end, KIND: gl.constexpr):
    """Return a tile's scores without those of keys that a row does not see."""
    tokens = start + gl.arange(0, KIND.tile, gl.SliceLayout(0, product_layout(KIND.tile)))
    last = gl.minimum(positions, end - 1)
    seen = tokens[None, :] <= last[:, None]
    if KIND.window >= 0:
        seen = seen & (tokens[None, :] + KIND.window >= positions[:, None])
    return gl.where(seen, scores, float("-inf"))


@gluon.jit
def softmax(scores, peak, total, positions, first_position, start, end, scale, softcap, MASKED: gl.constexpr,
            KIND: gl.constexpr):  # fmt: skip
    """Return a tile's softmax weights, the factor of the output so far, and new peak and totals.

    A prompt's peak is a score that none exceeds by more than `GROWTH`: most tiles leave it as it
    is, and their factor is 1. In decoding, it is the maximum. Each lane that holds some of a row
    has a total of its own, [ROWS, 4]; they are added at the end.
    """
    TILE: gl.constexpr = KIND.tile
    if KIND.softcap:  # tanh(x) = 2 / (1 + exp(-2 x)) - 1; `scale` is of the exponent here
        scores = softcap * (2.0 / (1.0 + gl.exp2(scores * scale)) - 1.0)
        scale = LOG2E
    if MASKED:
        if (KIND.pairs == 0) and (KIND.window < 0):
            if start + TILE > first_position + 1:  # in decoding, few tiles have keys to hide
                scores = hide(scores, positions, start, end, KIND)
        else:
            scores = hide(scores, positions, start, end, KIND)
    highest = gl.max(scores, 1) * scale
    if KIND.pairs > 0:
        new_peak = gl.where(highest > peak + GROWTH, highest, peak)
    else:
        new_peak = gl.maximum(peak, highest)
    shift = new_peak
    if MASKED:  # a row may have seen no key yet
        shift = gl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = gl.exp2(scores * scale - shift[:, None])
    fade = gl.exp2(peak - shift)
    totals = gl.sum(gl.sum(split_columns(weights, TILE), 3), 1)
    total = total * gl.convert_layout(fade, gl.SliceLayout(1, LANES))[:, None]
    return weights, fade, new_peak, total + gl.convert_layout(totals, LANES)


@gluon.jit
def store_rows(out, staging, acc, total, first, tokens, kv_head, COLUMN: gl.constexpr, KIND: gl.constexpr):  # fmt: skip
    """Divide the outputs of half a Q block by their sums and store them, from column COLUMN on.

    They go through `staging` in shared memory, [ROWS, columns]: in the layout of wgmma, threads
    would store 4 bytes at a time, which takes short prompts a tenth of their time.
    """
    WIDTH: gl.constexpr = staging.shape[1]
    WIDTHS: gl.constexpr = KIND.value_widths
    for index in gl.static_range(len(WIDTHS)):
        stage_columns(take_columns(staging, index, WIDTHS), acc[index], total, tokens * KIND.group)
    at, there = find_words(out, first, tokens, kv_head, COLUMN, WIDTH, KIND)
    gl.store(at, as_words(staging, ROWS, WIDTH).load(WORDS), mask=there)


@gluon.jit
def stage_columns(staging, acc, total, count):
    """Divide some columns of `count` rows by the rows' sums, and put them into shared memory."""
    LAYOUT: gl.constexpr = product_layout(staging.shape[1])
    inside = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT)) < count
    divisor = gl.where(inside, gl.convert_layout(total, gl.SliceLayout(1, LAYOUT)), 1.0)
    staging.store((acc * (1.0 / divisor)[:, None]).to(staging.dtype))


@gluon.jit
def store_part(scratch, acc, peak, total, row, count, kv_head, COLUMN: gl.constexpr, KIND: gl.constexpr):  # fmt: skip
    """Store `count` rows of a partial result from the scratch's row `row` on."""
    WIDTH: gl.constexpr = KIND.head_padded + EXTRA
    WIDTHS: gl.constexpr = KIND.value_widths
    for index in gl.static_range(len(WIDTHS)):
        start = COLUMN + first_column(index, WIDTHS)
        store_columns(scratch + start, acc[index], row, count, kv_head, KIND.kv_heads, WIDTH)
    LAYOUT: gl.constexpr = product_layout(WIDTHS[0])
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    inside = rows < count
    at = scratch + ((row + rows).to(gl.int64) * KIND.kv_heads + kv_head) * WIDTH + KIND.head_padded
    gl.store(at, gl.convert_layout(peak, gl.SliceLayout(1, LAYOUT)), mask=inside)
    gl.store(at + 1, gl.convert_layout(total, gl.SliceLayout(1, LAYOUT)), mask=inside)


@gluon.jit
def store_columns(scratch, acc, row, count, kv_head, KV_HEADS: gl.constexpr, WIDTH: gl.constexpr):
    """Store some columns of a partial result; WIDTH is that of all."""
    LAYOUT: gl.constexpr = product_layout(acc.shape[1])
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    dims = gl.arange(0, acc.shape[1], gl.SliceLayout(0, LAYOUT))
    at = scratch + ((row + rows).to(gl.int64) * KV_HEADS + kv_head) * WIDTH
    gl.store(at[:, None] + dims[None, :], acc, mask=(rows < count)[:, None])
