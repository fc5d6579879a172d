"""The paper's parallel tiled softmax (4.5, listing 5): a sequence's keys are cut into segments, a program each.

A second kernel merges them. It reads how much each segment holds from what the first one wrote, so the
tile size and the number of segments can be tuned without telling it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from ...runtime.autotuner import cached_autotune
from ..batch import Batch
from ..search_space import BUCKETS, KEYS, METHOD, pruned, space, usual
from .kernel_call import KernelCall, num_sms
from .softmax_tiles import attend, find_block, init_softmax, load_block

__all__ = ["launch", "merge_kernel", "run", "segment_kernel"]

PER_SM = (1, 2, 4, 8, 16, 32)
"""Programs for each multiprocessor, so that one config suits few long sequences as well as many short ones."""

MOST_SEGMENTS = 128

AT_ONCE = 1 << 15
"""Elements of keys that the tiles of a multiprocessor's programs hold at once."""

ROOM = 8192
"""As many (token, KV head, segment) as there may be: more than every GPU's programs."""


@triton.jit(do_not_specialize=["num_seqs", "num_rows", "segments"])
def merge_kernel(
    out, stride_out_token, stride_out_head, scratch, cu_seqlens_q, v_scale, num_seqs, num_rows, segments,
    HEADS: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """One program per (token, query head): the segments' outputs, weighted by what each saw."""
    row = tl.program_id(0).to(tl.int64)
    tokens = tl.load(
        cu_seqlens_q + num_seqs
    )  # those after the last sequence are padding, and left alone
    slots = tl.arange(0, SLOTS)
    at = row * segments + slots
    dims = tl.arange(0, HEAD_PADDED)
    peaks = scratch + num_rows.to(tl.int64) * segments * HEAD_PADDED
    peak = tl.load(peaks + at, mask=slots < segments, other=float("-inf"))
    present = peak > float("-inf")
    total = tl.load(peaks + num_rows.to(tl.int64) * segments + at, mask=present, other=0.0)
    part = tl.load(
        scratch + at[:, None] * HEAD_PADDED + dims[None, :], mask=present[:, None], other=0.0
    )
    weight = tl.exp2(peak - tl.max(peak, 0))
    merged = tl.sum(part * weight[:, None], 0) / tl.sum(total * weight, 0)
    if v_scale is not None:
        merged *= tl.load(v_scale)
    at_out = out + (row // HEADS) * stride_out_token + (row % HEADS) * stride_out_head + dims
    tl.store(at_out, merged.to(out.dtype.element_ty), mask=(dims < HEAD) & (row // HEADS < tokens))


def _merge(
    out: torch.Tensor,
    scratch: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    v_scale: torch.Tensor | None,
    head_padded: int,
    segments: int,
) -> None:
    tokens, heads, head = out.shape
    slots = 1 << (segments - 1).bit_length()
    merge_kernel[(tokens * heads,)](
        out, out.stride(0), out.stride(1), scratch, cu_seqlens_q, v_scale, len(cu_seqlens_q) - 1, tokens * heads,
        segments, HEADS=heads, HEAD=head, HEAD_PADDED=head_padded, SLOTS=slots, num_warps=4 if slots > 16 else 2,
    )  # fmt: skip


def _merge_too(nargs: dict[str, Any], exception: Exception | None) -> None:
    """Runs after every launch that is measured, so that more segments also cost what merging them does."""
    if exception is None:
        _merge(
            nargs["out"], nargs["scratch"], nargs["cu_seqlens_q"], nargs["v_scale"], nargs["HEAD_PADDED"],
            num_segments(nargs, nargs),
        )  # fmt: skip


def num_segments(given: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """In how many segments a sequence's keys are cut, by the launch's arguments and a config's values.

    As many as make `per_sm` programs for each multiprocessor, if there are tiles and room for them. Segments
    of a single tile are worth it only if all of them run at once, in a batch whose other sequences are half as
    long as the longest. Every launch asks, so this keeps to plain integers: `triton.cdiv` takes microseconds.
    """
    block_q = config["BLOCK_M"] // given["GROUP"]
    tokens = given["num_rows"] // (given["GROUP"] * given["KV_HEADS"])
    num_seqs, sms = given["num_seqs"], given["sms"]
    blocks = max(tokens // block_q, num_seqs) * given["KV_HEADS"]
    keys = given["max_context"]
    if given["WINDOW"] >= 0:
        keys = min(keys, given["WINDOW"] + block_q)
    tiles = math.ceil(keys / config["TILE"])
    programs = AT_ONCE // (config["TILE"] * given["HEAD_PADDED"]) * sms
    at_once = programs * 2 * num_seqs // (blocks * (num_seqs + 1))
    wanted = min(
        int(config["per_sm"]) * sms // blocks, max(at_once, tiles // 2), tiles, given["most"]
    )
    return min(math.ceil(tiles / max(round(tiles / max(wanted, 1)), 1)), given["most"])


def _differs(config: triton.Config, given: Mapping[str, Any]) -> bool:
    """Of configs that cut prompts alike, and so are one, only the first.

    Of decodes all are measured: a tree may choose any of them there, for what it is worth nearby.
    """
    if "sms" not in given or BUCKETS["decode_share"](given["decode_share"]) == 100:
        return True
    segments = num_segments(given, config.kwargs)
    fewer = ({**config.kwargs, "per_sm": less} for less in PER_SM if less < config.kwargs["per_sm"])
    return all(num_segments(given, other) != segments for other in fewer)


CONFIGS = space(per_sm=PER_SM)


@cached_autotune(
    configs=CONFIGS, key=KEYS, buckets=BUCKETS, prune_configs_by=pruned(_differs), post_hook=_merge_too,
    default=usual(CONFIGS, _differs, per_sm=8), method=METHOD,
)  # fmt: skip
@triton.jit(
    do_not_specialize=["num_rows", "most", "sms", "per_sm", "stride_table", "num_seqs", "avg_query", "max_context",
                       "decode_share"]
)  # fmt: skip
def segment_kernel(
    out, scratch, num_rows, most, sms,
    q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table, alibi_slopes, sinks, k_scale, v_scale,
    softmax_scale, softcap,
    stride_token, stride_head, stride_page, stride_slot, stride_kv_head, stride_table,
    num_seqs, avg_query, max_context, decode_share,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, TILE: tl.constexpr, per_sm,
):  # fmt: skip
    kv_head = tl.program_id(0) % KV_HEADS
    block = tl.program_id(0) // KV_HEADS
    segment = tl.program_id(1)
    segments = tl.num_programs(1)
    sequence, first, count, position = find_block(
        cu_seqlens_q, seqused_k, block, num_seqs, BLOCK_M // GROUP
    )
    if count <= 0:
        return
    end = position + count
    base = 0
    if WINDOW >= 0:
        base = tl.maximum(position - WINDOW, 0) // TILE * TILE
    length = tl.cdiv(tl.cdiv(end - base, segments), TILE) * TILE
    low = base + segment * length

    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_PADDED)
    inside = rows < count * GROUP
    row = (first + rows // GROUP).to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + rows % GROUP
    at = row * segments + segment
    peaks = scratch + num_rows.to(tl.int64) * segments * HEAD_PADDED
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
    tl.store(peaks + num_rows.to(tl.int64) * segments + at, total, mask=inside)


def launch(batch: Batch, chosen: Callable[[int], object] = lambda segments: None) -> KernelCall:
    """One program per Q block, KV head and segment.

    Args:
        chosen: is told, at the launch, in how many segments the config has it cut the keys.
    """
    rows, sms = batch.num_tokens * batch.q.shape[1], num_sms(batch.q.device)
    most = min(MOST_SEGMENTS, max(ROOM // (batch.num_tokens * batch.kv_heads), 1))
    scratch = torch.empty(
        rows * most * (batch.head_padded + 2), dtype=torch.float32, device=batch.q.device
    )
    given = {
        "num_rows": rows, "most": most, "sms": sms, "num_seqs": batch.num_seqs, "max_context": batch.max_seqlen_k,
        **batch.shape,
    }  # fmt: skip

    def grid(meta: dict[str, Any]) -> tuple[int, int]:
        segments = num_segments(given, meta)
        chosen(segments)
        return batch.q_blocks(meta["BLOCK_M"] // batch.group) * batch.kv_heads, segments

    return KernelCall(
        segment_kernel, grid, (batch.out, scratch, rows, most, sms, *batch.inputs), batch.shape
    )


def run(batch: Batch) -> torch.Tensor:
    """Attention of a batch: the segments, then one program per row to merge them."""
    segments: list[int] = []
    segmented = launch(batch, segments.append)
    segmented()
    _merge(
        batch.out,
        segmented.args[1],
        batch.cu_seqlens_q,
        batch.v_scale,
        batch.head_padded,
        segments[-1],
    )
    return batch.out
