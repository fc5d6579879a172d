"""Device functions of the Hopper kernel for the rows of a Q block: queries, softmax and results.

A block that several units or both halves of a program compute has partial results: each is the
output so far, its maximum (base 2) and its sum. The last one to arrive merges them.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..schedule import HALF, PART_COLUMNS

__all__ = ["LOG2E", "ROWS", "load_queries", "merge_parts", "softmax", "store_part", "store_rows"]

ROWS = gl.constexpr(HALF)
"""Rows of half a Q block: those of one wgmma instruction."""

EXTRA = gl.constexpr(PART_COLUMNS)

LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit
def load_queries(q, first, tokens, kv_head, stride_token, stride_head,
                 GROUP: gl.constexpr, HEAD: gl.constexpr, HEAD_PADDED: gl.constexpr):  # fmt: skip
    """Load the queries of half a Q block, [ROWS, HEAD_PADDED], padded with zeros."""
    PLAIN: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, PLAIN))
    dims = gl.arange(0, HEAD_PADDED, gl.SliceLayout(0, PLAIN))
    at = (first + rows // GROUP).to(gl.int64) * stride_token + (
        kv_head * GROUP + rows % GROUP
    ) * stride_head
    inside = rows < tokens * GROUP
    return gl.load(
        q + at[:, None] + dims[None, :], mask=inside[:, None] & (dims < HEAD)[None, :], other=0.0
    )


@gluon.jit
def softmax(scores, peak, total, positions, start, end, scale, softcap, MASKED: gl.constexpr,
            WINDOW: gl.constexpr, SOFTCAP: gl.constexpr, TILE: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """Return a tile's softmax weights, the factor of the output so far, and new peak and total."""
    if SOFTCAP:  # tanh(x) = 2 / (1 + exp(-2 x)) - 1; `scale` is of the exponent here
        scores = softcap * (2.0 / (1.0 + gl.exp2(scores * scale)) - 1.0)
        scale = LOG2E
    if MASKED:
        tokens = start + gl.arange(0, TILE, gl.SliceLayout(0, LAYOUT))
        last = gl.minimum(positions, end - 1)
        seen = tokens[None, :] <= last[:, None]
        if WINDOW >= 0:
            seen = seen & (tokens[None, :] + WINDOW >= positions[:, None])
        scores = gl.where(seen, scores, float("-inf"))
    new_peak = gl.maximum(peak, gl.max(scores, 1) * scale)
    shift = new_peak
    if MASKED:  # a row may have seen no key yet
        shift = gl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = gl.exp2(scores * scale - shift[:, None])
    fade = gl.exp2(peak - shift)
    return weights, fade, new_peak, total * fade + gl.sum(weights, 1)


@gluon.jit
def store_rows(out, acc, total, first, tokens, kv_head, stride_token, stride_head,
               GROUP: gl.constexpr, HEAD: gl.constexpr, HEAD_PADDED: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """Divide the outputs of half a Q block by their sums and store them."""
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    dims = gl.arange(0, HEAD_PADDED, gl.SliceLayout(0, LAYOUT))
    inside = rows < tokens * GROUP
    divisor = gl.where(inside, gl.convert_layout(total, gl.SliceLayout(1, LAYOUT)), 1.0)
    at = (first + rows // GROUP).to(gl.int64) * stride_token + (
        kv_head * GROUP + rows % GROUP
    ) * stride_head
    gl.store(
        out + at[:, None] + dims[None, :],
        (acc / divisor[:, None]).to(out.dtype.element_ty),
        mask=inside[:, None] & (dims < HEAD)[None, :],
    )


@gluon.jit
def store_part(scratch, acc, peak, total, row, count, kv_head,
               KV_HEADS: gl.constexpr, HEAD_PADDED: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """Store `count` rows of a partial result from the scratch's row `row` on."""
    WIDTH: gl.constexpr = HEAD_PADDED + EXTRA
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    dims = gl.arange(0, HEAD_PADDED, gl.SliceLayout(0, LAYOUT))
    inside = rows < count
    at = scratch + ((row + rows).to(gl.int64) * KV_HEADS + kv_head) * WIDTH
    gl.store(at[:, None] + dims[None, :], acc, mask=inside[:, None])
    gl.store(at + HEAD_PADDED, gl.convert_layout(peak, gl.SliceLayout(1, LAYOUT)), mask=inside)
    gl.store(at + HEAD_PADDED + 1, gl.convert_layout(total, gl.SliceLayout(1, LAYOUT)), mask=inside)


@gluon.jit
def merge_parts(out, scratch, row, pitch, parts, count, first, kv_head, stride_token, stride_head,
                KV_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD: gl.constexpr, HEAD_PADDED: gl.constexpr,
                PARTS: gl.constexpr, AT_ONCE: gl.constexpr):  # fmt: skip
    """Merge partial results of `count` rows, `pitch` scratch rows apart, and store the outputs.

    Args:
        out: the output.
        scratch: the partial results.
        row: scratch row of the first part.
        pitch: scratch rows from one part to the next.
        parts: number of partial results.
        count: rows to merge.
        first: token of the first row.
        kv_head: the KV head.
        stride_token: of `out`.
        stride_head: of `out`.
        KV_HEADS: number of KV heads.
        GROUP: query heads per KV head.
        HEAD: head size.
        HEAD_PADDED: head size in the scratch.
        PARTS: partial results to load at a time.
        AT_ONCE: rows to load at a time.
    """
    WIDTH: gl.constexpr = HEAD_PADDED + EXTRA
    LANES: gl.constexpr = min(HEAD_PADDED // 4, 32)
    CUBE: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 32 // LANES, LANES], [1, 4, 1], [2, 1, 0])
    MATRIX: gl.constexpr = gl.SliceLayout(2, CUBE)
    RESULT: gl.constexpr = gl.SliceLayout(0, CUBE)
    dims = gl.arange(0, HEAD_PADDED, gl.SliceLayout(0, gl.SliceLayout(1, CUBE)))
    columns = gl.arange(0, HEAD_PADDED, gl.SliceLayout(0, RESULT))
    for low in range(0, count, AT_ONCE):
        lines = low + gl.arange(0, AT_ONCE, gl.SliceLayout(0, MATRIX))
        peak = gl.full([AT_ONCE], float("-inf"), gl.float32, gl.SliceLayout(0, MATRIX))
        total = gl.zeros([AT_ONCE], gl.float32, gl.SliceLayout(0, MATRIX))
        acc = gl.zeros([AT_ONCE, HEAD_PADDED], gl.float32, RESULT)
        for begin in range(0, parts, PARTS):
            part = begin + gl.arange(0, PARTS, gl.SliceLayout(1, MATRIX))
            there = (part < parts)[:, None] & (lines < count)[None, :]
            line = row + part[:, None] * pitch + lines[None, :]
            at = scratch + (line.to(gl.int64) * KV_HEADS + kv_head) * WIDTH
            # Bypass the L1 cache, which may still hold the scratch data of an earlier launch.
            peaks = gl.load(at + HEAD_PADDED, mask=there, other=float("-inf"), cache_modifier=".cg")
            totals = gl.load(at + HEAD_PADDED + 1, mask=there, other=0.0, cache_modifier=".cg")
            outputs = gl.load(
                at[:, :, None] + dims[None, :][:, None, :],
                mask=there[:, :, None],
                other=0.0,
                cache_modifier=".cg",
            )
            new_peak = gl.maximum(peak, gl.max(peaks, 0))
            shift = gl.where(new_peak == float("-inf"), 0.0, new_peak)
            fade = gl.exp2(peak - shift)
            weight = gl.exp2(peaks - shift[None, :])
            total = total * fade + gl.sum(totals * weight, 0)
            acc = acc * gl.convert_layout(fade, gl.SliceLayout(1, RESULT))[:, None]
            acc += gl.sum(outputs * weight[:, :, None], 0)
            peak = new_peak
        lines = low + gl.arange(0, AT_ONCE, gl.SliceLayout(1, RESULT))
        inside = lines < count
        divisor = gl.where(inside, gl.convert_layout(total, gl.SliceLayout(1, RESULT)), 1.0)
        at_out = (first + lines // GROUP).to(gl.int64) * stride_token + (
            kv_head * GROUP + lines % GROUP
        ) * stride_head
        gl.store(
            out + at_out[:, None] + columns[None, :],
            (acc / divisor[:, None]).to(out.dtype.element_ty),
            mask=inside[:, None] & (columns < HEAD)[None, :],
        )
