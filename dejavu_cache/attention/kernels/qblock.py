"""The paper's Q blocks (4.4, listing 4) with tiles that need not be pages (4.6).

One program computes BLOCK_M rows: all query heads of one KV head, for as many tokens as fit. It
reads keys and values once for all of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...runtime.autotuner import cached_autotune
from ..batch import Batch
from ..search_space import BUCKETS, KEYS, METHOD, default_rule, prune_rules, space
from .kernel_call import KernelCall
from .softmax_tiles import attend, find_block, init_softmax, load_block, store_rows

CONFIGS = space(stages=(1, 2, 3, 4, 5))


@cached_autotune(
    configs=CONFIGS,
    key=KEYS,
    buckets=BUCKETS,
    prune_configs_by=prune_rules(),
    default=default_rule(CONFIGS),
    method=METHOD,
    prune_per="scenario",
)
@triton.jit(
    do_not_specialize=["stride_table", "num_seqs", "avg_query", "max_context", "decode_share"]
)
def qblock_kernel(
    out, stride_out_token, stride_out_head,
    q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table, alibi_slopes, sinks, k_scale, v_scale,
    softmax_scale, softcap,
    stride_token, stride_head, stride_page, stride_slot, stride_kv_head, stride_table,
    num_seqs, avg_query, max_context, decode_share,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    # Heads vary fastest. Late Q blocks see the most keys and start first; short ones fill the gaps.
    kv_head = tl.program_id(0) % KV_HEADS
    block = (tl.num_programs(0) - 1 - tl.program_id(0)) // KV_HEADS
    sequence, first, count, position = find_block(
        cu_seqlens_q, seqused_k, block, num_seqs, BLOCK_M // GROUP
    )
    if count <= 0:
        return
    queries, positions, heads, slopes, scale = load_block(
        q, alibi_slopes, k_scale, softmax_scale, first, count, position, kv_head, stride_token, stride_head,
        KV_HEADS, GROUP, HEAD, HEAD_PADDED, BLOCK_M,
    )  # fmt: skip
    peak, total = init_softmax(sinks, heads, True, BLOCK_M)
    acc = tl.zeros([BLOCK_M, HEAD_PADDED], dtype=tl.float32)
    keys = k_cache + kv_head.to(tl.int64) * stride_kv_head
    values = v_cache + kv_head.to(tl.int64) * stride_kv_head
    pages = block_table + sequence.to(tl.int64) * stride_table
    low = 0
    if WINDOW >= 0:
        low = tl.maximum(position - WINDOW, 0) // TILE * TILE
    else:  # every row sees all keys up to the first row's own: no masks there
        diagonal = (position + 1) // TILE * TILE
        acc, peak, total = attend(
            acc, peak, total, queries, positions, slopes, keys, values, pages, low, diagonal, scale, softcap,
            stride_page, stride_slot, PAGE, TILE, HEAD, HEAD_PADDED, WINDOW, SOFTCAP, alibi_slopes is not None,
            False, PRECISION,
        )  # fmt: skip
        low = diagonal
    acc, peak, total = attend(
        acc, peak, total, queries, positions, slopes, keys, values, pages, low, position + count, scale, softcap,
        stride_page, stride_slot, PAGE, TILE, HEAD, HEAD_PADDED, WINDOW, SOFTCAP, alibi_slopes is not None,
        True, PRECISION,
    )  # fmt: skip
    store_rows(
        out, acc, total, v_scale, first, count, kv_head, stride_out_token, stride_out_head,
        GROUP, BLOCK_M, HEAD, HEAD_PADDED,
    )  # fmt: skip


def launch(batch: Batch) -> KernelCall:
    """Prepare a launch with one program per Q block and KV head."""
    out = batch.out
    return KernelCall(
        qblock_kernel,
        lambda meta: (batch.q_blocks(meta["BLOCK_M"] // batch.group) * batch.kv_heads,),
        (out, out.stride(0), out.stride(1), *batch.inputs),
        batch.shape,
    )
