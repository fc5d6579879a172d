"""The kernel of `hopper`, in Gluon: Triton's language for those who choose layouts, barriers and warps themselves.

A program holds two neighbouring Q blocks of 64 rows, one per four warps, which share keys and values; while
one multiplies, the other computes exponentials. One more warp fetches pages, and does nothing else.
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

from ..autotune import cached_autotune
from .spaces import HOPPER_BUCKETS, HOPPER_KEYS, METHOD, hopper_pruned, hopper_space

__all__ = ["COLUMNS", "ROWS", "hopper_kernel"]

ROWS = gl.constexpr(64)
"""Of a Q block: what one wgmma takes."""

COLUMNS = gl.constexpr(64)
"""Of a box that TMA fetches: as many 2-byte elements as a row of swizzled shared memory has. At most as many rows."""

LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit
def find_block(cu_seqlens_q, seqused_k, block, num_seqs, BLOCK_Q: gl.constexpr):
    """`common.find_block`, which Gluon cannot call."""
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
def fetch_tile(cache, boxes, full, rows, column, stage, TILE: gl.constexpr, HEAD_PADDED: gl.constexpr):
    """Fetches a tile box by box; `full` counts its bytes."""
    ACROSS: gl.constexpr = HEAD_PADDED // COLUMNS
    DOWN: gl.constexpr = len(rows)
    mbarrier.expect(full.index(stage), TILE * HEAD_PADDED * 2)
    for down in gl.static_range(DOWN):
        for across in gl.static_range(ACROSS):
            box = boxes.index((stage * ACROSS + across) * DOWN + down)
            tma.async_copy_global_to_shared(cache, [rows[down], column + across * COLUMNS], full.index(stage), box)


@gluon.jit
def produce(keys, values, k_boxes, v_boxes, k_full, k_free, v_full, v_free, pages, last_page, rows_per_page, column,
            tiles, PAGE: gl.constexpr, TILE: gl.constexpr, STAGES: gl.constexpr,
            HEAD_PADDED: gl.constexpr):  # fmt: skip
    """One warp: fetches the tiles, the last one first."""
    BOX: gl.constexpr = min(PAGE, COLUMNS)
    for step in range(tiles):
        stage = step % STAGES
        turn = (step // STAGES) & 1
        rows = ()
        for box in gl.static_range(TILE // BOX):
            token = (tiles - 1 - step) * TILE + box * BOX
            page = gl.load(pages + gl.minimum(token // PAGE, last_page))
            rows = rows + (page * rows_per_page + token % PAGE,)  # type: ignore[assignment]
        mbarrier.wait(k_free.index(stage), turn ^ 1)
        fetch_tile(keys, k_boxes, k_full, rows, column, stage, TILE, HEAD_PADDED)
        mbarrier.wait(v_free.index(stage), turn ^ 1)
        fetch_tile(values, v_boxes, v_full, rows, column, stage, TILE, HEAD_PADDED)


@gluon.jit
def softmax(scores, peak, total, positions, start, end, scale, MASKED: gl.constexpr, TILE: gl.constexpr,
            LAYOUT: gl.constexpr):  # fmt: skip
    """One tile of a tiled softmax: (weights, what the output so far fades by, new peak, new total)."""
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
def consume_tile(step, MASKED: gl.constexpr, acc, weights, peak, total, queries, k, v, k_full, k_free, v_full, v_free,
                 positions, end, scale, tiles, TILE: gl.constexpr, STAGES: gl.constexpr,
                 S_LAYOUT: gl.constexpr, O_LAYOUT: gl.constexpr, P_LAYOUT: gl.constexpr):  # fmt: skip
    """Multiplies a tile's keys, and the values of the one before; the softmax runs under the latter."""
    stage = step % STAGES
    before = (step - 1) % STAGES
    mbarrier.wait(k_full.index(stage), (step // STAGES) & 1)
    nothing = gl.zeros([ROWS, TILE], gl.float32, S_LAYOUT)
    scores = warpgroup_mma(queries, k.index(stage).permute((1, 0)), nothing, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(before), ((step - 1) // STAGES) & 1)
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
            first, count, position, end, kv_head, scale, tiles, masked_tiles,
            stride_out_token, stride_out_head, stride_token, stride_head,
            GROUP: gl.constexpr, HEAD: gl.constexpr, HEAD_PADDED: gl.constexpr, TILE: gl.constexpr,
            STAGES: gl.constexpr):  # fmt: skip
    """Four warps: one Q block over all tiles, the last one first."""
    DTYPE: gl.constexpr = q.dtype.element_ty
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_PADDED, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    PLAIN: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    # Boxes, first down and then across, are how swizzled shared memory holds a tile.
    k = k_boxes._reinterpret(DTYPE, [STAGES, TILE, HEAD_PADDED], SHARED)
    v = v_boxes._reinterpret(DTYPE, [STAGES, TILE, HEAD_PADDED], SHARED)
    queries = q_tiles.index(which)

    rows = gl.arange(0, ROWS, gl.SliceLayout(1, PLAIN))
    dims = gl.arange(0, HEAD_PADDED, gl.SliceLayout(0, PLAIN))
    at = (first + rows // GROUP).to(gl.int64) * stride_token + (kv_head * GROUP + rows % GROUP) * stride_head
    inside = (rows < count * GROUP)[:, None] & (dims < HEAD)[None, :]
    queries.store(gl.load(q + at[:, None] + dims[None, :], mask=inside, other=0.0))
    fence_async_shared()

    rows = gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
    positions = position + rows // GROUP
    peak = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S_LAYOUT))
    if sinks is not None:
        peak = gl.load(sinks + kv_head * GROUP + rows % GROUP).to(gl.float32) * LOG2E
        total = gl.full([ROWS], 1.0, gl.float32, gl.SliceLayout(1, S_LAYOUT))
    acc = gl.zeros([ROWS, HEAD_PADDED], gl.float32, O_LAYOUT)

    mbarrier.wait(k_full.index(0), 0)
    nothing = gl.zeros([ROWS, TILE], gl.float32, S_LAYOUT)
    scores = warpgroup_mma(queries, k.index(0).permute((1, 0)), nothing, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, [scores])
    mbarrier.arrive(k_free.index(0))
    start = (tiles - 1) * TILE
    weights, _, peak, total = softmax(scores, peak, total, positions, start, end, scale, True, TILE, S_LAYOUT)
    weights = gl.convert_layout(weights.to(DTYPE), P_LAYOUT)
    if end < start + TILE:
        # Values past the last token may be anything, and zero times that must be zero. Both consumers write
        # the same, so neither need wait for the other.
        mbarrier.wait(v_full.index(0), 0)
        tokens = start + gl.arange(0, TILE, gl.SliceLayout(1, PLAIN))
        v.index(0).store(gl.where((tokens < end)[:, None], v.index(0).load(PLAIN), 0.0))
        fence_async_shared()
    for step in range(1, masked_tiles):
        acc, weights, peak, total = consume_tile(
            step, True, acc, weights, peak, total, queries, k, v, k_full, k_free, v_full, v_free,
            positions, end, scale, tiles, TILE, STAGES, S_LAYOUT, O_LAYOUT, P_LAYOUT,
        )  # fmt: skip
    for step in range(masked_tiles, tiles):
        acc, weights, peak, total = consume_tile(
            step, False, acc, weights, peak, total, queries, k, v, k_full, k_free, v_full, v_free,
            positions, end, scale, tiles, TILE, STAGES, S_LAYOUT, O_LAYOUT, P_LAYOUT,
        )  # fmt: skip
    last = (tiles - 1) % STAGES
    mbarrier.wait(v_full.index(last), ((tiles - 1) // STAGES) & 1)
    acc = warpgroup_mma(weights, v.index(last), acc, is_async=True)
    acc = warpgroup_mma_wait(0, [acc])

    rows = gl.arange(0, ROWS, gl.SliceLayout(1, O_LAYOUT))
    dims = gl.arange(0, HEAD_PADDED, gl.SliceLayout(0, O_LAYOUT))
    inside = rows < count * GROUP
    acc = acc / gl.where(inside, gl.convert_layout(total, gl.SliceLayout(1, O_LAYOUT)), 1.0)[:, None]
    at = (first + rows // GROUP).to(gl.int64) * stride_out_token + (kv_head * GROUP + rows % GROUP) * stride_out_head
    gl.store(out + at[:, None] + dims[None, :], acc.to(DTYPE), mask=inside[:, None] & (dims < HEAD)[None, :])


@cached_autotune(
    configs=hopper_space(), key=HOPPER_KEYS, buckets=HOPPER_BUCKETS, prune_configs_by=hopper_pruned(),
    method=METHOD,
)  # fmt: skip
@gluon.jit(do_not_specialize=["stride_table", "num_seqs", "avg_query", "max_context", "decode_share"])
def hopper_kernel(
    out, stride_out_token, stride_out_head, keys, values, rows_per_page,
    q, cu_seqlens_q, seqused_k, block_table, sinks, softmax_scale, stride_token, stride_head, stride_table,
    num_seqs, avg_query, max_context, decode_share,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD: gl.constexpr, HEAD_PADDED: gl.constexpr, PAGE: gl.constexpr,
    TILE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    BLOCK_Q: gl.constexpr = ROWS // GROUP
    BOX: gl.constexpr = min(PAGE, COLUMNS)
    BOXES: gl.constexpr = STAGES * TILE // BOX * HEAD_PADDED // COLUMNS
    DTYPE: gl.constexpr = q.dtype.element_ty
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    # Heads vary fastest, and late Q blocks, which see the most keys, come first: the short ones fill the gaps.
    kv_head = gl.program_id(0) % KV_HEADS
    block = (gl.num_programs(0) - 1 - gl.program_id(0)) // KV_HEADS
    sequence, first, count, position = find_block(cu_seqlens_q, seqused_k, block, num_seqs, 2 * BLOCK_Q)
    if count > 0:
        end = position + count
        tiles = gl.cdiv(end, TILE)
        masked_tiles = gl.maximum(tiles - (position + 1) // TILE, 1)
        q_tiles = gl.allocate_shared_memory(DTYPE, [2, ROWS, HEAD_PADDED], SHARED)
        k_boxes = gl.allocate_shared_memory(DTYPE, [BOXES, BOX, COLUMNS], SHARED)
        v_boxes = gl.allocate_shared_memory(DTYPE, [BOXES, BOX, COLUMNS], SHARED)
        k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for stage in gl.static_range(STAGES):
            mbarrier.init(k_full.index(stage), count=1)
            mbarrier.init(v_full.index(stage), count=1)
            mbarrier.init(k_free.index(stage), count=2)
            mbarrier.init(v_free.index(stage), count=2)
        pages = block_table + sequence.to(gl.int64) * stride_table
        mine = gl.minimum(count, BLOCK_Q)
        scale = softmax_scale * LOG2E
        gl.warp_specialize([
            (consume, (gl.constexpr(0), out, q, sinks, q_tiles, k_boxes, v_boxes, k_full, k_free, v_full, v_free,
                       first, mine, position, end, kv_head, scale, tiles, masked_tiles,
                       stride_out_token, stride_out_head, stride_token, stride_head,
                       GROUP, HEAD, HEAD_PADDED, TILE, STAGES)),
            (consume, (gl.constexpr(1), out, q, sinks, q_tiles, k_boxes, v_boxes, k_full, k_free, v_full, v_free,
                       first + mine, count - mine, position + mine, end, kv_head, scale, tiles, masked_tiles,
                       stride_out_token, stride_out_head, stride_token, stride_head,
                       GROUP, HEAD, HEAD_PADDED, TILE, STAGES)),
            (produce, (keys, values, k_boxes, v_boxes, k_full, k_free, v_full, v_free, pages, (end - 1) // PAGE,
                       rows_per_page, kv_head * HEAD, tiles, PAGE, TILE, STAGES, HEAD_PADDED)),
        ], [4, 1], [240, 24])  # fmt: skip
