"""Decoding of few sequences, today one: the paper's segments (4.5) in one config, without a schedule.

One sequence occupies a GPU only if it is cut into many segments, and then all of them are short.
What the Hopper kernel prepares takes longer than they do: a list of units, barriers, and warps with
tasks of their own. Its code is longer, too (54 KB, and 19 KB here), and after the
products of a model a launch finds none of it in a cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..batch import Batch, LayerTensors, NewTokens, Repeat
from ..search_space import why_not_here
from . import segmented
from .kernel_call import KernelCall, num_sms
from .softmax_tiles import attend, init_softmax, load_block
from .write_cache import write_rows

TILES = {"TILE": 32, "per_sm": 4}
OPTIONS = {"num_warps": 4, "num_stages": 5}
"""The config: of 23, the fastest with long contexts, and among the fastest with short ones.

They were measured between the products of a model, on an H200.
"""

ROWS = 16
"""Rows of a sequence, at most; a row is a (token, query head of one KV head)."""

MOST_SEQS = 1
"""Sequences, at most: more of different lengths need the balance that a schedule gives."""

SMS_PER_HEAD = 8
"""Multiprocessors for each sequence's KV head, at least."""


@triton.jit(do_not_specialize=["num_rows", "stride_table"])
def few_sequences_kernel(
    scratch, num_rows, q, k_cache, v_cache, new_keys, new_values, new_slots, cu_seqlens_q, seqused_k, block_table,
    alibi_slopes, sinks, k_scale, softmax_scale, softcap,
    stride_token, stride_head, stride_page, stride_slot, stride_kv_head, stride_table,
    stride_new_key, stride_new_key_head, stride_new_value, stride_new_value_head,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Compute one segment of a sequence's keys, as `segment_kernel` does.

    A Q block is found without a search, since every sequence has as many programs. If new keys and
    values are given, the last program computes these and writes them into the cache, which the
    others do not read beyond the tokens before: so none waits for what another one writes.
    """
    kv_head = tl.program_id(0) % KV_HEADS
    sequence = tl.program_id(0) // KV_HEADS
    segment = tl.program_id(1)
    segments = tl.num_programs(1)
    begin = tl.load(cu_seqlens_q + sequence)
    new = tl.load(cu_seqlens_q + sequence + 1) - begin
    offset = tl.program_id(2) * (BLOCK_M // GROUP)
    first = begin + offset
    count = tl.minimum(new - offset, BLOCK_M // GROUP)
    position = tl.load(seqused_k + sequence) - new + offset
    if count <= 0:
        return
    end = position + count
    base = 0
    if WINDOW >= 0:
        base = tl.maximum(position - WINDOW, 0) // TILE * TILE
    pages = block_table + sequence.to(tl.int64) * stride_table
    keys = k_cache + kv_head.to(tl.int64) * stride_kv_head
    values = v_cache + kv_head.to(tl.int64) * stride_kv_head
    counts_sinks = segment == 0
    in_cache = segments
    if new_keys is not None:
        counts_sinks = segment == segments - 1  # the other segments may have no keys
        in_cache = segments - 1
        end = position
    length = tl.cdiv(tl.cdiv(end - base, in_cache), TILE) * TILE
    low = base + segment * length
    high = tl.minimum(low + length, end)
    if new_keys is not None:
        is_new = segment == segments - 1
        if is_new:
            write_rows(
                k_cache, new_keys, new_slots, first, count, kv_head, stride_new_key, stride_new_key_head,
                stride_page, stride_slot, stride_kv_head, BLOCK_M, HEAD, HEAD_PADDED, PAGE,
            )  # fmt: skip
            write_rows(
                v_cache, new_values, new_slots, first, count, kv_head, stride_new_value, stride_new_value_head,
                stride_page, stride_slot, stride_kv_head, BLOCK_M, HEAD, HEAD_PADDED, PAGE,
            )  # fmt: skip
        # The new tokens are a page of their own, in which the first one has position 0.
        token = first.to(tl.int64)
        key = new_keys + token * stride_new_key + kv_head * stride_new_key_head
        value = new_values + token * stride_new_value + kv_head * stride_new_value_head
        keys = tl.where(is_new, key, keys)
        values = tl.where(is_new, value, values)
        stride_page = tl.where(is_new, 0, stride_page)
        stride_slot = tl.where(is_new, stride_new_key, stride_slot)  # of both, if there are several
        position = tl.where(is_new, 0, position)
        low = tl.where(is_new, 0, low)
        high = tl.where(is_new, count, high)

    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_PADDED)
    inside = rows < count * GROUP
    row = (first + rows // GROUP).to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + rows % GROUP
    at = row * segments + segment
    peaks = scratch + num_rows.to(tl.int64) * segments * HEAD_PADDED
    if low >= high:
        tl.store(peaks + at, float("-inf"), mask=inside)
        return
    queries, positions, heads, slopes, scale = load_block(
        q, alibi_slopes, k_scale, softmax_scale, first, count, position, kv_head, stride_token, stride_head,
        KV_HEADS, GROUP, HEAD, HEAD_PADDED, BLOCK_M,
    )  # fmt: skip
    peak, total = init_softmax(sinks, heads, counts_sinks, BLOCK_M)
    acc = tl.zeros([BLOCK_M, HEAD_PADDED], dtype=tl.float32)
    acc, peak, total = attend(
        acc, peak, total, queries, positions, slopes, keys, values, pages, low, high,
        scale, softcap, stride_page, stride_slot, PAGE, TILE, HEAD, HEAD_PADDED, WINDOW, SOFTCAP,
        alibi_slopes is not None, True, PRECISION,
    )  # fmt: skip
    tl.store(scratch + at[:, None] * HEAD_PADDED + dims[None, :], acc, mask=inside[:, None])
    tl.store(peaks + at, peak, mask=inside)
    tl.store(peaks + num_rows.to(tl.int64) * segments + at, total, mask=inside)


def suits(batch: Batch) -> bool:
    """Check a batch for few rows of few sequences, and a GPU that is large beside them."""
    heads = batch.num_seqs * batch.kv_heads
    return (
        batch.num_seqs <= MOST_SEQS
        and batch.max_seqlen_q * batch.group <= ROWS
        and SMS_PER_HEAD * heads <= num_sms(batch.q.device)
    )


def slots_of(batch: Batch) -> int:
    """Return the most segments of a sequence: a power of two, equal for all batches of a model.

    Kernels are compiled for it, and nothing is to be compiled for another length of a sequence.
    """
    programs = max(TILES["per_sm"] * num_sms(batch.q.device) // batch.kv_heads, 1)
    return min(1 << (programs.bit_length() - 1), segmented.MOST_SEGMENTS)


def prepare(batch: Batch, new: NewTokens | None = None) -> tuple[KernelCall, KernelCall]:
    """Prepare the launches that compute and merge a batch's segments.

    Args:
        batch: the call.
        new: keys and values of its new tokens, if these are not in the cache yet; they are written.

    Raises:
        ValueError: the config cannot run the batch's shape on this GPU.
    """
    q, cache, slots = batch.q, batch.k_cache, slots_of(batch)
    block_m = max(ROWS, 1 << (batch.group - 1).bit_length())
    new_segments = 0 if new is None else 1
    arguments = segmented.segment_arguments(batch, slots - new_segments)
    tiles = {**TILES, "BLOCK_M": block_m}
    reason = why_not_here(triton.Config(tiles, **OPTIONS), {**arguments, "q": q})
    if reason:
        raise ValueError(
            f"implementation: 'few_sequences' has one config, which {reason}; use 'auto'"
        )
    segments = segmented.num_segments(arguments, tiles) + new_segments
    scratch = segmented.make_scratch(batch, segments)
    computing = KernelCall(
        few_sequences_kernel,
        (
            batch.num_seqs * batch.kv_heads, segments,
            -(-batch.max_seqlen_q // (block_m // batch.group)),
        ),
        (
            scratch, arguments["num_rows"], q, cache, batch.v_cache, *(new or NO_TOKENS),
            batch.cu_seqlens_q, batch.seqused_k, batch.block_table,
            batch.alibi_slopes, batch.sinks, batch.k_scale,
            batch.softmax_scale, batch.softcap, q.stride(0), q.stride(1),
            cache.stride(0), cache.stride(1), cache.stride(2), batch.block_table.stride(0),
            *((0,) * 4 if new is None else (*new.keys.stride()[:2], *new.values.stride()[:2])),
        ),
        {**batch.shape, "BLOCK_M": block_m, "TILE": TILES["TILE"], **OPTIONS},
    )  # fmt: skip
    merging = segmented.merge(
        batch.out, scratch, batch.cu_seqlens_q, batch.v_scale, batch.head_padded, segments, slots
    )
    return computing, merging


NO_TOKENS = (None, None, None)


def run(batch: Batch) -> torch.Tensor:
    """Compute a batch's attention, and return its `out`."""
    for call in prepare(batch):
        call()
    return batch.out


class FewSequencesLayers:
    """Launches in the layers of a step, which share the memory for segments."""

    def writes(self, batch: Batch, new: NewTokens) -> bool:
        """Return whether the launches write new keys and values too, if `write_cache` can.

        One program computes those of a sequence as one page, whose slots are equally far apart in
        keys and values.
        """
        most = batch.max_seqlen_q
        return (
            most * batch.group <= ROWS
            and most <= batch.k_cache.shape[1]
            and (most == 1 or new.keys.stride(0) == new.values.stride(0))
            and slots_of(batch) > 1
        )

    def launch(self, batch: Batch, new: NewTokens | None = None) -> Repeat | None:
        """Compute a layer, and return how to compute others of the same form.

        Args:
            batch: the call of the layer.
            new: its new tokens, if the launches are to write them.

        Returns:
            None in Triton's interpreter, which compiles nothing to repeat.
        """
        computing, merging = prepare(batch, new)
        is_writing = new is not None
        new_names = ("new_keys", "new_values", "new_slots") if is_writing else ()
        scale_names = () if batch.scales is None else ("k_scale", "v_scale")
        compute = computing.launch(("q", "k_cache", "v_cache", *new_names, *scale_names[:1]))
        merge = merging.launch(("out", *scale_names[1:]))
        if compute is None or merge is None:
            return None

        def repeat(layer: LayerTensors) -> bool:
            new = (layer.new or ()) if is_writing else ()
            scales = layer.scales or ()
            computed = compute(layer.q, layer.k_cache, layer.v_cache, *new, *scales[:1])
            return computed and merge(layer.out, *scales[1:])

        return repeat
