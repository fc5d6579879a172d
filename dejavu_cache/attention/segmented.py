"""The paper's parallel tiled softmax (4.5, listing 5): a sequence's keys are cut into segments, a program each.

A second kernel merges them. It reads how much each segment holds from what the first one wrote, so the
tile size and the number of segments can be tuned without telling it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from ..autotune import cached_autotune
from .arguments import Batch
from .common import attend, find_block, init_softmax, load_block
from .launch import Launch
from .spaces import BUCKETS, KEYS, METHOD, SEGMENTS, pruned, space, usual

__all__ = ["launch", "merge_kernel", "run", "segment_kernel"]

PARTS = 8192
"""As many (token, KV head, segment) as there may be: more than every GPU's programs."""


@triton.jit
def merge_kernel(
    out, stride_out_token, stride_out_head, scratch, v_scale, num_rows,
    HEADS: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, SEGMENTS: tl.constexpr,
):  # fmt: skip
    """One program per (token, query head): the segments' outputs, weighted by what each saw."""
    row = tl.program_id(0).to(tl.int64)
    at = row * SEGMENTS + tl.arange(0, SEGMENTS)
    dims = tl.arange(0, HEAD_PADDED)
    peaks = scratch + num_rows.to(tl.int64) * SEGMENTS * HEAD_PADDED
    peak = tl.load(peaks + at)
    present = peak > float("-inf")
    total = tl.load(peaks + num_rows.to(tl.int64) * SEGMENTS + at, mask=present, other=0.0)
    part = tl.load(scratch + at[:, None] * HEAD_PADDED + dims[None, :], mask=present[:, None], other=0.0)
    weight = tl.exp2(peak - tl.max(peak, 0))
    merged = tl.sum(part * weight[:, None], 0) / tl.sum(total * weight, 0)
    if v_scale is not None:
        merged *= tl.load(v_scale)
    at_out = out + (row // HEADS) * stride_out_token + (row % HEADS) * stride_out_head + dims
    tl.store(at_out, merged.to(out.dtype.element_ty), mask=dims < HEAD)


def _merge(
    out: torch.Tensor, scratch: torch.Tensor, v_scale: torch.Tensor | None, head_padded: int, parts: int
) -> None:
    tokens, heads, head = out.shape
    merge_kernel[(tokens * heads,)](
        out, out.stride(0), out.stride(1), scratch, v_scale, tokens * heads,
        HEADS=heads, HEAD=head, HEAD_PADDED=head_padded, SEGMENTS=parts, num_warps=4 if parts > 16 else 2,
    )  # fmt: skip


def _merge_too(nargs: dict[str, Any], exception: Exception | None) -> None:
    """Runs after every launch that is measured, so that more segments also cost what merging them does."""
    if exception is None:
        parts = min(nargs["segments"], nargs["most"])
        _merge(nargs["out"], nargs["scratch"], nargs["v_scale"], nargs["HEAD_PADDED"], parts)


def _worth_it(config: triton.Config, given: Mapping[str, Any]) -> bool:
    """Segments of a tile at least, as many as there may be or a few times fewer.

    A builder that knows a scenario and no launch of it has no `most`; segments are not compiled in.
    """
    context = BUCKETS["max_context"](given["max_context"])
    most = max(min(given.get("most", max(SEGMENTS)), 2 * context // config.kwargs["TILE"]), 1)
    return bool(most // 8 < config.kwargs["segments"] <= most)


CONFIGS = space(segments=SEGMENTS)


@cached_autotune(
    configs=CONFIGS, key=KEYS, buckets=BUCKETS, prune_configs_by=pruned(_worth_it), post_hook=_merge_too,
    default=usual(CONFIGS, _worth_it, segments=16), method=METHOD,
)  # fmt: skip
@triton.jit(
    do_not_specialize=["num_rows", "most", "segments", "stride_table", "num_seqs", "avg_query", "max_context",
                       "decode_share"]
)  # fmt: skip
def segment_kernel(
    out, scratch, num_rows, most,
    q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table, alibi_slopes, sinks, k_scale, v_scale,
    softmax_scale, softcap,
    stride_token, stride_head, stride_page, stride_slot, stride_kv_head, stride_table,
    num_seqs, avg_query, max_context, decode_share,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, TILE: tl.constexpr, segments,
):  # fmt: skip
    kv_head = tl.program_id(0) % KV_HEADS
    block = tl.program_id(0) // KV_HEADS
    segment = tl.program_id(1)
    parts = tl.num_programs(1)  # `segments`, or as many as there is room for: `most`
    sequence, first, count, position = find_block(cu_seqlens_q, seqused_k, block, num_seqs, BLOCK_M // GROUP)
    if count <= 0:
        return
    end = position + count
    base = 0
    if WINDOW >= 0:
        base = tl.maximum(position - WINDOW, 0) // TILE * TILE
    length = tl.cdiv(tl.cdiv(end - base, parts), TILE) * TILE
    low = base + segment * length

    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_PADDED)
    inside = rows < count * GROUP
    row = (first + rows // GROUP).to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + rows % GROUP
    at = row * parts + segment
    peaks = scratch + num_rows.to(tl.int64) * parts * HEAD_PADDED
    if low >= end:
        tl.store(peaks + at, float("-inf"), mask=inside)
        return
    queries, positions, heads, slopes, scale = load_block(
        q, alibi_slopes, k_scale, softmax_scale, first, count, position, kv_head, stride_token, stride_head,
        KV_HEADS, GROUP, HEAD, HEAD_PADDED, BLOCK_M,
    )  # fmt: skip
    peak, total = init_softmax(sinks, heads, segment == 0, BLOCK_M)
    acc = tl.zeros([BLOCK_M, HEAD_PADDED], dtype=tl.float32)
    keys = k_cache + kv_head.to(tl.int64) * stride_kv_head
    values = v_cache + kv_head.to(tl.int64) * stride_kv_head
    pages = block_table + sequence.to(tl.int64) * stride_table
    acc, peak, total = attend(
        acc, peak, total, queries, positions, slopes, keys, values, pages, low, tl.minimum(low + length, end),
        scale, softcap, stride_page, stride_slot, PAGE, TILE, HEAD, HEAD_PADDED, WINDOW, SOFTCAP,
        alibi_slopes is not None, True, PRECISION,
    )  # fmt: skip
    tl.store(scratch + at[:, None] * HEAD_PADDED + dims[None, :], acc, mask=inside[:, None])
    tl.store(peaks + at, peak, mask=inside)
    tl.store(peaks + num_rows.to(tl.int64) * parts + at, total, mask=inside)


def launch(batch: Batch, chosen: Callable[[int], object] = lambda parts: None) -> Launch:
    """One program per Q block, KV head and segment.

    Args:
        chosen: is told, at the launch, in how many parts the config has it cut the keys.
    """
    rows = batch.num_tokens * batch.q.shape[1]
    room = PARTS // (batch.num_tokens * batch.kv_heads)
    most = min(max(SEGMENTS), 1 << max(room.bit_length() - 1, 0))
    scratch = torch.empty(rows * most * (batch.head_padded + 2), dtype=torch.float32, device=batch.q.device)

    def grid(meta: dict[str, Any]) -> tuple[int, int]:
        parts = min(int(meta["segments"]), most)
        chosen(parts)
        return batch.q_blocks(meta["BLOCK_M"] // batch.group) * batch.kv_heads, parts

    return Launch(segment_kernel, grid, (batch.out, scratch, rows, most, *batch.inputs), batch.shape)


def run(batch: Batch) -> torch.Tensor:
    """Attention of a batch: the segments, then one program per row to merge them."""
    parts: list[int] = []
    segments = launch(batch, parts.append)
    segments()
    _merge(batch.out, segments.args[1], batch.v_scale, batch.head_padded, parts[-1])
    return batch.out
