"""Hopper kernel in Gluon, Triton's language with explicit layouts, barriers and warps.

Programs take units from the list of `schedule.py`. Two groups of four warps each compute half a
unit. A Q block of a prompt has two halves of 64 rows, which share tiles of keys and values; while
one multiplies, the other computes exponentials. Where the rows of a block fit one half, as in
decoding, the halves compute two KV heads. If the number of heads is odd, they compute every other
tile, or half of the columns each (`shares_columns`). One more warp only takes units and loads pages,
so the next unit's pages are on their way while the results of the previous one are written.
`hopper_merge` says who merges partial results, and when.

With OVERLAP, the kernel may be launched while the one before it ends, and lets the next one do so.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_wait

from ...runtime.autotuner import cached_autotune
from ...triton_internals.versions import thread_barrier
from ...tuning.result_check import CheckOptions
from ..search_space import HOPPER_KEYS, METHOD, hopper_prune_rules, hopper_space
from .hopper_merge import is_few, merge, merge_few
from .hopper_pages import (
    COLUMNS,
    RING,
    Ring,
    Stages,
    locate,
    make_barriers,
    produce,
    receive,
    skip,
    watch,
)
from .hopper_products import (
    ROWS,
    await_products,
    columns_of_half,
    multiply_keys,
    multiply_values,
    no_output,
    round_pairs,
    shares_columns,
    weights_layout,
    widths_of,
)
from .hopper_rows import (
    LANES,
    LOG2E,
    WORDS,
    as_words,
    load_queries,
    softmax,
    store_part,
    store_rows,
)

__all__ = ["hopper_kernel"]

wait_for_threads = thread_barrier(gl)


@gluon.jit
def load_half(which: gl.constexpr, q, unit, stride_token, stride_head, HEADS: gl.constexpr,
              GROUP: gl.constexpr, HEAD: gl.constexpr, HEAD_PADDED: gl.constexpr):  # fmt: skip
    """Load this half's queries of a unit: its rows of a block of two, else those of its KV head."""
    BLOCK_Q: gl.constexpr = ROWS // GROUP
    _, first, tokens, _, _, _, _, kv_head = unit
    together = tokens > BLOCK_Q
    skipped = gl.where(together, which * BLOCK_Q, 0)
    head = kv_head + gl.where(together, 0, which * (HEADS - 1))
    return load_queries(
        q, first + skipped, tokens - skipped, head, stride_token, stride_head, GROUP, HEAD, HEAD_PADDED
    )  # fmt: skip


@gluon.constexpr_function
def loads_early(head_padded):
    """Return whether a half has the registers to load the next unit's queries in this one."""
    return head_padded <= 128


@gluon.jit
def consume_tile(which: gl.constexpr, step, stride, tile, MASKED: gl.constexpr, acc, weights, fade, peak, total,
                 queries, k, v, stages, positions, low, end, scale, softcap,
                 PAIRS: gl.constexpr, WIDTHS: gl.constexpr, OUT_WIDTHS: gl.constexpr, WINDOW: gl.constexpr, SOFTCAP: gl.constexpr,
                 TILE: gl.constexpr, STAGES: gl.constexpr, S_LAYOUT: gl.constexpr):  # fmt: skip
    """Multiply a tile's keys and the previous tile's values; the softmax overlaps the latter.

    The output so far is scaled for the previous tile while the keys are multiplied.
    """
    stage = step % STAGES
    before = (step - stride) % STAGES
    watch(stages.k_full, step, STAGES)
    scores = multiply_keys(queries, k.index(stage), WIDTHS, TILE, S_LAYOUT)
    watch(stages.v_full, step - stride, STAGES)
    acc = multiply_values(weights, own_values(which, v, before, STAGES), acc, fade, OUT_WIDTHS)
    if PAIRS == 0:
        if stride == 2:
            skip(stages, step - 1, STAGES)
    scores = warpgroup_mma_wait(len(OUT_WIDTHS), [scores])
    mbarrier.arrive(stages.k_free.index(stage))
    new_weights, fade, peak, total = softmax(
        scores, peak, total, positions, low + tile * TILE, end, scale, softcap, MASKED, WINDOW, SOFTCAP, TILE, S_LAYOUT
    )  # fmt: skip
    # The exponentials overlap the multiplication only if the compiler leaves them before the wait:
    # their sum is waited for too, and the branch ends the block in which ptxas may move them.
    if PAIRS > 0:
        if stride == 2:
            skip(stages, step - 1, STAGES)
    acc, total = await_products(acc, total)
    mbarrier.arrive(stages.v_free.index(before))
    weights = round_pairs(
        gl.convert_layout(new_weights, weights_layout(OUT_WIDTHS[0])), queries.dtype
    )
    return acc, weights, fade, peak, total


@gluon.jit
def own_values(which: gl.constexpr, v, stage, STAGES: gl.constexpr):
    """Return the columns of a stage's values that a half multiplies: all, or its own."""
    PARTS: gl.constexpr = v.shape[0] // STAGES
    return v.index(stage * PARTS + which * (PARTS - 1))


@gluon.jit
def attend(which: gl.constexpr, begin, stop, stride, top, pace, acc, peak, total, queries, k, v,
           stages, positions, first_position, low, high, end, scale, softcap,
           q, units, ring, turn, stride_token, stride_head,
           PAIRS: gl.constexpr, KV_HEADS: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr,
           HEAD: gl.constexpr, HEAD_PADDED: gl.constexpr, WIDTHS: gl.constexpr, OUT_WIDTHS: gl.constexpr,
           WINDOW: gl.constexpr, SOFTCAP: gl.constexpr, TILE: gl.constexpr,
           STAGES: gl.constexpr, S_LAYOUT: gl.constexpr):  # fmt: skip
    """Compute half a unit: loaded tiles begin, begin + stride, … before stop.

    These are the keys' tiles top, top - pace, …; the last keys come first.

    Returns:
        The output, its maximum and sum; what `receive` returns for the next unit; and its queries
        if this `loads_early`.
    """
    DTYPE: gl.constexpr = queries.dtype
    # Decoding waits for memory, so it may mask every tile. A loop without masks would be more code:
    # a launch after the products of a model probably finds its code in no cache, and waits for it.
    HAS_PLAIN_LOOP: gl.constexpr = (WINDOW < 0) & (PAIRS > 0)
    count = gl.cdiv(stop - begin, stride)
    stage = begin % STAGES
    watch(stages.k_full, begin, STAGES)
    scores = multiply_keys(queries, k.index(stage), WIDTHS, TILE, S_LAYOUT)
    if (stride == 2) & (which == 1):
        skip(stages, begin - 1, STAGES)
    scores = warpgroup_mma_wait(0, [scores])
    mbarrier.arrive(stages.k_free.index(stage))
    start = low + top * TILE
    weights, fade, peak, total = softmax(
        scores, peak, total, positions, start, end, scale, softcap, True, WINDOW, SOFTCAP, TILE, S_LAYOUT
    )  # fmt: skip
    weights = round_pairs(gl.convert_layout(weights, weights_layout(OUT_WIDTHS[0])), DTYPE)
    if end < start + TILE:
        # Values past the last token may be anything, and zero times that must be zero. Where both
        # halves write, they write the same, so neither need wait for the other.
        watch(stages.v_full, begin, STAGES)
        tokens = start + gl.arange(0, TILE, gl.SliceLayout(1, WORDS))
        columns = own_values(which, v, stage, STAGES)
        values = as_words(columns, TILE, columns.shape[1])
        values.store(gl.where((tokens < end)[:, None], values.load(WORDS), 0))
        fence_async_shared()
    masked = count
    if HAS_PLAIN_LOOP:
        # Every row sees the tiles that end before the first row's position.
        visible = gl.maximum(gl.minimum(first_position + 1, high) - low, 0) // TILE
        masked = gl.minimum(gl.maximum(gl.cdiv(top + 1 - visible, pace), 1), count)
    for index in range(1, masked):
        acc, weights, fade, peak, total = consume_tile(
            which, begin + index * stride, stride, top - index * pace, True, acc, weights, fade, peak, total,
            queries, k, v, stages, positions, low, end, scale, softcap,
            PAIRS, WIDTHS, OUT_WIDTHS, WINDOW, SOFTCAP, TILE, STAGES, S_LAYOUT,
        )  # fmt: skip
    if HAS_PLAIN_LOOP:
        for index in range(masked, count):
            acc, weights, fade, peak, total = consume_tile(
                which, begin + index * stride, stride, top - index * pace, False, acc, weights, fade, peak, total,
                queries, k, v, stages, positions, low, end, scale, softcap,
                PAIRS, WIDTHS, OUT_WIDTHS, WINDOW, SOFTCAP, TILE, STAGES, S_LAYOUT,
            )  # fmt: skip
    last = begin + (count - 1) * stride
    watch(stages.v_full, last, STAGES)
    acc = multiply_values(
        weights, own_values(which, v, last % STAGES, STAGES), acc, fade, OUT_WIDTHS
    )
    next_unit = receive(units, ring, turn, KV_HEADS, HEADS)
    next_queries = 0
    if loads_early(HEAD_PADDED):
        next_queries = load_half(
            which, q, next_unit, stride_token, stride_head, HEADS, GROUP, HEAD, HEAD_PADDED
        )
    acc, total = await_products(acc, total)
    mbarrier.arrive(stages.v_free.index(last % STAGES))
    if last + 1 < stop:
        skip(stages, last + 1, STAGES)
    return acc, peak, total, next_unit, next_queries


@gluon.jit
def finish(which: gl.constexpr, out, queries, scratch, arrivals, acc, peak, total, first, tokens, kv_head, together,
           mine, entry, shared, stride_out_token, stride_out_head,
           PAIRS: gl.constexpr, KV_HEADS: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD: gl.constexpr,
           HEAD_PADDED: gl.constexpr, SHARES_COLUMNS: gl.constexpr, OUT_WIDTHS: gl.constexpr):  # fmt: skip
    """Store half a Q block's output, or a partial result; the last of a few merges them.

    Overwrites the queries in shared memory.
    """
    COLUMN: gl.constexpr = which * (HEAD_PADDED // 2) if SHARES_COLUMNS else 0
    count = gl.minimum(tokens, ROWS // GROUP) * GROUP
    if not shared:
        if mine:
            PARTS: gl.constexpr = 2 if SHARES_COLUMNS else 1
            staging = queries._reinterpret(
                queries.dtype, [PARTS, ROWS, HEAD_PADDED // PARTS], gl.NVMMASharedLayout(128, 16, 2)
            ).index(0)
            store_rows(
                out, staging, acc, total, first, tokens, kv_head, stride_out_token, stride_out_head,
                GROUP, HEAD, COLUMN, OUT_WIDTHS,
            )  # fmt: skip
    else:
        piece = gl.load(entry + 6)
        pieces = gl.load(entry + 7)
        row = gl.load(entry + 8)
        # Parts lie one behind the other: of both halves in turns, unless these have a head each, or
        # columns of the same part.
        size = gl.where(together, ROWS, count)
        halves = gl.where(together, 2, 1 if SHARES_COLUMNS else 3 - HEADS)
        half = which * (halves - 1)
        store_part(
            scratch, acc, peak, total, row + (halves * piece + half) * size, count, kv_head,
            KV_HEADS, HEAD_PADDED, COLUMN, OUT_WIDTHS,
        )  # fmt: skip
        wait_for_threads()  # all threads have written before the arrival is counted
        own = gl.where(together, which, 0)
        counter = arrivals + (2 * gl.load(entry + 9) + own) * KV_HEADS + kv_head
        parts = pieces * halves
        if (PAIRS == 0) and is_few(parts, count):
            if gl.atomic_add(counter, 1) == parts * (2 if SHARES_COLUMNS else 1) - 1:
                merge_few(
                    out, scratch, row, parts, count, first, kv_head, stride_out_token, stride_out_head,
                    KV_HEADS, GROUP, HEAD, HEAD_PADDED,
                )  # fmt: skip
                gl.store(counter, 0)  # as the next launch must find it
        else:
            gl.atomic_add(counter, 1, sem="release")


@gluon.jit
def consume(which: gl.constexpr, out, q, sinks, units, scratch, arrivals, taken, q_tiles, k_boxes, v_boxes,
            stages, ring, softmax_scale, softcap,
            stride_out_token, stride_out_head, stride_token, stride_head,
            PAIRS: gl.constexpr, KV_HEADS: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr,
            HEAD: gl.constexpr, HEAD_PADDED: gl.constexpr, WINDOW: gl.constexpr, SOFTCAP: gl.constexpr,
            TILE: gl.constexpr, STAGES: gl.constexpr, OVERLAP: gl.constexpr):  # fmt: skip
    """Compute half of each unit; runs in four warps."""
    DTYPE: gl.constexpr = q.dtype.element_ty
    BLOCK_Q: gl.constexpr = ROWS // GROUP
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    SHARES_COLUMNS: gl.constexpr = shares_columns(PAIRS, KV_HEADS, HEAD_PADDED)
    WIDTHS: gl.constexpr = widths_of(HEAD, HEAD_PADDED)
    OUT_WIDTHS: gl.constexpr = columns_of_half(HEAD, HEAD_PADDED, SHARES_COLUMNS)
    PARTS: gl.constexpr = 2 if SHARES_COLUMNS else 1
    HAS_TILES: gl.constexpr = (HEADS == 2) or SHARES_COLUMNS
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    # Boxes, first down and then across, are how swizzled shared memory holds a tile.
    k = k_boxes._reinterpret(DTYPE, [STAGES, TILE, HEAD_PADDED], SHARED)
    v = v_boxes._reinterpret(DTYPE, [STAGES * PARTS, TILE, HEAD_PADDED // PARTS], SHARED)
    queries = q_tiles.index(which)
    scale = softmax_scale * LOG2E
    if SOFTCAP:
        scale = softmax_scale * (-2.0 * LOG2E) / softcap

    if OVERLAP:
        gdc_wait()
    turn = 0
    done = 0  # tiles loaded for the units before
    unit = receive(units, ring, turn, KV_HEADS, HEADS)
    queries_here = load_half(
        which, q, unit, stride_token, stride_head, HEADS, GROUP, HEAD, HEAD_PADDED
    )
    while unit[0] >= 0:
        as_words(queries, ROWS, HEAD_PADDED).store(queries_here)
        fence_async_shared()
        number, first, tokens, position, low, high, pieces, kv_head = unit
        entry, _ = locate(units, number, KV_HEADS, HEADS)
        together = (tokens > BLOCK_Q) & (PAIRS > 0)
        alone = (tokens <= BLOCK_Q) | (PAIRS == 0)
        tiles = gl.cdiv(high - low, TILE)
        top = tiles - 1
        shared = pieces > 1
        if HEADS == 2:
            loaded = gl.where(alone, 2 * tiles, tiles)
            stride = gl.where(alone, 2, 1)
            begin = gl.where(alone, which, 0)
            pace = 1
            head = kv_head + begin
        elif SHARES_COLUMNS:
            loaded = tiles
            stride = 1
            begin = 0
            pace = 1
            head = kv_head
        else:
            loaded = tiles
            stride = gl.where(alone & (pieces > 0), 2, 1)
            begin = gl.where(alone, gl.where(pieces > 0, which, which * tiles), 0)
            pace = stride
            top -= begin
            head = kv_head
            shared = shared | (alone & (pieces > 0) & (tiles > 1))
        skipped = gl.where(together, which * BLOCK_Q, 0)
        rows = gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        peak = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
        total = gl.zeros([ROWS, 4], gl.float32, LANES)
        lane = gl.arange(0, 4, gl.SliceLayout(0, LANES))
        if sinks is not None:  # one part of each row counts its head's sink
            counts = (gl.load(entry + 6) == 0) & (together | (which == 0) | HAS_TILES)
            sink = gl.load(sinks + head * GROUP + rows % GROUP).to(gl.float32) * LOG2E
            peak = gl.where(counts & (rows >= 0), sink, peak)
            total = gl.where(counts & (lane == 0)[None, :], 1.0, total)
        acc = no_output(OUT_WIDTHS)
        turn += 1
        if HAS_TILES or (begin < loaded):  # each unit has keys, so two heads have a tile each
            acc, peak, total, unit, next_queries = attend(
                which, done + begin, done + loaded, stride, top, pace, acc, peak, total, queries, k, v,
                stages, position + skipped + rows // GROUP, position + skipped,
                low, high, position + tokens, scale, softcap,
                q, units, ring, turn, stride_token, stride_head,
                PAIRS, KV_HEADS, HEADS, GROUP, HEAD, HEAD_PADDED, WIDTHS, OUT_WIDTHS,
                WINDOW, SOFTCAP, TILE, STAGES, S_LAYOUT,
            )  # fmt: skip
        else:  # the other half has the only tile
            # The producer sends the next unit only after this one's tiles, which need their stages.
            for tile in range(done, done + loaded):
                skip(stages, tile, STAGES)
            unit = receive(units, ring, turn, KV_HEADS, HEADS)
            next_queries = 0
            if loads_early(HEAD_PADDED):
                next_queries = load_half(
                    which, q, unit, stride_token, stride_head, HEADS, GROUP, HEAD, HEAD_PADDED
                )
        done += loaded
        finish(
            which, out, queries, scratch, arrivals, acc, peak, gl.sum(total, 1), first + skipped, tokens - skipped, head, together,
            begin < loaded, entry, shared, stride_out_token, stride_out_head,
            PAIRS, KV_HEADS, HEADS, GROUP, HEAD, HEAD_PADDED, SHARES_COLUMNS, OUT_WIDTHS,
        )  # fmt: skip
        queries_here = next_queries
        if not loads_early(HEAD_PADDED):
            queries_here = load_half(
                which, q, unit, stride_token, stride_head, HEADS, GROUP, HEAD, HEAD_PADDED
            )
    merge(
        which, out, scratch, arrivals, taken, units, ring, turn + 1, stride_out_token, stride_out_head,
        PAIRS, KV_HEADS, GROUP, HEAD, HEAD_PADDED, TILE,
    )  # fmt: skip


@cached_autotune(
    configs=hopper_space(), key=HOPPER_KEYS, prune_configs_by=hopper_prune_rules(), method=METHOD,
    prune_per="scenario", check=CheckOptions(ignore=("scratch",)),
)  # fmt: skip
@gluon.jit(do_not_specialize=["stride_table", "page_rows", "head_rows", "head_columns"])
def hopper_kernel(
    out, stride_out_token, stride_out_head, keys, values, page_rows, head_rows, head_columns,
    units, scratch, arrivals, q, block_table, sinks, softmax_scale, softcap, stride_token, stride_head, stride_table,
    PAIRS: gl.constexpr, KV_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD: gl.constexpr,
    HEAD_PADDED: gl.constexpr, PAGE: gl.constexpr, BOX: gl.constexpr, WINDOW: gl.constexpr, SOFTCAP: gl.constexpr,
    OVERLAP: gl.constexpr, TILE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    HEADS: gl.constexpr = 2 - KV_HEADS % 2
    BOXES: gl.constexpr = STAGES * TILE // BOX * HEAD_PADDED // COLUMNS
    DTYPE: gl.constexpr = q.dtype.element_ty
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q_tiles = gl.allocate_shared_memory(DTYPE, [2, ROWS, HEAD_PADDED], SHARED)
    k_boxes = gl.allocate_shared_memory(DTYPE, [BOXES, BOX, COLUMNS], SHARED)
    v_boxes = gl.allocate_shared_memory(DTYPE, [BOXES, BOX, COLUMNS], SHARED)
    slots = gl.allocate_shared_memory(gl.int32, [RING, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    stages = Stages(
        make_barriers(STAGES), make_barriers(STAGES), make_barriers(STAGES), make_barriers(STAGES)
    )
    ring = Ring(slots, make_barriers(RING), make_barriers(RING))
    for stage in gl.static_range(STAGES):  # the producer fills, and both halves free
        mbarrier.init(stages.k_full.index(stage), count=1)
        mbarrier.init(stages.v_full.index(stage), count=1)
        mbarrier.init(stages.k_free.index(stage), count=2)
        mbarrier.init(stages.v_free.index(stage), count=2)
    for slot in gl.static_range(RING):
        mbarrier.init(ring.full.index(slot), count=1)
        mbarrier.init(ring.free.index(slot), count=2)
    taken = arrivals
    counters = arrivals + 4
    gl.warp_specialize([
        (consume, (gl.constexpr(0), out, q, sinks, units, scratch, counters, taken, q_tiles, k_boxes, v_boxes,
                   stages, ring, softmax_scale, softcap,
                   stride_out_token, stride_out_head, stride_token, stride_head,
                   PAIRS, KV_HEADS, HEADS, GROUP, HEAD, HEAD_PADDED, WINDOW, SOFTCAP, TILE, STAGES, OVERLAP)),
        (consume, (gl.constexpr(1), out, q, sinks, units, scratch, counters, taken, q_tiles, k_boxes, v_boxes,
                   stages, ring, softmax_scale, softcap,
                   stride_out_token, stride_out_head, stride_token, stride_head,
                   PAIRS, KV_HEADS, HEADS, GROUP, HEAD, HEAD_PADDED, WINDOW, SOFTCAP, TILE, STAGES, OVERLAP)),
        (produce, (keys, values, k_boxes, v_boxes, stages, ring,
                   units, taken, block_table, stride_table, page_rows, head_rows, head_columns,
                   ROWS // GROUP, KV_HEADS, HEADS, HEAD_PADDED, PAGE, BOX, TILE, STAGES, OVERLAP)),
    ], [4, 1], [232, 40])  # fmt: skip
