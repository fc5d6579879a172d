"""The paper's static launch grid (4.7): a fixed number of programs that divide the work equally.

Nothing on the host depends on the lengths, so one captured graph serves all batches with the same
number of sequences. The batch is laid out as one line of equal units, each some keys of one Q
block. A program takes an equal, contiguous part of that line, which may begin and end inside a Q
block. Of the programs that share a Q block, the last to finish merges their partial results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from ...runtime.autotuner import cached_autotune
from ...tuning.result_check import CheckOptions
from ..batch import Batch
from ..search_space import BUCKETS, KEYS, METHOD, default_rule, prune_rules, space
from .kernel_call import KernelCall, num_sms, zeros
from .softmax_tiles import attend, init_softmax, load_block, store_rows

UNIT = tl.constexpr(64)
"""Keys in a unit: one tile or several."""

LEAST = tl.constexpr(128)
"""Minimum of keys per program: with fewer, merging costs more than the parallelism gains.

A multiple of every tile size. If the line has no more units of this size than the GPU has
multiprocessors, it is not cut any finer.
"""

PER_SM = (1, 2, 3, 4)
"""Programs per multiprocessor."""

LARGEST_BLOCK = 128
"""The largest BLOCK_M worth its scratch memory, unless one token has more rows."""


@triton.jit
def first_unit(program, programs, units):
    """Return the first unit of a program's part, which ends where the next program's begins."""
    return (program.to(tl.int64) * units // programs).to(tl.int32)


@triton.jit
def owner(unit, programs, units):
    """Return the program whose part contains a unit."""
    return (((unit + 1).to(tl.int64) * programs - 1) // units).to(tl.int32)


@triton.jit
def merge_parts(out, scratch, v_scale, head_program, tail_program, head_slot, first, count, kv_head,
                stride_token, stride_head, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, HEAD: tl.constexpr,
                HEAD_PADDED: tl.constexpr, SLOTS: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Merge the partial results of programs head_program to tail_program, and store the Q block."""
    width: tl.constexpr = HEAD_PADDED + 4
    dims = tl.arange(0, HEAD_PADDED)
    for low in tl.range(0, count * GROUP, ROWS):
        rows = low + tl.arange(0, ROWS)
        inside = rows < count * GROUP
        peak = tl.full([ROWS], float("-inf"), dtype=tl.float32)
        total = tl.zeros([ROWS], dtype=tl.float32)
        acc = tl.zeros([ROWS, HEAD_PADDED], dtype=tl.float32)
        for one in tl.range(head_program, tail_program + 1, SLOTS):
            program = one + tl.arange(0, SLOTS)
            there = (program <= tail_program)[:, None] & inside[None, :]
            slot = (program * 2 + tl.where(program == head_program, head_slot, 0)).to(tl.int64)
            part = scratch + (slot[:, None] * BLOCK_M + rows[None, :]) * width
            # Bypass the L1 cache, which may still hold the scratch data of an earlier launch.
            its_peak = tl.load(
                part + HEAD_PADDED, mask=there, other=float("-inf"), cache_modifier=".cg"
            )
            its_total = tl.load(part + HEAD_PADDED + 1, mask=there, other=0.0, cache_modifier=".cg")
            its_acc = tl.load(
                part[:, :, None] + dims[None, None, :],
                mask=there[:, :, None],
                other=0.0,
                cache_modifier=".cg",
            )
            new_peak = tl.maximum(peak, tl.max(its_peak, 0))
            shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
            fade = tl.exp2(peak - shift)
            weight = tl.exp2(its_peak - shift[None, :])
            total = total * fade + tl.sum(its_total * weight, 0)
            acc = acc * fade[:, None] + tl.sum(its_acc * weight[:, :, None], 0)
            peak = new_peak
        acc = acc / tl.where(inside, total, 1.0)[:, None]
        if v_scale is not None:
            acc *= tl.load(v_scale)
        heads = kv_head * GROUP + rows % GROUP
        at_out = (
            out
            + (first + rows // GROUP).to(tl.int64)[:, None] * stride_token
            + heads[:, None] * stride_head
        )
        tl.store(
            at_out + dims[None, :],
            acc.to(out.dtype.element_ty),
            mask=inside[:, None] & (dims < HEAD)[None, :],
        )


def _fits_scratch(config: triton.Config, arguments: Mapping[str, Any]) -> bool:
    return bool(config.kwargs["BLOCK_M"] <= arguments["MOST_ROWS"])


CONFIGS = space(per_sm=PER_SM)


@cached_autotune(
    configs=CONFIGS, key=(*KEYS, "MOST_ROWS"), buckets=BUCKETS, prune_configs_by=prune_rules(_fits_scratch),
    default=default_rule(CONFIGS, _fits_scratch, per_sm=2), method=METHOD, prune_per="scenario",
    check=CheckOptions(ignore=("scratch",)),
)  # fmt: skip
@triton.jit(
    do_not_specialize=[
        "stride_table",
        "num_seqs",
        "avg_query",
        "max_context",
        "decode_share",
        "per_sm",
    ]
)
def static_grid_kernel(
    out, stride_out_token, stride_out_head, scratch, arrivals,
    q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table, alibi_slopes, sinks, k_scale, v_scale,
    softmax_scale, softcap,
    stride_token, stride_head, stride_page, stride_slot, stride_kv_head, stride_table,
    num_seqs, avg_query, max_context, decode_share,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr, MAX_SEQS: tl.constexpr,
    MOST_ROWS: tl.constexpr, BLOCK_M: tl.constexpr, TILE: tl.constexpr, per_sm,
):  # fmt: skip
    """Compute a program's part of the line, and merge a Q block whose other parts have arrived.

    `scratch`, [programs, 2, BLOCK_M, HEAD_PADDED + 4], holds the partial results of the Q block in
    which a program's part begins (0), and of another one in which it ends (1). A row is the output,
    its maximum (base 2), its sum, and two unused columns, so that the next row is aligned.
    `arrivals` counts a Q block's partial results, at the number of the first of its programs.
    """
    tl.static_assert(
        BLOCK_M <= MOST_ROWS, "scratch memory is made for Q blocks of at most MOST_ROWS rows"
    )
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    width: tl.constexpr = HEAD_PADDED + 4  # the peak and the sum, and the next row aligned
    program = tl.program_id(0)
    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_PADDED)

    # The line holds, per sequence, Q block and KV head, as many units as the last Q block needs.
    each = tl.arange(0, MAX_SEQS)
    query_lens = tl.load(cu_seqlens_q + each + 1, mask=each < num_seqs, other=0)
    query_lens -= tl.load(cu_seqlens_q + each, mask=each < num_seqs, other=0)
    lengths = tl.load(seqused_k + each, mask=each < num_seqs, other=0)
    if WINDOW >= 0:
        lengths = tl.minimum(lengths, WINDOW + BLOCK_Q + LEAST)
    pairs = tl.cdiv(query_lens, BLOCK_Q) * KV_HEADS
    num_sms = tl.num_programs(0) // per_sm
    unit = tl.where(tl.sum(pairs * tl.cdiv(lengths, LEAST), 0) <= num_sms, LEAST, max(TILE, UNIT))
    spans = pairs * tl.cdiv(lengths, unit)
    ends = tl.cumsum(spans, 0)
    units = tl.max(ends, 0)
    worth = units.to(tl.int64) * unit // LEAST
    programs = tl.maximum(tl.minimum(tl.num_programs(0), worth), 1).to(tl.int32)
    if program >= programs:
        return
    start = first_unit(program, programs, units)
    stop = first_unit(program + 1, programs, units)

    at = start
    while at < stop:
        sequence = tl.sum((ends <= at).to(tl.int32), 0)
        begin = tl.load(cu_seqlens_q + sequence)
        query_len = tl.load(cu_seqlens_q + sequence + 1) - begin
        length = tl.load(seqused_k + sequence)
        context = length - query_len
        if WINDOW >= 0:
            length = tl.minimum(length, WINDOW + BLOCK_Q + LEAST)
        span = tl.cdiv(length, unit)
        line_start = tl.sum(tl.where(each == sequence, ends - spans, 0), 0)
        pair = (at - line_start) // span  # of a Q block and a KV head
        kv_head = pair % KV_HEADS
        offset = pair // KV_HEADS * BLOCK_Q
        pair_start = line_start + pair * span
        pair_end = pair_start + span
        here_end = tl.minimum(stop, pair_end)

        first = begin + offset
        count = tl.minimum(query_len - offset, BLOCK_Q)
        position = context + offset
        base = 0
        if WINDOW >= 0:
            base = tl.maximum(position - WINDOW, 0) // unit * unit
        low = tl.multiple_of(base + (at - pair_start) * unit, TILE)
        high = tl.minimum(base + (here_end - pair_start) * unit, position + count)

        queries, positions, heads, slopes, scale = load_block(
            q, alibi_slopes, k_scale, softmax_scale, first, count, position, kv_head, stride_token, stride_head,
            KV_HEADS, GROUP, HEAD, HEAD_PADDED, BLOCK_M,
        )  # fmt: skip
        peak, total = init_softmax(sinks, heads, at == pair_start, BLOCK_M)
        acc = tl.zeros([BLOCK_M, HEAD_PADDED], dtype=tl.float32)
        keys = k_cache + kv_head.to(tl.int64) * stride_kv_head
        values = v_cache + kv_head.to(tl.int64) * stride_kv_head
        pages = block_table + sequence.to(tl.int64) * stride_table
        acc, peak, total = attend(
            acc, peak, total, queries, positions, slopes, keys, values, pages, low, high, scale, softcap,
            stride_page, stride_slot, PAGE, TILE, HEAD, HEAD_PADDED, WINDOW, SOFTCAP, alibi_slopes is not None,
            True, PRECISION,
        )  # fmt: skip

        if (at == pair_start) & (here_end == pair_end):
            store_rows(
                out, acc, total, v_scale, first, count, kv_head, stride_out_token, stride_out_head,
                GROUP, BLOCK_M, HEAD, HEAD_PADDED,
            )  # fmt: skip
        else:
            # A program shares at most two Q blocks: the one it begins in and the one it ends in.
            inside = rows < count * GROUP
            slot = (program * 2 + (at > start).to(tl.int32)).to(tl.int64)
            part = scratch + (slot * BLOCK_M + rows) * width
            tl.store(part[:, None] + dims[None, :], acc, mask=inside[:, None])
            tl.store(part + HEAD_PADDED, peak, mask=inside)
            tl.store(part + HEAD_PADDED + 1, total, mask=inside)
            head_program = owner(pair_start, programs, units)
            tail_program = owner(pair_end - 1, programs, units)
            tl.debug_barrier()  # all threads have written before the arrival is counted
            if (
                tl.atomic_add(arrivals + head_program, 1, sem="acq_rel")
                == tail_program - head_program
            ):
                tl.store(arrivals + head_program, 0)  # reset for the next launch
                head_slot = (first_unit(head_program, programs, units) < pair_start).to(tl.int32)
                merge_parts(
                    out, scratch, v_scale, head_program, tail_program, head_slot, first, count, kv_head,
                    stride_out_token, stride_out_head, GROUP, BLOCK_M, HEAD, HEAD_PADDED,
                    SLOTS=16 if BLOCK_M <= 16 else 4, ROWS=4 if BLOCK_M <= 16 else 16,
                )  # fmt: skip
        at = here_end


def most_rows(max_seqlen_q: int, group: int) -> int:
    """Return the largest useful BLOCK_M for sequences of up to `max_seqlen_q` new tokens."""
    most = max(LARGEST_BLOCK, 1 << (group - 1).bit_length())  # a block holds one token at least
    return min(max(16, 1 << (max_seqlen_q * group - 1).bit_length()), most)


def launch(batch: Batch) -> KernelCall:
    """Prepare a launch with a fixed number of programs per multiprocessor.

    A captured graph may be replayed with other lengths, as long as `max_seqlen_q` and the number of
    sequences still hold; a sequence without new tokens is skipped.
    """
    out, device = batch.out, batch.q.device
    rows = most_rows(batch.max_seqlen_q, batch.group)
    most_programs = max(PER_SM) * num_sms(device)
    scratch = torch.empty(
        most_programs * 2 * rows * (batch.head_padded + 4), dtype=torch.float32, device=device
    )
    return KernelCall(
        static_grid_kernel,
        lambda meta: (int(meta["per_sm"]) * num_sms(device),),
        (out, out.stride(0), out.stride(1), scratch, zeros(device, most_programs), *batch.inputs),
        {
            **batch.shape,
            "MAX_SEQS": max(16, 1 << (batch.num_seqs - 1).bit_length()),
            "MOST_ROWS": rows,
        },
    )
