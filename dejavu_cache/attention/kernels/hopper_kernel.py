"""Hopper kernel in Gluon, Triton's language with explicit layouts, barriers and warps.

A program computes two neighbouring Q blocks of 64 rows, one per four warps, which share keys and
values; while one multiplies, the other computes exponentials. One more warp only finds the work and
loads pages. A program computes one such pair or, if it is persistent, one pair after the other: the
next free program takes the next pair and loads its pages while the previous output is written.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ...runtime.autotuner import cached_autotune
from ..search_space import HOPPER_BUCKETS, HOPPER_KEYS, METHOD, hopper_prune_rules, hopper_space

__all__ = ["COLUMNS", "ROWS", "hopper_kernel"]

ROWS = gl.constexpr(64)
"""Rows of a Q block: those of one wgmma instruction."""

COLUMNS = gl.constexpr(64)
"""Columns of a box that TMA loads, and the limit of its rows.

A row of swizzled shared memory has as many 2-byte elements.
"""

RING = gl.constexpr(2)
"""Number of pairs of Q blocks that the producer may be ahead."""

FACTS = gl.constexpr(4)
"""Numbers that describe a pair: first token, number of tokens, first position and KV head."""

LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit
def find_block(cu_seqlens_q, seqused_k, block, num_seqs, BLOCK_Q: gl.constexpr):
    """`softmax_tiles.find_block`, which Gluon cannot call."""
    low = 0
    high = num_seqs
    while low < high:
        middle = (low + high) // 2
        if gl.load(cu_seqlens_q + middle) // BLOCK_Q + middle <= block:
            low = middle + 1
        else:
            high = middle
    sequence = low - 1
    begin = gl.load(cu_seqlens_q + sequence)
    query_len = gl.load(cu_seqlens_q + sequence + 1) - begin
    offset = (block - begin // BLOCK_Q - sequence) * BLOCK_Q
    position = gl.load(seqused_k + sequence) - query_len + offset
    return sequence, begin + offset, gl.minimum(query_len - offset, BLOCK_Q), position


@gluon.jit
def fetch_tile(
    cache, boxes, full, rows, column, stage, TILE: gl.constexpr, HEAD_PADDED: gl.constexpr
):
    """Load a tile box by box; the barrier `full` counts its bytes."""
    ACROSS: gl.constexpr = HEAD_PADDED // COLUMNS
    DOWN: gl.constexpr = len(rows)
    mbarrier.expect(full.index(stage), TILE * HEAD_PADDED * 2)
    for down in gl.static_range(DOWN):
        for across in gl.static_range(ACROSS):
            box = boxes.index((stage * ACROSS + across) * DOWN + down)
            tma.async_copy_global_to_shared(
                cache, [rows[down], column + across * COLUMNS], full.index(stage), box
            )


@gluon.jit
def announce(pairs, pair_full, pair_free, pair, first, count, position, kv_head):
    """Send the consumers the next pair of Q blocks; a pair without tokens ends them."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    slot = pair % RING
    mbarrier.wait(pair_free.index(slot), ((pair // RING) & 1) ^ 1)
    facts = (first, count, position, kv_head)
    for fact in gl.static_range(FACTS):
        pairs.index(slot * FACTS + fact).store(gl.full([1], facts[fact], gl.int32, LAYOUT))
    mbarrier.arrive(pair_full.index(slot))


@gluon.jit
def heard(pairs, pair_full, pair_free, pair):
    """Receive the next pair from the producer: first token, tokens, first position, KV head."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    slot = pair % RING
    mbarrier.wait(pair_full.index(slot), (pair // RING) & 1)
    first = gl.max(pairs.index(slot * FACTS).load(LAYOUT), 0)
    count = gl.max(pairs.index(slot * FACTS + 1).load(LAYOUT), 0)
    position = gl.max(pairs.index(slot * FACTS + 2).load(LAYOUT), 0)
    kv_head = gl.max(pairs.index(slot * FACTS + 3).load(LAYOUT), 0)
    mbarrier.arrive(pair_free.index(slot))
    return first, count, position, kv_head


@gluon.jit
def produce(keys, values, k_boxes, v_boxes, k_full, k_free, v_full, v_free, pairs, pair_full, pair_free,
            taken, cu_seqlens_q, seqused_k, block_table, stride_table, num_seqs, blocks, rows_per_page,
            KV_HEADS: gl.constexpr, BLOCK_Q: gl.constexpr, HEAD: gl.constexpr, PAGE: gl.constexpr,
            TILE: gl.constexpr, STAGES: gl.constexpr, PERSISTENT: gl.constexpr,
            HEAD_PADDED: gl.constexpr):  # fmt: skip
    """Find the program's pairs of Q blocks and load their tiles, the last first; runs in one warp."""
    BOX: gl.constexpr = min(PAGE, COLUMNS)
    programs = gl.num_programs(0)
    pair = 0
    done = 0
    index = gl.program_id(0)
    while index < blocks * KV_HEADS:
        # Heads vary fastest. Late Q blocks see the most keys and start first; short ones fill gaps.
        kv_head = index % KV_HEADS
        sequence, first, count, position = find_block(
            cu_seqlens_q, seqused_k, blocks - 1 - index // KV_HEADS, num_seqs, 2 * BLOCK_Q
        )
        if count > 0:
            announce(pairs, pair_full, pair_free, pair, first, count, position, kv_head)
            pages = block_table + sequence.to(gl.int64) * stride_table
            last_page = (position + count - 1) // PAGE
            tiles = gl.cdiv(position + count, TILE)
            for step in range(tiles):
                stage = (done + step) % STAGES
                turned = ((done + step) // STAGES) & 1
                rows = ()
                for box in gl.static_range(TILE // BOX):
                    token = (tiles - 1 - step) * TILE + box * BOX
                    page = gl.load(pages + gl.minimum(token // PAGE, last_page))
                    rows = rows + (page * rows_per_page + token % PAGE,)  # type: ignore[assignment]
                mbarrier.wait(k_free.index(stage), turned ^ 1)
                fetch_tile(keys, k_boxes, k_full, rows, kv_head * HEAD, stage, TILE, HEAD_PADDED)
                mbarrier.wait(v_free.index(stage), turned ^ 1)
                fetch_tile(values, v_boxes, v_full, rows, kv_head * HEAD, stage, TILE, HEAD_PADDED)
            done += tiles
            pair += 1
        index = programs + gl.atomic_add(taken, 1) if PERSISTENT else blocks * KV_HEADS
    announce(pairs, pair_full, pair_free, pair, 0, 0, 0, 0)
    if PERSISTENT:
        if (
            gl.atomic_add(taken + 1, 1) == programs - 1
        ):  # the last one leaves it as the next launch must find it
            gl.store(taken, 0)
            gl.store(taken + 1, 0)


@gluon.jit
def softmax(scores, peak, total, positions, start, end, scale, MASKED: gl.constexpr, TILE: gl.constexpr,
            LAYOUT: gl.constexpr):  # fmt: skip
    """Return a tile's softmax weights, the factor of the output so far, and new peak and total."""
    if MASKED:
        tokens = start + gl.arange(0, TILE, gl.SliceLayout(0, LAYOUT))
        last = gl.minimum(positions, end - 1)
        scores = gl.where(tokens[None, :] <= last[:, None], scores, float("-inf"))
    new_peak = gl.maximum(peak, gl.max(scores, 1) * scale)
    shift = new_peak
    if MASKED:  # a row may have seen no key yet
        shift = gl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = gl.exp2(scores * scale - shift[:, None])
    fade = gl.exp2(peak - shift)
    return weights, fade, new_peak, total * fade + gl.sum(weights, 1)


@gluon.jit
def load_queries(q, which: gl.constexpr, first, count, kv_head, stride_token, stride_head,
                 GROUP: gl.constexpr, HEAD: gl.constexpr, HEAD_PADDED: gl.constexpr):  # fmt: skip
    """Load the queries of one Q block of a pair, [ROWS, HEAD_PADDED], padded with zeros."""
    PLAIN: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    BLOCK_Q: gl.constexpr = ROWS // GROUP
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, PLAIN))
    dims = gl.arange(0, HEAD_PADDED, gl.SliceLayout(0, PLAIN))
    tokens = which * BLOCK_Q + rows // GROUP
    at = (first + tokens).to(gl.int64) * stride_token + (
        kv_head * GROUP + rows % GROUP
    ) * stride_head
    inside = (rows < BLOCK_Q * GROUP) & (tokens < count)
    return gl.load(
        q + at[:, None] + dims[None, :], mask=inside[:, None] & (dims < HEAD)[None, :], other=0.0
    )


@gluon.jit
def consume_tile(step, done, MASKED: gl.constexpr, acc, weights, peak, total, queries, k, v,
                 k_full, k_free, v_full, v_free, positions, end, scale, tiles, TILE: gl.constexpr, STAGES: gl.constexpr,
                 S_LAYOUT: gl.constexpr, O_LAYOUT: gl.constexpr, P_LAYOUT: gl.constexpr):  # fmt: skip
    """Multiply a tile's keys and the previous tile's values; the softmax overlaps the latter."""
    stage = (done + step) % STAGES
    before = (done + step - 1) % STAGES
    mbarrier.wait(k_full.index(stage), ((done + step) // STAGES) & 1)
    nothing = gl.zeros([ROWS, TILE], gl.float32, S_LAYOUT)
    scores = warpgroup_mma(
        queries, k.index(stage).permute((1, 0)), nothing, use_acc=False, is_async=True
    )
    mbarrier.wait(v_full.index(before), ((done + step - 1) // STAGES) & 1)
    acc = warpgroup_mma(weights, v.index(before), acc, is_async=True)
    scores = warpgroup_mma_wait(1, [scores])
    mbarrier.arrive(k_free.index(stage))
    start = (tiles - 1 - step) * TILE
    new_weights, fade, peak, total = softmax(
        scores, peak, total, positions, start, end, scale, MASKED, TILE, S_LAYOUT
    )  # fmt: skip
    acc = warpgroup_mma_wait(0, [acc])
    mbarrier.arrive(v_free.index(before))
    acc = acc * gl.convert_layout(fade, gl.SliceLayout(1, O_LAYOUT))[:, None]
    return acc, gl.convert_layout(new_weights.to(queries.dtype), P_LAYOUT), peak, total


@gluon.jit
def consume(which: gl.constexpr, out, q, sinks, q_tiles, k_boxes, v_boxes, k_full, k_free, v_full, v_free,
            pairs, pair_full, pair_free, scale, stride_out_token, stride_out_head, stride_token, stride_head,
            GROUP: gl.constexpr, HEAD: gl.constexpr, HEAD_PADDED: gl.constexpr, TILE: gl.constexpr,
            STAGES: gl.constexpr):  # fmt: skip
    """Compute one Q block of each pair over all tiles, the last first; runs in four warps."""
    DTYPE: gl.constexpr = q.dtype.element_ty
    BLOCK_Q: gl.constexpr = ROWS // GROUP
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_PADDED, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    PLAIN: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    # Boxes, first down and then across, are how swizzled shared memory holds a tile.
    k = k_boxes._reinterpret(DTYPE, [STAGES, TILE, HEAD_PADDED], SHARED)
    v = v_boxes._reinterpret(DTYPE, [STAGES, TILE, HEAD_PADDED], SHARED)
    queries = q_tiles.index(which)
    nothing = gl.zeros([ROWS, TILE], gl.float32, S_LAYOUT)

    pair = 0
    done = 0  # tiles of the pairs before
    first, count, position, kv_head = heard(pairs, pair_full, pair_free, pair)
    queries.store(
        load_queries(
            q, which, first, count, kv_head, stride_token, stride_head, GROUP, HEAD, HEAD_PADDED
        )
    )
    fence_async_shared()
    while count > 0:
        end = position + count
        tiles = gl.cdiv(end, TILE)
        masked_tiles = gl.maximum(tiles - (position + 1) // TILE, 1)
        rows = gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        positions = position + which * BLOCK_Q + rows // GROUP
        peak = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
        total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S_LAYOUT))
        if sinks is not None:
            peak = gl.load(sinks + kv_head * GROUP + rows % GROUP).to(gl.float32) * LOG2E
            total = gl.full([ROWS], 1.0, gl.float32, gl.SliceLayout(1, S_LAYOUT))
        acc = gl.zeros([ROWS, HEAD_PADDED], gl.float32, O_LAYOUT)

        stage = done % STAGES
        mbarrier.wait(k_full.index(stage), (done // STAGES) & 1)
        scores = warpgroup_mma(
            queries, k.index(stage).permute((1, 0)), nothing, use_acc=False, is_async=True
        )
        scores = warpgroup_mma_wait(0, [scores])
        mbarrier.arrive(k_free.index(stage))
        start = (tiles - 1) * TILE
        weights, _, peak, total = softmax(
            scores, peak, total, positions, start, end, scale, True, TILE, S_LAYOUT
        )
        weights = gl.convert_layout(weights.to(DTYPE), P_LAYOUT)
        if end < start + TILE:
            # Values past the last token may be anything, and zero times that must be zero. Both consumers write
            # the same, so neither need wait for the other.
            mbarrier.wait(v_full.index(stage), (done // STAGES) & 1)
            tokens = start + gl.arange(0, TILE, gl.SliceLayout(1, PLAIN))
            v.index(stage).store(gl.where((tokens < end)[:, None], v.index(stage).load(PLAIN), 0.0))
            fence_async_shared()
        for step in range(1, masked_tiles):
            acc, weights, peak, total = consume_tile(
                step, done, True, acc, weights, peak, total, queries, k, v, k_full, k_free, v_full, v_free,
                positions, end, scale, tiles, TILE, STAGES, S_LAYOUT, O_LAYOUT, P_LAYOUT,
            )  # fmt: skip
        for step in range(masked_tiles, tiles):
            acc, weights, peak, total = consume_tile(
                step, done, False, acc, weights, peak, total, queries, k, v, k_full, k_free, v_full, v_free,
                positions, end, scale, tiles, TILE, STAGES, S_LAYOUT, O_LAYOUT, P_LAYOUT,
            )  # fmt: skip
        last = done + tiles - 1
        mbarrier.wait(v_full.index(last % STAGES), (last // STAGES) & 1)
        acc = warpgroup_mma(weights, v.index(last % STAGES), acc, is_async=True)
        # The next pair's queries are on their way while this one's last values are multiplied.
        then_first, then_count, then_position, then_head = heard(
            pairs, pair_full, pair_free, pair + 1
        )
        then_queries = load_queries(
            q, which, then_first, then_count, then_head, stride_token, stride_head, GROUP, HEAD, HEAD_PADDED
        )  # fmt: skip
        acc = warpgroup_mma_wait(0, [acc])
        mbarrier.arrive(v_free.index(last % STAGES))
        queries.store(then_queries)
        fence_async_shared()

        rows = gl.arange(0, ROWS, gl.SliceLayout(1, O_LAYOUT))
        dims = gl.arange(0, HEAD_PADDED, gl.SliceLayout(0, O_LAYOUT))
        tokens = which * BLOCK_Q + rows // GROUP
        inside = (rows < BLOCK_Q * GROUP) & (tokens < count)
        acc = (
            acc
            / gl.where(inside, gl.convert_layout(total, gl.SliceLayout(1, O_LAYOUT)), 1.0)[:, None]
        )
        at = (first + tokens).to(gl.int64) * stride_out_token + (
            kv_head * GROUP + rows % GROUP
        ) * stride_out_head
        gl.store(
            out + at[:, None] + dims[None, :],
            acc.to(DTYPE),
            mask=inside[:, None] & (dims < HEAD)[None, :],
        )
        first, count, position, kv_head = then_first, then_count, then_position, then_head
        done += tiles
        pair += 1


@cached_autotune(
    configs=hopper_space(), key=HOPPER_KEYS, buckets=HOPPER_BUCKETS, prune_configs_by=hopper_prune_rules(),
    method=METHOD,
    prune_per="scenario",
)  # fmt: skip
@gluon.jit(
    do_not_specialize=[
        "stride_table",
        "blocks",
        "num_seqs",
        "avg_query",
        "max_context",
        "decode_share",
    ]
)
def hopper_kernel(
    out, stride_out_token, stride_out_head, keys, values, rows_per_page, blocks, taken,
    q, cu_seqlens_q, seqused_k, block_table, sinks, softmax_scale, stride_token, stride_head, stride_table,
    num_seqs, avg_query, max_context, decode_share,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD: gl.constexpr, HEAD_PADDED: gl.constexpr, PAGE: gl.constexpr,
    TILE: gl.constexpr, STAGES: gl.constexpr, PERSISTENT: gl.constexpr,
):  # fmt: skip
    BLOCK_Q: gl.constexpr = ROWS // GROUP
    BOX: gl.constexpr = min(PAGE, COLUMNS)
    BOXES: gl.constexpr = STAGES * TILE // BOX * HEAD_PADDED // COLUMNS
    DTYPE: gl.constexpr = q.dtype.element_ty
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q_tiles = gl.allocate_shared_memory(DTYPE, [2, ROWS, HEAD_PADDED], SHARED)
    k_boxes = gl.allocate_shared_memory(DTYPE, [BOXES, BOX, COLUMNS], SHARED)
    v_boxes = gl.allocate_shared_memory(DTYPE, [BOXES, BOX, COLUMNS], SHARED)
    pairs = gl.allocate_shared_memory(
        gl.int32, [RING * FACTS, 1], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    pair_full = gl.allocate_shared_memory(gl.int64, [RING, 1], mbarrier.MBarrierLayout())
    pair_free = gl.allocate_shared_memory(gl.int64, [RING, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(k_free.index(stage), count=2)
        mbarrier.init(v_free.index(stage), count=2)
    for slot in gl.static_range(RING):
        mbarrier.init(pair_full.index(slot), count=1)
        mbarrier.init(pair_free.index(slot), count=2)
    scale = softmax_scale * LOG2E
    gl.warp_specialize([
        (consume, (gl.constexpr(0), out, q, sinks, q_tiles, k_boxes, v_boxes, k_full, k_free, v_full, v_free,
                   pairs, pair_full, pair_free, scale, stride_out_token, stride_out_head, stride_token, stride_head,
                   GROUP, HEAD, HEAD_PADDED, TILE, STAGES)),
        (consume, (gl.constexpr(1), out, q, sinks, q_tiles, k_boxes, v_boxes, k_full, k_free, v_full, v_free,
                   pairs, pair_full, pair_free, scale, stride_out_token, stride_out_head, stride_token, stride_head,
                   GROUP, HEAD, HEAD_PADDED, TILE, STAGES)),
        (produce, (keys, values, k_boxes, v_boxes, k_full, k_free, v_full, v_free, pairs, pair_full, pair_free,
                   taken, cu_seqlens_q, seqused_k, block_table, stride_table, num_seqs, blocks, rows_per_page,
                   KV_HEADS, BLOCK_Q, HEAD, PAGE, TILE, STAGES, PERSISTENT, HEAD_PADDED)),
    ], [4, 1], [232, 40])  # fmt: skip
