"""Device functions of the Hopper kernel that take units and load their pages.

One warp, the producer, runs ahead of the two halves that compute. It sends them each unit through a
ring in shared memory, and tiles of keys and values through stages, each with a barrier that it is
full and one that it is free.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ...triton_internals.versions import load_box
from ..schedule import ENTRY, HEADER
from .hopper_new_tokens import write_tile

__all__ = [
    "COLUMNS",
    "RING",
    "STARTED",
    "Pages",
    "Ring",
    "Stages",
    "await_tile",
    "locate",
    "make_barriers",
    "make_stages",
    "produce",
    "receive",
    "receive_started",
    "skip",
    "tile_of",
]

fetch_box = load_box(tma)

COLUMNS = gl.constexpr(64)
"""Columns of a box that TMA loads, and the limit of its rows.

A row of swizzled shared memory has as many 2-byte elements.
"""

RING = gl.constexpr(2)
"""Number of units that the producer may be ahead."""

TAKEN = gl.constexpr(0)
"""Counter of the units that were taken, beyond the first one of each program."""

ENDED = gl.constexpr(1)
"""Counter of the producers that have ended."""

STARTED = gl.constexpr(2)
"""Counter of the programs that run, by which `hopper_merge` knows whether it may wait for them."""

PATIENCE = gl.constexpr(64)
"""Times that the producer asks whether all programs run; each takes about a microsecond."""

UNIT = gl.constexpr(ENTRY)
FIRST_UNIT = gl.constexpr(HEADER)


class Stages(NamedTuple):
    """Barriers of tiles in shared memory, of which the producer fills and the halves free some."""

    k_full: Any
    k_free: Any
    v_full: Any
    v_free: Any


class Pages(NamedTuple):
    """Where tokens lie in the matrix of a cache that TMA reads.

    Attributes:
        table: pointer to the numbers of a sequence's pages.
        stride_table: numbers from one sequence to the next.
        page_rows: rows of the matrix from one page to the next.
        head_rows: rows from one KV head to the next.
        head_columns: columns from one KV head to the next.
    """

    table: Any
    stride_table: Any
    page_rows: Any
    head_rows: Any
    head_columns: Any


class Ring(NamedTuple):
    """Units in shared memory that the producer has taken, and their barriers."""

    slots: Any
    full: Any
    free: Any


@gluon.jit
def make_barriers(COUNT: gl.constexpr):
    """Allocate barriers in shared memory."""
    return gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())


@gluon.jit
def make_stages(COUNT: gl.constexpr, READERS: gl.constexpr):
    """Return the barriers of COUNT tiles of keys and of values, which READERS free."""
    stages = Stages(
        make_barriers(COUNT), make_barriers(COUNT), make_barriers(COUNT), make_barriers(COUNT)
    )
    for stage in gl.static_range(COUNT):
        mbarrier.init(stages.k_full.index(stage), count=1)
        mbarrier.init(stages.v_full.index(stage), count=1)
        mbarrier.init(stages.k_free.index(stage), count=READERS)
        mbarrier.init(stages.v_free.index(stage), count=READERS)
    return stages


@gluon.jit
def locate(units, unit, KIND: gl.constexpr):
    """Return a pointer to a unit's entry and the first of its KV heads; any for unit -1."""
    EACH: gl.constexpr = KIND.kv_heads // KIND.heads
    number = gl.maximum(unit, 0)
    entry = units + FIRST_UNIT + number // EACH * UNIT
    return entry, number % EACH * KIND.heads + gl.load(entry + 10)


@gluon.jit
def send_unit(ring, turn, unit):
    """Send both halves the next unit; -1 ends them."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    slot = turn % RING
    mbarrier.wait(ring.free.index(slot), ((turn // RING) & 1) ^ 1)
    ring.slots.index(slot).store(gl.full([1], unit, gl.int32, LAYOUT))
    mbarrier.arrive(ring.full.index(slot))


@gluon.jit
def receive(units, ring, turn, KIND: gl.constexpr):
    """Receive the next unit, and read its entry.

    Returns:
        The unit, its first token, number of tokens, first position, first key, end of its keys,
        number of pieces, and KV head. After the last one, the unit is -1 and has no tokens.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    slot = turn % RING
    mbarrier.wait(ring.full.index(slot), (turn // RING) & 1)
    unit = gl.max(ring.slots.index(slot).load(LAYOUT), 0)
    mbarrier.arrive(ring.free.index(slot))
    entry, kv_head = locate(units, unit, KIND)
    tokens = gl.where(unit >= 0, gl.load(entry + 2), 0)
    return (
        unit, gl.load(entry + 1), tokens, gl.load(entry + 3), gl.load(entry + 4), gl.load(entry + 5),
        gl.load(entry + 7), kv_head,
    )  # fmt: skip


@gluon.jit
def fetch_tile(cache, boxes, full, rows, column, stage, KIND: gl.constexpr):
    """Load a tile box by box; the barrier `full` counts its bytes."""
    COLUMNS: gl.constexpr = boxes.shape[2]
    ACROSS: gl.constexpr = KIND.head_padded // COLUMNS
    DOWN: gl.constexpr = len(rows)
    BYTES: gl.constexpr = cache.dtype.primitive_bitwidth // 8
    mbarrier.expect(full.index(stage), KIND.tile * KIND.head_padded * BYTES)
    for down in gl.static_range(DOWN):
        for across in gl.static_range(ACROSS):
            box = boxes.index((stage * ACROSS + across) * DOWN + down)
            fetch_box(cache, [rows[down], column + across * COLUMNS], full.index(stage), box)


@gluon.jit
def read_range(units, unit, KIND: gl.constexpr):
    """Read a unit's sequence, tokens, first position, first key, end of the keys and KV head."""
    entry, kv_head = locate(units, unit, KIND)
    return (
        gl.load(entry), gl.load(entry + 2), gl.load(entry + 3), gl.load(entry + 4), gl.load(entry + 5), kv_head
    )  # fmt: skip


@gluon.jit
def produce(keys, values, k_boxes, v_boxes, stages, ring, units, counters, cache, new, KIND: gl.constexpr):  # fmt: skip
    """Take units and load their tiles, as `tile_of` orders them; runs in one warp.

    Tiles of a unit with two KV heads alternate between these. New tokens, if given, are written
    into the cache before their tile is loaded.
    """
    STAGES: gl.constexpr = KIND.raw_stages if KIND.raw_stages else KIND.stages
    if KIND.overlap:
        # Nothing is read before the kernel before this one has ended. The next one may begin when
        # all programs of this one have come here, and so takes the place of none.
        gdc_wait()
        gdc_launch_dependents()
    programs = gl.num_programs(0)
    turn = 0
    done = 0
    unit = gl.program_id(0)
    # The list has room for an entry of each program, which is read before its length is known.
    sequence, tokens, position, low, high, kv_head = read_range(units, unit, KIND)
    count = gl.load(units) * (KIND.kv_heads // KIND.heads)
    merges = gl.load(units + 1)
    if merges > 0:
        gl.atomic_add(counters + STARTED, 1, sem="relaxed")
    if unit >= count:
        unit = -1
    send_unit(ring, turn, unit)
    while unit >= 0:
        # Heads vary fastest, so that programs which run together read the same page numbers.
        pages = cache.table + sequence.to(gl.int64) * cache.stride_table
        last_page = (position + tokens - 1) // KIND.page
        heads = gl.where(tokens <= KIND.block_q, KIND.heads, 1)
        tiles = gl.cdiv(high - low, KIND.tile)
        for step in range(tiles * heads):
            stage = (done + step) % STAGES
            turned = ((done + step) // STAGES) & 1
            tile = tile_of(step // heads, tiles, KIND)
            head = kv_head + step % heads
            rows = ()
            for box in gl.static_range(KIND.tile // KIND.box):
                token = low + tile * KIND.tile + box * KIND.box
                page = gl.load(pages + gl.minimum(token // KIND.page, last_page))
                rows = rows + (page * cache.page_rows + head * cache.head_rows + token % KIND.page,)  # type: ignore[assignment]
            if new.new_keys is not None:
                start = low + tile * KIND.tile
                if (step % heads == 0) & (start + KIND.tile > position):
                    entry, _ = locate(units, unit, KIND)
                    first = gl.load(entry + 1)
                    write_tile(
                        new, first, tokens, position, start, kv_head, cache.page_rows, cache.head_rows,
                        cache.head_columns, KIND
                    )  # fmt: skip
            mbarrier.wait(stages.k_free.index(stage), turned ^ 1)
            fetch_tile(keys, k_boxes, stages.k_full, rows, head * cache.head_columns, stage, KIND)
            mbarrier.wait(stages.v_free.index(stage), turned ^ 1)
            fetch_tile(values, v_boxes, stages.v_full, rows, head * cache.head_columns, stage, KIND)
        done += tiles * heads
        # The next unit is taken while this one's last tiles fly, so that a program with long units
        # leaves the rest to others. Its entry is read, so that the L1 cache has it when the halves
        # look.
        turn += 1
        unit = programs + gl.atomic_add(counters + TAKEN, 1, sem="relaxed")
        if unit >= count:
            unit = -1
        send_unit(ring, turn, unit)
        sequence, tokens, position, low, high, kv_head = read_range(units, unit, KIND)
    if merges > 0:
        send_unit(ring, turn + 1, await_programs(counters + STARTED, programs))
    # The last program leaves the counters as the next launch must find them.
    if gl.atomic_add(counters + ENDED, 1, sem="relaxed") == programs - 1:
        gl.store(counters + TAKEN, 0)
        gl.store(counters + ENDED, 0)


@gluon.jit
def tile_of(index, tiles, KIND: gl.constexpr):
    """Return the tile of keys that is loaded as number `index` of a unit.

    Prompts begin with their last keys, the only ones that they mask. In decoding, the last keys
    come last: other tiles are on their way while new tokens are written.
    """
    tile = index
    if KIND.pairs > 0:
        tile = tiles - 1 - index
    return tile


@gluon.jit
def await_programs(started, programs):
    """Wait a while until all programs run; return 1 if they do, else 0."""
    running = gl.atomic_add(started, 0, sem="relaxed")
    tries = 0
    while (running < programs) & (tries < PATIENCE):
        running = gl.atomic_add(started, 0, sem="relaxed")
        tries += 1
    return (running >= programs).to(gl.int32)


@gluon.jit
def receive_started(ring, turn):
    """Receive the number that follows the last unit: whether all programs run."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    mbarrier.wait(ring.full.index(turn % RING), (turn // RING) & 1)
    return gl.max(ring.slots.index(turn % RING).load(LAYOUT), 0)


@gluon.jit
def await_tile(full, tile, KIND: gl.constexpr):
    """Wait until a tile is loaded."""
    mbarrier.wait(full.index(tile % KIND.stages), (tile // KIND.stages) & 1)


@gluon.jit
def skip(stages, tile, KIND: gl.constexpr):
    """Leave a tile to the other half.

    Each half sees and releases every tile, or it could not tell a stage's tile from a later one.
    """
    await_tile(stages.k_full, tile, KIND)
    mbarrier.arrive(stages.k_free.index(tile % KIND.stages))
    await_tile(stages.v_full, tile, KIND)
    mbarrier.arrive(stages.v_free.index(tile % KIND.stages))
