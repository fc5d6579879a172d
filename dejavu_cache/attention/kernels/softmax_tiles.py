"""Device functions of the kernels: location of a program's Q block, and the tiled softmax."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def find_block(cu_seqlens_q, seqused_k, block, num_seqs, BLOCK_Q: tl.constexpr):
    """Return a Q block's sequence, first token in q, number of tokens and first position.

    Sequence i's Q blocks are numbered from cu_seqlens_q[i] // BLOCK_Q + i on. That needs no sums, and
    leaves at most one number per sequence unused: such a block has no tokens.
    """
    low = 0
    high = num_seqs
    while low < high:
        middle = (low + high) // 2
        if tl.load(cu_seqlens_q + middle) // BLOCK_Q + middle <= block:
            low = middle + 1
        else:
            high = middle
    sequence = low - 1
    begin = tl.load(cu_seqlens_q + sequence)
    query_len = tl.load(cu_seqlens_q + sequence + 1) - begin
    offset = (block - begin // BLOCK_Q - sequence) * BLOCK_Q
    position = tl.load(seqused_k + sequence) - query_len + offset
    return sequence, begin + offset, tl.minimum(query_len - offset, BLOCK_Q), position


@triton.jit
def load_block(q, alibi_slopes, k_scale, softmax_scale, first, count, position, kv_head, stride_token, stride_head,
               KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr,
               BLOCK_M: tl.constexpr):  # fmt: skip
    """Load a Q block; each of its rows is a (token, query head of one KV head).

    Returns:
        Queries [BLOCK_M, HEAD_PADDED]; each row's position, head and ALiBi slope; and the factor
        of the scores, which includes k_scale.
    """
    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_PADDED)
    heads = tl.minimum(kv_head * GROUP + rows % GROUP, KV_HEADS * GROUP - 1)
    at = (
        (first + rows // GROUP).to(tl.int64)[:, None] * stride_token
        + heads[:, None] * stride_head
        + dims[None, :]
    )
    queries = tl.load(
        q + at, mask=(rows < count * GROUP)[:, None] & (dims < HEAD)[None, :], other=0.0
    )
    slopes = tl.zeros([BLOCK_M], dtype=tl.float32)
    if alibi_slopes is not None:
        slopes = tl.load(alibi_slopes + heads).to(tl.float32)
    scale = softmax_scale
    if k_scale is not None:
        scale *= tl.load(k_scale)
    return queries, position + rows // GROUP, heads, slopes, scale


@triton.jit
def store_rows(out, acc, total, v_scale, first, count, kv_head, stride_token, stride_head,
               GROUP: tl.constexpr, BLOCK_M: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr):  # fmt: skip
    """Divide a Q block's outputs by their sums and store them at its tokens and heads."""
    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_PADDED)
    inside = rows < count * GROUP
    acc = acc / tl.where(inside, total, 1.0)[:, None]
    if v_scale is not None:
        acc *= tl.load(v_scale)
    at = (
        (first + rows // GROUP).to(tl.int64)[:, None] * stride_token
        + (kv_head * GROUP + rows % GROUP)[:, None] * stride_head
        + dims[None, :]
    )
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=inside[:, None] & (dims < HEAD)[None, :])


@triton.jit
def init_softmax(sinks, heads, first_segment, ROWS: tl.constexpr):
    """Return the initial maximum (base 2) and sum of a tiled softmax, with the heads' sinks."""
    peak = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    if sinks is not None:
        if first_segment:
            peak = tl.load(sinks + heads).to(tl.float32) * LOG2E
            total = tl.full([ROWS], 1.0, dtype=tl.float32)
    return peak, total


@triton.jit
def key_rows(
    pages,
    start,
    end,
    stride_page,
    stride_slot,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Return a cache's offsets of tokens [start, start + TILE); from `end` on they are arbitrary."""
    if PAGE % TILE == 0:  # the tile is in one page
        page = tl.load(pages + start // PAGE).to(tl.int64)
        return page * stride_page + (start % PAGE + tl.arange(0, TILE)) * stride_slot
    tokens = start + tl.arange(0, TILE)
    if MASKED:
        page = tl.load(pages + tokens // PAGE, mask=tokens < end, other=0).to(tl.int64)
    else:
        page = tl.load(pages + tokens // PAGE).to(tl.int64)
    return page * stride_page + (tokens % PAGE) * stride_slot


@triton.jit
def load_tile(
    cache, rows, present, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, MASKED: tl.constexpr
):
    """Load one tile of keys or values, [TILE, HEAD_PADDED], with zeros for absent tokens."""
    dims = tl.arange(0, HEAD_PADDED)
    at = cache + rows[:, None] + dims[None, :]
    if MASKED:
        if HEAD == HEAD_PADDED:
            return tl.load(at, mask=present[:, None], other=0.0)
        return tl.load(at, mask=present[:, None] & (dims < HEAD)[None, :], other=0.0)
    if HEAD == HEAD_PADDED:
        return tl.load(at)
    return tl.load(at, mask=(dims < HEAD)[None, :], other=0.0)


@triton.jit
def attend(acc, peak, total, queries, positions, slopes, keys, values, pages, low, high, scale, softcap,
           stride_page, stride_slot, PAGE: tl.constexpr, TILE: tl.constexpr, HEAD: tl.constexpr,
           HEAD_PADDED: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
           MASKED: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Continue a Q block's tiled softmax over the keys [low, high) of its sequence.

    `acc` [BLOCK_M, HEAD_PADDED], `peak` and `total` [BLOCK_M] are the running output, maximum
    (base 2) and sum. `keys` and `values` point to the caches at this KV head, `pages` to this
    sequence's row of the block table. `low` is a multiple of TILE. Without MASKED, `high` is one
    too, and every row sees all of these keys.
    """
    for start in tl.range(low, high, TILE):
        tokens = start + tl.arange(0, TILE)
        present = tokens < high
        rows = key_rows(pages, start, high, stride_page, stride_slot, PAGE, TILE, MASKED)
        k = load_tile(keys, rows, present, HEAD, HEAD_PADDED, MASKED).to(queries.dtype)
        scores = tl.dot(queries, tl.trans(k), input_precision=PRECISION)
        factor = scale * LOG2E
        if SOFTCAP:  # tanh(x) = 2 / (1 + exp(-2 x)) - 1
            scores = softcap * (
                2.0 / (1.0 + tl.exp2(scores * (scale * (-2.0 * LOG2E) / softcap))) - 1.0
            )
            factor = LOG2E
        if ALIBI:
            if not SOFTCAP:
                scores = scores * scale
                factor = LOG2E
            scores += slopes[:, None] * (tokens[None, :] - positions[:, None])
        if MASKED:
            seen = present[None, :] & (tokens[None, :] <= positions[:, None])
            if WINDOW >= 0:
                seen = seen & (tokens[None, :] + WINDOW >= positions[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1) * factor)
        shift = new_peak
        if MASKED:  # a row may have seen no key yet
            shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        p = tl.exp2(scores * factor - shift[:, None])
        fade = tl.exp2(peak - shift)
        total = total * fade + tl.sum(p, 1)
        acc = acc * fade[:, None]
        v = load_tile(values, rows, present, HEAD, HEAD_PADDED, MASKED).to(queries.dtype)
        acc = tl.dot(p.to(queries.dtype), v, acc, input_precision=PRECISION)
        peak = new_peak
    return acc, peak, total
