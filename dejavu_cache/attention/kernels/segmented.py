"""The paper's parallel tiled softmax (4.5, listing 5): one program per segment of the keys.

A second kernel merges the segments. The first one writes each segment's maximum and sum beside its
output, so the merging kernel does not depend on the tuned tile size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from ...runtime.autotuner import cached_autotune
from ...tuning.result_check import CheckOptions
from ..batch import Batch
from ..search_space import BUCKETS, KEYS, METHOD, default_rule, prune_rules, space
from .kernel_call import KernelCall, num_sms
from .softmax_tiles import attend, find_block, init_softmax, load_block

PER_SM = (1, 2, 4, 8, 16, 32)
"""Programs per multiprocessor; counted per GPU so that one config suits few and many sequences."""

MOST_SEGMENTS = 128
"""Segments of a sequence, at most: a program that merges loads those of a row at once."""

AT_ONCE = 1 << 15
"""Elements of keys that the tiles of all programs on a multiprocessor hold at the same time."""

ROOM = 8192
"""Limit of (token, KV head, segment) triples: more than the programs of any GPU."""


@triton.jit(do_not_specialize=["num_seqs", "num_rows", "segments"])
def merge_kernel(
    out, stride_out_token, stride_out_head, scratch, cu_seqlens_q, v_scale, num_seqs, num_rows, segments,
    HEADS: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Merge the segments' outputs, weighted by their sums; one program per (token, query head)."""
    row = tl.program_id(0).to(tl.int64)
    # Tokens after the last sequence are padding, and left alone.
    tokens = tl.load(cu_seqlens_q + num_seqs)
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


def merge(
    out: torch.Tensor,
    scratch: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    v_scale: torch.Tensor | None,
    head_padded: int,
    segments: int,
    slots: int = 0,
) -> KernelCall:
    """Prepare the launch that merges segments.

    Args:
        out: as in `paged_attention`.
        scratch: what `segment_kernel` wrote; laid out as `make_scratch` says.
        cu_seqlens_q: as in `paged_attention`.
        v_scale: likewise.
        head_padded: the head size of the kernel's tiles.
        segments: number of segments.
        slots: a power of two that is no smaller, for which the kernel is compiled; 0: the least.
    """
    tokens, heads, head = out.shape
    slots = slots or 1 << (segments - 1).bit_length()
    return KernelCall(
        merge_kernel,
        (tokens * heads,),
        (
            out, out.stride(0), out.stride(1), scratch, cu_seqlens_q, v_scale,
            len(cu_seqlens_q) - 1, tokens * heads, segments,
        ),
        {
            "HEADS": heads, "HEAD": head, "HEAD_PADDED": head_padded, "SLOTS": slots,
            "num_warps": 4 if slots > 16 else 2,
        },
    )  # fmt: skip


def _merge_after_benchmark(nargs: dict[str, Any], exception: Exception | None) -> None:
    """Merge after each benchmarked launch, so that its time includes the cost of merging."""
    if exception is None:
        merge(
            nargs["out"], nargs["scratch"], nargs["cu_seqlens_q"], nargs["v_scale"], nargs["HEAD_PADDED"],
            num_segments(nargs, nargs),
        )()  # fmt: skip


def num_segments(arguments: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Return the number of segments per sequence for a launch's arguments and a config's values.

    It gives each multiprocessor `per_sm` programs, as far as tiles and scratch memory allow.
    Segments of a single tile pay off only if all of them run at the same time; the estimate takes
    the other sequences to be half as long as the longest. Called at every launch, hence the plain
    integers: `triton.cdiv` takes microseconds.
    """
    block_q = config["BLOCK_M"] // arguments["GROUP"]
    tokens = arguments["num_rows"] // (arguments["GROUP"] * arguments["KV_HEADS"])
    num_seqs, sms, most = arguments["num_seqs"], arguments["sms"], arguments["most"]
    blocks = max(tokens // block_q, num_seqs) * arguments["KV_HEADS"]
    keys = arguments["max_context"]
    if arguments["WINDOW"] >= 0:
        keys = min(keys, arguments["WINDOW"] + block_q)
    tiles = math.ceil(keys / config["TILE"])
    programs = AT_ONCE // (config["TILE"] * arguments["HEAD_PADDED"]) * sms
    at_once = programs * 2 * num_seqs // (blocks * (num_seqs + 1))
    target = min(int(config["per_sm"]) * sms // blocks, max(at_once, tiles // 2), tiles, most)
    return min(math.ceil(tiles / max(round(tiles / max(target, 1)), 1)), most)


def _is_distinct(config: triton.Config, arguments: Mapping[str, Any]) -> bool:
    """Return whether no config with a smaller `per_sm` cuts the launch into as many segments.

    Decoding keeps all configs, because a prediction may be any of them for a scenario nearby.
    """
    if "sms" not in arguments or BUCKETS["decode_share"](arguments["decode_share"]) == 100:
        return True
    segments = num_segments(arguments, config.kwargs)
    smaller = (per_sm for per_sm in PER_SM if per_sm < config.kwargs["per_sm"])
    return all(
        num_segments(arguments, {**config.kwargs, "per_sm": per_sm}) != segments
        for per_sm in smaller
    )


CONFIGS = space(per_sm=PER_SM)


@cached_autotune(
    configs=CONFIGS, key=KEYS, buckets=BUCKETS, prune_configs_by=prune_rules(_is_distinct), post_hook=_merge_after_benchmark,
    default=default_rule(CONFIGS, _is_distinct, per_sm=8), method=METHOD, prune_per="scenario",
    check=CheckOptions(outputs=("out",)),
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


def segment_arguments(batch: Batch, most: int) -> dict[str, Any]:
    """Return the arguments of a launch that `num_segments` reads.

    Args:
        batch: the call.
        most: segments of a sequence, at most.
    """
    return {
        "num_rows": batch.num_tokens * batch.q.shape[1],
        "most": most,
        "sms": num_sms(batch.q.device),
        "num_seqs": batch.num_seqs,
        "max_context": batch.max_seqlen_k,
        **batch.shape,
    }


def make_scratch(batch: Batch, most: int) -> torch.Tensor:
    """Allocate memory for the partial results of a launch with at most so many segments.

    It holds three arrays, one behind the other, for the launch's rows (token, query head) and
    segments: outputs, [rows, segments, head_padded]; their maxima (base 2), [rows, segments],
    which are -inf where a segment has no keys and nothing else is written; and their sums,
    [rows, segments].
    """
    rows = batch.num_tokens * batch.q.shape[1]
    return torch.empty(
        rows * most * (batch.head_padded + 2), dtype=torch.float32, device=batch.q.device
    )


def launch(batch: Batch, chosen: list[int] | None = None) -> KernelCall:
    """Prepare a launch with one program per Q block, KV head and segment.

    Args:
        batch: the call.
        chosen: the launch adds the number of segments, which depends on the config.
    """
    most = min(MOST_SEGMENTS, max(ROOM // (batch.num_tokens * batch.kv_heads), 1))
    arguments = segment_arguments(batch, most)

    def grid(meta: dict[str, Any]) -> tuple[int, int]:
        segments = num_segments(arguments, meta)
        if chosen is not None:
            chosen.append(segments)
        return batch.q_blocks(meta["BLOCK_M"] // batch.group) * batch.kv_heads, segments

    counts = (arguments["num_rows"], most, arguments["sms"])
    return KernelCall(
        segment_kernel,
        grid,
        (batch.out, make_scratch(batch, most), *counts, *batch.inputs),
        batch.shape,
    )


def run(batch: Batch) -> torch.Tensor:
    """Compute a batch's attention by segments, merge them, and return its `out`."""
    segments: list[int] = []
    segmented = launch(batch, segments)
    segmented()
    scratch = segmented.args[1]
    merge(batch.out, scratch, batch.cu_seqlens_q, batch.v_scale, batch.head_padded, segments[-1])()
    return batch.out
