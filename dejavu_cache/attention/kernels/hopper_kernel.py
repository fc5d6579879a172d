"""Hopper kernel in Gluon, Triton's language with explicit layouts, barriers and warps.

Programs take units from the list of `schedule.py`. Two groups of four warps each compute half a
unit. A Q block of a prompt has two halves of 64 rows, which share tiles of keys and values; while
one multiplies, the other computes exponentials. Where the rows of a block fit one half, the halves
compute two KV heads. If the number of heads is odd, they compute every other tile, or half of the
columns each (`parts_each` says when). In most decoding, a program has one such group only, and two
programs share a multiprocessor (`halves_of` says when). One more warp only takes units and loads
pages, so the next unit's pages are on their way while the results of the previous one are written.
`hopper_half` is one group's work, and says who merges partial results, and when. `hopper_pages` is
the producer's work, and that of four more warps for a float8 cache.

With OVERLAP, the kernel may be launched while the one before it ends, and lets the next one do so.
"""

from __future__ import annotations

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from ...runtime.autotuner import cached_autotune
from .hopper import CAST_STAGES
from .hopper_half import SHARED, Factors, Tiles, consume
from .hopper_pages import (
    COLUMNS,
    RING,
    NewRows,
    Pages,
    Ring,
    cast_tiles,
    make_barriers,
    make_raw_tiles,
    make_stages,
    produce,
)
from .hopper_rows import ROWS, TokenHeads, kind_of

FIRST = gl.constexpr(0)
"""Number of the first half of a program."""

SECOND = gl.constexpr(1)
"""Number of the second half."""

READY = gl.constexpr(CAST_STAGES)
"""Tiles of a float8 cache that are ready to be multiplied; others are loaded ahead as they are."""


@cached_autotune(configs=[triton.Config({})], key=())  # one config: only its launches are recorded
@gluon.jit(
    do_not_specialize=["stride_table", "page_rows", "head_rows", "head_columns", "stride_slot", "stride_new",
                       "stride_new_head"],
    do_not_specialize_on_alignment=["k_cache", "v_cache", "new_keys", "new_values", "new_slots", "k_scale", "v_scale"],
)  # fmt: skip
def hopper_kernel(
    out, stride_out_token, stride_out_head, keys, values, page_rows, head_rows, head_columns,
    k_cache, v_cache, stride_slot, new_keys, new_values, new_slots, stride_new, stride_new_head,
    units, scratch, counters, q, block_table, sinks, k_scale, v_scale, softmax_scale, softcap, stride_token, stride_head, stride_table,
    PAIRS: gl.constexpr, KV_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD: gl.constexpr,
    HEAD_PADDED: gl.constexpr, PAGE: gl.constexpr, BOX: gl.constexpr, WINDOW: gl.constexpr, SOFTCAP: gl.constexpr,
    OVERLAP: gl.constexpr, HALVES: gl.constexpr, CAST: gl.constexpr, TILE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    KIND: gl.constexpr = kind_of(
        PAIRS, HALVES, KV_HEADS, GROUP, HEAD, HEAD_PADDED, PAGE, BOX, WINDOW, SOFTCAP,
        TILE, READY if CAST else STAGES, STAGES if CAST else 0, OVERLAP,
    )  # fmt: skip
    gl.static_assert(TILE % BOX == 0, "a tile has fewer rows than a box, and would never be full")
    BOXES: gl.constexpr = KIND.stages * TILE // BOX * HEAD_PADDED // COLUMNS
    DTYPE: gl.constexpr = q.dtype.element_ty
    q_tiles = gl.allocate_shared_memory(DTYPE, [KIND.halves, ROWS, HEAD_PADDED], SHARED)
    k_boxes = gl.allocate_shared_memory(DTYPE, [BOXES, BOX, COLUMNS], SHARED)
    v_boxes = gl.allocate_shared_memory(DTYPE, [BOXES, BOX, COLUMNS], SHARED)
    slots = gl.allocate_shared_memory(gl.int32, [RING, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    stages = make_stages(KIND.stages, KIND.halves)
    ring = Ring(slots, make_barriers(RING), make_barriers(RING))
    for slot in gl.static_range(RING):
        mbarrier.init(ring.full.index(slot), count=1)
        mbarrier.init(ring.free.index(slot), count=KIND.halves + (1 if CAST else 0))
    outputs = TokenHeads(out, stride_out_token, stride_out_head)
    queries = TokenHeads(q, stride_token, stride_head)
    factors = Factors(softmax_scale, softcap, k_scale, v_scale)
    new = NewRows(
        new_keys, new_values, new_slots, k_cache, v_cache, stride_new, stride_new_head, stride_slot
    )  # fmt: skip
    tiles = Tiles(q_tiles, k_boxes, v_boxes)
    pages = Pages(block_table, stride_table, page_rows, head_rows, head_columns)
    if CAST:
        raw = make_raw_tiles(keys.dtype, BOX, KIND)
        if KIND.halves == 1:
            gl.warp_specialize([
                (consume, (FIRST, outputs, queries, sinks, units, scratch, counters, tiles, stages, ring, factors, KIND)),
                (cast_tiles, (raw, k_boxes, v_boxes, stages, ring, units, DTYPE, KIND)),
                (produce, (keys, values, raw.k, raw.v, raw.stages, ring, units, counters, pages, new, KIND)),
            ], [4, 1], [40, 40])  # fmt: skip
        else:
            gl.warp_specialize([
                (consume, (FIRST, outputs, queries, sinks, units, scratch, counters, tiles, stages, ring, factors, KIND)),
                (consume, (SECOND, outputs, queries, sinks, units, scratch, counters, tiles, stages, ring, factors, KIND)),
                (cast_tiles, (raw, k_boxes, v_boxes, stages, ring, units, DTYPE, KIND)),
                (produce, (keys, values, raw.k, raw.v, raw.stages, ring, units, counters, pages, new, KIND)),
            ], [4, 4, 1], [216, 40, 40])  # fmt: skip
    elif KIND.halves == 1:
        gl.warp_specialize([
            (consume, (FIRST, outputs, queries, sinks, units, scratch, counters, tiles, stages, ring, factors, KIND)),
            (produce, (keys, values, k_boxes, v_boxes, stages, ring, units, counters, pages, new, KIND)),
        ], [1], [40])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (FIRST, outputs, queries, sinks, units, scratch, counters, tiles, stages, ring, factors, KIND)),
            (consume, (SECOND, outputs, queries, sinks, units, scratch, counters, tiles, stages, ring, factors, KIND)),
            (produce, (keys, values, k_boxes, v_boxes, stages, ring, units, counters, pages, new, KIND)),
        ], [4, 1], [232, 40])  # fmt: skip
