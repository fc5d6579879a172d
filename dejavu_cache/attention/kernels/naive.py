"""The paper's baseline (4.3, listing 3): one program per query token and query head."""

from __future__ import annotations

import triton
import triton.language as tl

from ...runtime.autotuner import cached_autotune
from ..batch import Batch
from ..search_space import BUCKETS, KEYS, METHOD, row_space
from .kernel_call import KernelCall
from .softmax_tiles import LOG2E, find_block


@cached_autotune(configs=row_space(), key=KEYS, buckets=BUCKETS, method=METHOD)
@triton.jit(
    do_not_specialize=["stride_table", "num_seqs", "avg_query", "max_context", "decode_share"]
)
def naive_kernel(
    out, stride_out_token, stride_out_head,
    q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table, alibi_slopes, sinks, k_scale, v_scale,
    softmax_scale, softcap,
    stride_token, stride_head, stride_page, stride_slot, stride_kv_head, stride_table,
    num_seqs, avg_query, max_context, decode_share,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    sequence, token, count, position = find_block(
        cu_seqlens_q, seqused_k, tl.program_id(0), num_seqs, 1
    )
    if count <= 0:
        return
    dims = tl.arange(0, HEAD_PADDED)
    real = dims < HEAD
    query = tl.load(
        q + token.to(tl.int64) * stride_token + head * stride_head + dims, mask=real, other=0.0
    )
    query = query.to(tl.float32)
    scale = softmax_scale
    if k_scale is not None:
        scale *= tl.load(k_scale)
    kv_head = (head // GROUP).to(tl.int64)
    pages = block_table + sequence.to(tl.int64) * stride_table

    peak = tl.full([1], float("-inf"), dtype=tl.float32)
    total = tl.zeros([1], dtype=tl.float32)
    if sinks is not None:
        peak = tl.full([1], 0.0, dtype=tl.float32) + tl.load(sinks + head).to(tl.float32) * LOG2E
        total = tl.full([1], 1.0, dtype=tl.float32)
    acc = tl.zeros([HEAD_PADDED], dtype=tl.float32)
    low = 0
    if WINDOW >= 0:
        low = tl.maximum(position - WINDOW, 0)
    for start in tl.range(low, position + 1, TILE):
        tokens = start + tl.arange(0, TILE)
        seen = tokens <= position
        page = tl.load(pages + tokens // PAGE, mask=seen, other=0).to(tl.int64)
        at = page * stride_page + (tokens % PAGE) * stride_slot + kv_head * stride_kv_head
        there = seen[:, None] & real[None, :]
        k = tl.load(k_cache + at[:, None] + dims[None, :], mask=there, other=0.0).to(tl.float32)
        scores = tl.sum(query[None, :] * k, 1) * scale
        if SOFTCAP:  # tanh(x) = 2 / (1 + exp(-2 x)) - 1
            scores = softcap * (2.0 / (1.0 + tl.exp2(scores * (-2.0 * LOG2E / softcap))) - 1.0)
        if alibi_slopes is not None:
            scores += tl.load(alibi_slopes + head).to(tl.float32) * (tokens - position)
        scores = tl.where(seen, scores * LOG2E, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 0))
        p = tl.exp2(scores - new_peak)
        fade = tl.exp2(peak - new_peak)
        total = total * fade + tl.sum(p, 0)
        v = tl.load(v_cache + at[:, None] + dims[None, :], mask=there, other=0.0).to(tl.float32)
        acc = acc * fade + tl.sum(p[:, None] * v, 0)
        peak = new_peak
    acc = acc / total
    if v_scale is not None:
        acc *= tl.load(v_scale)
    at_out = out + token.to(tl.int64) * stride_out_token + head * stride_out_head + dims
    tl.store(at_out, acc.to(out.dtype.element_ty), mask=real)


def launch(batch: Batch) -> KernelCall:
    """Prepare a launch with one program per token and query head."""
    out = batch.out
    return KernelCall(
        naive_kernel,
        (batch.q_blocks(1), batch.q.shape[1]),
        (out, out.stride(0), out.stride(1), *batch.inputs),
        batch.shape,
    )
