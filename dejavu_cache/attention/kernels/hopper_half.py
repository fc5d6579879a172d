"""Device functions of the Hopper kernel that compute half of each unit, in four warps, and merge.

`hopper_kernel` says what the halves of a unit are. A block that several units or both halves of a
program compute has partial results: each is the output so far, its maximum (base 2) and its sum. In
decoding, a few of them are merged by the half whose part came last. All others wait until no unit
is left, and then all programs merge them, a few rows each: one half would take longer alone than
for its part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_wait

from ...triton_internals.versions import reinterpret_shared, thread_barrier
from ..schedule import (
    COUNTERS,
    FEW_PARTS,
    MERGE,
    PARTS_OF_LAST,
    ROWS_OF_FEW,
    ROWS_OF_LAST,
    ROWS_OF_MANY,
)
from .hopper_pages import STARTED, await_tile, locate, receive, receive_started, skip, tile_of
from .hopper_rows import (
    EXTRA,
    LANES,
    LOG2E,
    ROWS,
    WORDS,
    as_words,
    await_products,
    hold,
    load_queries,
    multiply_keys,
    multiply_values,
    no_output,
    product_layout,
    round_pairs,
    softmax,
    store_part,
    store_rows,
    weights_layout,
)

wait_for_threads = thread_barrier(gl)

LEFT = gl.constexpr(3)
"""Counter of the halves that are done."""

MISSED = gl.constexpr(1 << 16)
"""Halves that could not wait are counted from this on, above those that are done."""

TASK = gl.constexpr(1 << 16)
"""Merges of a half of a Q block are counted from this on, above the parts that have arrived."""

MERGE_ENTRY = gl.constexpr(MERGE)
FEW = gl.constexpr(FEW_PARTS)
MANY_ROWS = gl.constexpr(ROWS_OF_MANY)
FEW_ROWS = gl.constexpr(ROWS_OF_FEW)
LAST_PARTS = gl.constexpr(PARTS_OF_LAST)
LAST_ROWS = gl.constexpr(ROWS_OF_LAST)


@gluon.jit
def merge_parts(out, scratch, row, pitch, parts, line, count, first, kv_head,
                PARTS: gl.constexpr, AT_ONCE: gl.constexpr, KIND: gl.constexpr):  # fmt: skip
    """Merge partial results of a few rows of half a Q block, and store their outputs.

    Args:
        out: the output, `TokenHeads`.
        scratch: the partial results.
        row: scratch row of the half's first part.
        pitch: scratch rows from one part to the next.
        parts: number of partial results.
        line: the first of the half's rows to merge.
        count: rows of the half.
        first: token of the half's first row.
        PARTS: partial results to load at a time.
        AT_ONCE: rows to merge.
        KIND: the binary's.
    """
    HEAD_PADDED: gl.constexpr = KIND.head_padded
    WIDTH: gl.constexpr = HEAD_PADDED + EXTRA
    LANES: gl.constexpr = min(HEAD_PADDED // 4, 32)
    CUBE: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 32 // LANES, LANES], [1, 4, 1], [2, 1, 0])
    MATRIX: gl.constexpr = gl.SliceLayout(2, CUBE)
    RESULT: gl.constexpr = gl.SliceLayout(0, CUBE)
    dims = gl.arange(0, HEAD_PADDED, gl.SliceLayout(0, gl.SliceLayout(1, CUBE)))
    columns = gl.arange(0, HEAD_PADDED, gl.SliceLayout(0, RESULT))
    lines = line + gl.arange(0, AT_ONCE, gl.SliceLayout(0, MATRIX))
    peak = gl.full([AT_ONCE], float("-inf"), gl.float32, gl.SliceLayout(0, MATRIX))
    total = gl.zeros([AT_ONCE], gl.float32, gl.SliceLayout(0, MATRIX))
    acc = gl.zeros([AT_ONCE, HEAD_PADDED], gl.float32, RESULT)
    for begin in range(0, parts, PARTS):
        part = begin + gl.arange(0, PARTS, gl.SliceLayout(1, MATRIX))
        there = (part < parts)[:, None] & (lines < count)[None, :]
        at_row = row + part[:, None] * pitch + lines[None, :]
        at = scratch + (at_row.to(gl.int64) * KIND.kv_heads + kv_head) * WIDTH
        # Bypass the L1 cache, which may still hold the scratch data of an earlier launch.
        peaks = gl.load(at + HEAD_PADDED, mask=there, other=float("-inf"), cache_modifier=".cg")
        totals = gl.load(at + HEAD_PADDED + 1, mask=there, other=0.0, cache_modifier=".cg")
        outputs = gl.load(
            at[:, :, None] + dims[None, :][:, None, :],
            mask=there[:, :, None],
            other=0.0,
            cache_modifier=".cg",
        )
        new_peak = gl.maximum(peak, gl.max(peaks, 0))
        shift = gl.where(new_peak == float("-inf"), 0.0, new_peak)
        fade = gl.exp2(peak - shift)
        weight = gl.exp2(peaks - shift[None, :])
        total = total * fade + gl.sum(totals * weight, 0)
        acc = acc * gl.convert_layout(fade, gl.SliceLayout(1, RESULT))[:, None]
        acc += gl.sum(outputs * weight[:, :, None], 0)
        peak = new_peak
    lines = line + gl.arange(0, AT_ONCE, gl.SliceLayout(1, RESULT))
    inside = lines < count
    divisor = gl.where(inside, gl.convert_layout(total, gl.SliceLayout(1, RESULT)), 1.0)
    at_out = (first + lines // KIND.group).to(gl.int64) * out.stride_token + (
        kv_head * KIND.group + lines % KIND.group
    ) * out.stride_head
    gl.store(
        out.pointer + at_out[:, None] + columns[None, :],
        (acc * (1.0 / divisor)[:, None]).to(out.pointer.dtype.element_ty),
        mask=inside[:, None] & (columns < KIND.head)[None, :],
    )


@gluon.jit
def is_few(parts, rows):
    """Check the partial results of some rows, in decoding, for being merged by the last of them."""
    return (parts <= LAST_PARTS) & (rows <= LAST_ROWS)


@gluon.jit
def merge_few(out, scratch, row, parts, rows, first, kv_head, KIND: gl.constexpr):  # fmt: skip
    """Merge all rows of a Q block of one half; all parts have arrived, one behind the other."""
    for line in range(0, rows, MANY_ROWS):
        merge_parts(
            out, scratch, row, rows, parts, line, rows, first, kv_head,
            1024 // KIND.head_padded, MANY_ROWS, KIND,
        )  # fmt: skip


@gluon.jit
def merge(
    which: gl.constexpr, out, scratch, arrivals, counters, units, ring, turn, KIND: gl.constexpr
):
    """Merge this half's share of the schedule's list of rows to merge, when no unit is left.

    A part is waited for only if all programs run: one that is yet to start, on a GPU that other
    work shares, might wait for this program to end. If it does not start soon, nothing is merged by
    this half, and all by the last half to leave.
    """
    tasks = gl.load(units + 1) * KIND.kv_heads
    if tasks > 0:
        halves = KIND.halves * gl.num_programs(0)
        task = KIND.halves * gl.program_id(0) + which
        step = halves
        waits = receive_started(ring, turn) > 0
        own = gl.where(waits, 1, MISSED + 1)
        task = gl.where(waits, task, tasks)
        going = True
        while going:
            while task < tasks:
                merge_task(out, scratch, arrivals, units, task, waits, KIND)
                task += step
            going = False
            if own > 0:
                # Who counts an arrival has released its parts: no other order is needed here.
                left = own + gl.atomic_add(counters + LEFT, own, sem="relaxed")
                own = 0
                if left % MISSED == halves:
                    going = left >= MISSED
                    gl.store(counters + STARTED, 0)  # as the next launch must find them
                    gl.store(counters + LEFT, 0)
                    task = 0
                    step = 1
                    waits = False


@gluon.jit
def merge_task(out, scratch, arrivals, units, task, waits, KIND: gl.constexpr):
    """Merge a few rows of a KV head, after their parts have arrived."""
    entry = units + gl.load(units + 2) + task // KIND.kv_heads * MERGE_ENTRY
    kv_head = task % KIND.kv_heads
    first = gl.load(entry)
    count = gl.load(entry + 1)
    line = gl.load(entry + 2)
    row = gl.load(entry + 3)
    pitch = gl.load(entry + 4)
    parts = gl.load(entry + 5)
    chunks = gl.load(entry + 7)
    if gl.load(entry + 8) > KIND.tile:
        counter = arrivals + gl.load(entry + 6) * KIND.kv_heads + kv_head
        if waits:
            while load_acquire(counter) % TASK < parts * KIND.sharers:
                pass
            wait_for_threads()  # all threads have seen the count before one of them resets it
        # As `constants_of` lists the rows: decoding has few, and one variant is less code.
        if (KIND.pairs == 0) or (parts > FEW):
            merge_parts(
                out, scratch, row, pitch, parts, line, count, first, kv_head,
                2048 // KIND.head_padded, MANY_ROWS, KIND,
            )  # fmt: skip
        else:
            merge_parts(
                out, scratch, row, pitch, parts, line, count, first, kv_head,
                512 // KIND.head_padded, FEW_ROWS, KIND,
            )  # fmt: skip
        # The last one to have seen the count leaves it as the next launch must find it.
        last = (chunks == 1) | (waits == 0)
        if not last:
            last = gl.atomic_add(counter, TASK, sem="relaxed") // TASK == chunks - 1
        if last:
            gl.store(counter, 0)


@gluon.jit
def load_acquire(counter):
    """Read a counter, and see what was stored before its arrivals were counted."""
    return gl.inline_asm_elementwise(
        "ld.acquire.gpu.global.s32 $0, [$1];", "=r,l,~{memory}", [counter.to(gl.int64, bitcast=True)],
        dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


reinterpret = reinterpret_shared(gl)

FIRST_ARRIVAL = gl.constexpr(COUNTERS)

SHARED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
"""Layout of tiles in shared memory: that of TMA's boxes, one beside the other."""


class Tiles(NamedTuple):
    """Tiles to multiply in shared memory: queries of each half, and boxes of keys and values."""

    q: Any
    k: Any
    v: Any


class Factors(NamedTuple):
    """Numbers that scale scores and outputs.

    Attributes:
        scores: `softmax_scale`.
        softcap: limit of the scores.
        k_scale: pointer to the factor of the cached keys, or None.
        v_scale: pointer to that of the values, or None.
    """

    scores: Any
    softcap: Any
    k_scale: Any
    v_scale: Any


@gluon.jit
def load_half(which: gl.constexpr, q, unit, KIND: gl.constexpr):
    """Load this half's queries of a unit: its rows of a block of two, else those of its KV head."""
    _, first, tokens, _, _, _, _, kv_head = unit
    together = tokens > KIND.block_q
    skipped = gl.where(together, which * KIND.block_q, 0)
    head = kv_head + gl.where(together, 0, which * (KIND.heads - 1))
    return load_queries(q, first + skipped, tokens - skipped, head, KIND)


@gluon.constexpr_function
def loads_early(head_padded):
    """Return whether a half has the registers to load the next unit's queries in this one."""
    return head_padded <= 128


@gluon.jit
def consume_tile(which: gl.constexpr, step, stride, tile, MASKED: gl.constexpr, acc, weights, fade, peak, total,
                 queries, k, v, stages, positions, first_position, low, end, scale, softcap, KIND: gl.constexpr):  # fmt: skip
    """Multiply a tile's keys and the previous tile's values; the softmax overlaps the latter.

    The output so far is scaled for the previous tile while the keys are multiplied.
    """
    stage = step % KIND.stages
    before = (step - stride) % KIND.stages
    await_tile(stages.k_full, step, KIND)
    scores = multiply_keys(queries, k.index(stage), KIND)
    await_tile(stages.v_full, step - stride, KIND)
    acc = multiply_values(weights, own_values(which, v, before, KIND), acc, fade, KIND)
    if KIND.pairs == 0:
        if stride == 2:
            skip(stages, step - 1, KIND)
    scores = warpgroup_mma_wait(len(KIND.value_widths), [scores])
    mbarrier.arrive(stages.k_free.index(stage))
    new_weights, fade, peak, total = softmax(
        scores, peak, total, positions, first_position, low + tile * KIND.tile, end, scale, softcap, MASKED, KIND
    )  # fmt: skip
    # The exponentials overlap the multiplication only if the compiler leaves them before the wait:
    # their sum is waited for too, and the branch ends the block in which ptxas may move them.
    if KIND.pairs > 0:
        if stride == 2:
            skip(stages, step - 1, KIND)
    acc, total = await_products(acc, total)
    mbarrier.arrive(stages.v_free.index(before))
    weights = round_pairs(
        gl.convert_layout(new_weights, weights_layout(KIND.value_widths[0])), k.dtype
    )
    return acc, weights, fade, peak, total


@gluon.jit
def own_values(which: gl.constexpr, v, stage, KIND: gl.constexpr):
    """Return the columns of a stage's values that a half multiplies: all, or its own."""
    return v.index(stage * KIND.sharers + which * (KIND.sharers - 1))


@gluon.jit
def attend(which: gl.constexpr, begin, stop, stride, tile, pace, acc, peak, total, queries, k, v,
           stages, positions, first_position, low, high, end, scale, softcap,
           q, units, ring, turn, KIND: gl.constexpr):  # fmt: skip
    """Compute half a unit: loaded tiles begin, begin + stride, … before stop.

    These are the keys' tiles `tile`, `tile` + pace, ….

    Returns:
        The output, its maximum and sum; what `receive` returns for the next unit; and its queries
        if this `loads_early`.
    """
    DTYPE: gl.constexpr = k.dtype
    # In decoding, the softmax asks for each tile whether to mask it. A loop without masks would be more
    # code: a launch after the products of a model probably finds its code in no cache, and waits for it.
    HAS_PLAIN_LOOP: gl.constexpr = (KIND.window < 0) & (KIND.pairs > 0)
    count = gl.cdiv(stop - begin, stride)
    stage = begin % KIND.stages
    await_tile(stages.k_full, begin, KIND)
    scores = multiply_keys(queries, k.index(stage), KIND)
    if (stride == 2) & (which == 1):
        skip(stages, begin - 1, KIND)
    scores = warpgroup_mma_wait(0, [scores])
    mbarrier.arrive(stages.k_free.index(stage))
    start = low + tile * KIND.tile
    weights, fade, peak, total = softmax(
        scores, peak, total, positions, first_position, start, end, scale, softcap, True, KIND
    )  # fmt: skip
    weights = round_pairs(gl.convert_layout(weights, weights_layout(KIND.value_widths[0])), DTYPE)
    if KIND.pairs > 0:
        clear_end(which, v, begin, start, end, stages, KIND)
    masked = count
    if HAS_PLAIN_LOOP:
        # Every row sees the tiles that end before the first row's position.
        visible = gl.maximum(gl.minimum(first_position + 1, high) - low, 0) // KIND.tile
        masked = gl.minimum(gl.maximum(gl.cdiv(tile + 1 - visible, -pace), 1), count)
    for index in range(1, masked):
        acc, weights, fade, peak, total = consume_tile(
            which, begin + index * stride, stride, tile + index * pace, True, acc, weights, fade, peak, total,
            queries, k, v, stages, positions, first_position, low, end, scale, softcap, KIND,
        )  # fmt: skip
    if HAS_PLAIN_LOOP:
        for index in range(masked, count):
            acc, weights, fade, peak, total = consume_tile(
                which, begin + index * stride, stride, tile + index * pace, False, acc, weights, fade, peak, total,
                queries, k, v, stages, positions, first_position, low, end, scale, softcap, KIND,
            )  # fmt: skip
    last = begin + (count - 1) * stride
    await_tile(stages.v_full, last, KIND)
    if KIND.pairs == 0:
        start = low + (tile + (count - 1) * pace) * KIND.tile
        clear_end(which, v, last, start, end, stages, KIND)
    acc = multiply_values(weights, own_values(which, v, last % KIND.stages, KIND), acc, fade, KIND)
    next_unit = receive(units, ring, turn, KIND)
    next_queries = 0
    if loads_early(KIND.head_padded):
        next_queries = load_half(which, q, next_unit, KIND)
    acc, total = await_products(acc, total)
    mbarrier.arrive(stages.v_free.index(last % KIND.stages))
    if last + 1 < stop:
        skip(stages, last + 1, KIND)
    return acc, peak, total, next_unit, next_queries


@gluon.jit
def clear_end(which: gl.constexpr, v, step, start, end, stages, KIND: gl.constexpr):
    """Set a tile's values past the last token to zero.

    They may be anything, and zero times that must be zero. Where both halves write, they write the
    same, so neither need wait for the other.
    """
    if end < start + KIND.tile:
        await_tile(stages.v_full, step, KIND)
        tokens = start + gl.arange(0, KIND.tile, gl.SliceLayout(1, WORDS))
        columns = own_values(which, v, step % KIND.stages, KIND)
        values = as_words(columns, KIND.tile, columns.shape[1])
        values.store(gl.where((tokens < end)[:, None], values.load(WORDS), 0))
        fence_async_shared()


@gluon.jit
def finish(which: gl.constexpr, out, queries, scratch, arrivals, acc, peak, total, first, tokens, kv_head, together,
           mine, entry, shared, KIND: gl.constexpr):  # fmt: skip
    """Store half a Q block's output, or a partial result; the last of a few merges them.

    Overwrites the queries in shared memory.
    """
    COLUMN: gl.constexpr = which * (KIND.sharers - 1) * (KIND.head_padded // 2)
    count = gl.minimum(tokens, KIND.block_q) * KIND.group
    if not shared:
        if mine:
            staging = reinterpret(
                queries,
                queries.dtype,
                [KIND.sharers, ROWS, KIND.head_padded // KIND.sharers],
                SHARED,
            ).index(0)
            store_rows(out, staging, acc, total, first, tokens, kv_head, COLUMN, KIND)
    else:
        piece = gl.load(entry + 6)
        pieces = gl.load(entry + 7)
        row = gl.load(entry + 8)
        # Parts lie one behind the other: of both halves in turns, unless these have a head each, or
        # columns of the same part.
        size = gl.where(together, ROWS, count)
        halves = gl.where(together, 2, KIND.parts)
        half = which * (halves - 1)
        store_part(
            scratch, acc, peak, total, row + (halves * piece + half) * size, count, kv_head, COLUMN, KIND
        )  # fmt: skip
        wait_for_threads()  # all threads have written before the arrival is counted
        own = gl.where(together, which, 0)
        counter = arrivals + (2 * gl.load(entry + 9) + own) * KIND.kv_heads + kv_head
        parts = pieces * halves
        if (KIND.pairs == 0) and is_few(parts, count):
            if gl.atomic_add(counter, 1) == parts * KIND.sharers - 1:
                merge_few(out, scratch, row, parts, count, first, kv_head, KIND)
                gl.store(counter, 0)  # as the next launch must find it
        else:
            gl.atomic_add(counter, 1, sem="release")


@gluon.jit
def consume(which: gl.constexpr, out, q, sinks, units, scratch, counters, tiles, stages, ring, factors, KIND: gl.constexpr):  # fmt: skip
    """Compute half of each unit; runs in four warps."""
    DTYPE: gl.constexpr = q.pointer.dtype.element_ty
    S_LAYOUT: gl.constexpr = product_layout(KIND.tile)
    # Boxes, first down and then across, are how swizzled shared memory holds a tile.
    k = reinterpret(tiles.k, DTYPE, [KIND.stages, KIND.tile, KIND.head_padded], SHARED)
    v = reinterpret(
        tiles.v,
        DTYPE,
        [KIND.stages * KIND.sharers, KIND.tile, KIND.head_padded // KIND.sharers],
        SHARED,
    )
    queries = tiles.q.index(which)
    arrivals = counters + FIRST_ARRIVAL
    if KIND.overlap:
        gdc_wait()
    softcap = factors.softcap
    scale = factors.scores * LOG2E
    if KIND.softcap:
        scale = factors.scores * (-2.0 * LOG2E) / softcap
    if factors.k_scale is not None:
        scale *= gl.load(factors.k_scale)
    turn = 0
    done = 0  # tiles loaded for the units before
    unit = receive(units, ring, turn, KIND)
    queries_here = load_half(which, q, unit, KIND)
    while unit[0] >= 0:
        as_words(queries, ROWS, KIND.head_padded).store(queries_here)
        fence_async_shared()
        held = hold(queries, KIND)
        number, first, tokens, position, low, high, pieces, kv_head = unit
        entry, _ = locate(units, number, KIND)
        together = (tokens > KIND.block_q) & (KIND.pairs > 0)
        alone = (tokens <= KIND.block_q) | (KIND.pairs == 0)
        count = gl.cdiv(high - low, KIND.tile)
        shared = pieces > 1
        index = 0
        if KIND.heads == 2:
            loaded = gl.where(alone, 2 * count, count)
            stride = gl.where(alone, 2, 1)
            begin = gl.where(alone, which, 0)
            pace = 1
            head = kv_head + begin
        elif (KIND.halves == 1) or (KIND.sharers == 2):
            loaded = count
            stride = 1
            begin = 0
            pace = 1
            head = kv_head
        else:
            loaded = count
            stride = gl.where(alone & (pieces > 0), 2, 1)
            begin = gl.where(alone, gl.where(pieces > 0, which, which * count), 0)
            pace = stride
            index = begin
            head = kv_head
            shared = shared | (alone & (pieces > 0) & (count > 1))
        if KIND.pairs > 0:
            pace = -pace
        skipped = gl.where(together, which * KIND.block_q, 0)
        rows = gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        peak = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
        total = gl.zeros([ROWS, 4], gl.float32, LANES)
        lane = gl.arange(0, 4, gl.SliceLayout(0, LANES))
        if sinks is not None:  # one part of each row counts its head's sink
            counts = (gl.load(entry + 6) == 0) & (together | (which == 0) | (KIND.parts == 1))
            sink = gl.load(sinks + head * KIND.group + rows % KIND.group).to(gl.float32) * LOG2E
            peak = gl.where(counts & (rows >= 0), sink, peak)
            total = gl.where(counts & (lane == 0)[None, :], 1.0, total)
        acc = no_output(KIND)
        turn += 1
        # Each unit has keys, so two heads have a tile each.
        if (KIND.parts == 1) or (begin < loaded):
            acc, peak, total, unit, next_queries = attend(
                which, done + begin, done + loaded, stride,
                tile_of(index, count, KIND), pace, acc, peak, total, held, k, v,
                stages, position + skipped + rows // KIND.group, position + skipped,
                low, high, position + tokens, scale, softcap,
                q, units, ring, turn, KIND,
            )  # fmt: skip
        else:  # the other half has the only tile
            # The producer sends the next unit only after this one's tiles, which need their stages.
            for tile in range(done, done + loaded):
                skip(stages, tile, KIND)
            unit = receive(units, ring, turn, KIND)
            next_queries = 0
            if loads_early(KIND.head_padded):
                next_queries = load_half(which, q, unit, KIND)
        done += loaded
        sums = gl.sum(total, 1)
        if factors.v_scale is not None:
            sums = sums / gl.load(factors.v_scale)
        finish(
            which, out, queries, scratch, arrivals, acc, peak, sums, first + skipped, tokens - skipped, head, together,
            begin < loaded, entry, shared, KIND,
        )  # fmt: skip
        queries_here = next_queries
        if not loads_early(KIND.head_padded):
            queries_here = load_half(which, q, unit, KIND)
    merge(which, out, scratch, arrivals, counters, units, ring, turn + 1, KIND)
