"""Device functions of the Hopper kernel that take units, and bring their pages into shared memory.

One warp, the producer, runs ahead of the two halves that compute. It sends them each unit through a
ring in shared memory, and tiles of keys and values through stages, each with a barrier that it is
full and one that it is free.

In decoding, the producer may write new keys and values into the cache: those among a unit's own
keys, just before it loads their tile, so that none waits for what another one writes.

wgmma multiplies elements of one size. Four warps of their own turn each tile of a float8 cache that
TMA has loaded into one of the queries' dtype, while the halves multiply the tiles before it. So
these see no difference between caches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ...triton_internals.versions import load_box, reinterpret_shared, thread_barrier
from ..schedule import ENTRY, HEADER


class NewRows(NamedTuple):
    """New keys and values in memory, [token, head], and the caches that they belong in.

    Attributes:
        new_keys: pointer to the first token's keys.
        new_values: likewise.
        new_slots: as in `NewTokens`.
        k_cache: pointer to the cache's keys.
        v_cache: likewise.
        stride_token: elements from one new token to the next, in keys and values.
        stride_head: elements from one of its heads to the next.
        stride_slot: elements from one token of the cache to the next, in a page.
    """

    new_keys: Any
    new_values: Any
    new_slots: Any
    k_cache: Any
    v_cache: Any
    stride_token: Any
    stride_head: Any
    stride_slot: Any


@gluon.jit
def write_tile(new, first, tokens, position, start, kv_head, page_rows, head_rows, head_columns, KIND: gl.constexpr):  # fmt: skip
    """Write the new tokens among a tile's keys, of all KV heads of a unit; runs in one warp.

    Args:
        new: `NewRows`.
        first: the unit's first new token.
        tokens: number of its new tokens.
        position: position of the first one.
        start: position of the tile's first key.
        kv_head: the unit's first KV head.
        page_rows: rows of TMA's matrix from one page to the next.
        head_rows: likewise, from one KV head to the next.
        head_columns: columns from one KV head to the next.
        KIND: the binary's.
    """
    WIDTH: gl.constexpr = KIND.head_padded // 2
    LANES: gl.constexpr = 32 // KIND.heads
    LAYOUT: gl.constexpr = gl.BlockedLayout(
        [1, WIDTH // LANES], [KIND.heads, LANES], [1, 1], [1, 0]
    )
    heads = kv_head + gl.arange(0, KIND.heads, gl.SliceLayout(1, LAYOUT))
    words = gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    inside = (heads >= 0)[:, None] & (words < KIND.head // 2)[None, :]
    begin = gl.maximum(position, start)
    for place in range(begin, gl.minimum(position + tokens, start + KIND.tile)):
        token = first + place - position
        slot = gl.load(new.new_slots + token)
        source = (token.to(gl.int64) * new.stride_token + heads * new.stride_head) // 2
        keys = gl.load(as_words(new.new_keys) + (source[:, None] + words[None, :]), mask=inside)
        values = gl.load(as_words(new.new_values) + (source[:, None] + words[None, :]), mask=inside)
        row = slot // KIND.page * page_rows + slot % KIND.page + heads * head_rows
        at = (row * new.stride_slot + heads * head_columns) // 2
        written = inside & (slot >= 0)
        gl.store(as_words(new.k_cache) + (at[:, None] + words[None, :]), keys, mask=written)
        gl.store(as_words(new.v_cache) + (at[:, None] + words[None, :]), values, mask=written)
    show_stores(begin)


@gluon.jit
def as_words(pointer):
    """Return a pointer to words of two 2-byte elements."""
    return pointer.to(gl.pointer_type(gl.int32), bitcast=True)


@gluon.jit
def show_stores(number):
    """Let TMA see what the threads of this warp have stored."""
    gl.inline_asm_elementwise(
        "fence.proxy.async.global; bar.warp.sync 0xffffffff; mov.b32 $0, $1;", "=r,r", [number],
        dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


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
"""Counter of the programs that run, by which `hopper_half` knows whether it may wait for them."""

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


reinterpret = reinterpret_shared(gl)
wait_for_threads = thread_barrier(gl)


class RawTiles(NamedTuple):
    """Tiles as they lie in the cache.

    Attributes:
        k: keys in shared memory, boxes of TMA.
        v: values, likewise.
        stages: `Stages` of these, filled by the producer and freed here.
    """

    k: Any
    v: Any
    stages: Stages


@gluon.constexpr_function
def raw_columns(head_padded):
    """Return the columns of a box of 1-byte elements: at most a row of swizzled shared memory."""
    return min(head_padded, 128)


@gluon.constexpr_function
def raw_layout(head_padded, bits):
    """Return the layout of raw tiles in shared memory, seen as elements of so many bits."""
    return gl.NVMMASharedLayout(raw_columns(head_padded), bits, 2)


@gluon.jit
def make_raw_tiles(DTYPE: gl.constexpr, BOX: gl.constexpr, KIND: gl.constexpr):
    """Allocate raw tiles of a dtype and their barriers."""
    WIDTH: gl.constexpr = raw_columns(KIND.head_padded)
    BOXES: gl.constexpr = KIND.raw_stages * KIND.tile // BOX * (KIND.head_padded // WIDTH)
    LAYOUT: gl.constexpr = raw_layout(KIND.head_padded, 8)
    return RawTiles(
        gl.allocate_shared_memory(DTYPE, [BOXES, BOX, WIDTH], LAYOUT),
        gl.allocate_shared_memory(DTYPE, [BOXES, BOX, WIDTH], LAYOUT),
        make_stages(KIND.raw_stages, 1),
    )


@gluon.jit
def cast_tiles(raw, k_boxes, v_boxes, stages, ring, units, DTYPE: gl.constexpr, KIND: gl.constexpr):
    """Convert the tiles of all units in the order in which they are loaded; runs in four warps.

    Args:
        raw: `RawTiles`.
        k_boxes: tiles of keys to multiply, of DTYPE.
        v_boxes: tiles of values, likewise.
        stages: `Stages` of these, filled here and freed by the halves.
        ring: units that the producer has taken.
        units: the schedule.
        DTYPE: that of the queries.
        KIND: the binary's.
    """
    WORDS: gl.constexpr = KIND.head_padded // 4
    WIDE: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)
    k_raw = reinterpret(
        raw.k, gl.int32, [KIND.raw_stages, KIND.tile, WORDS], raw_layout(KIND.head_padded, 32)
    )
    v_raw = reinterpret(
        raw.v, gl.int32, [KIND.raw_stages, KIND.tile, WORDS], raw_layout(KIND.head_padded, 32)
    )
    k = reinterpret(k_boxes, gl.int32, [KIND.stages, KIND.tile, 2 * WORDS], WIDE)
    v = reinterpret(v_boxes, gl.int32, [KIND.stages, KIND.tile, 2 * WORDS], WIDE)
    if KIND.overlap:
        gdc_wait()
    turn = 0
    done = 0
    unit = receive(units, ring, turn, KIND)
    while unit[0] >= 0:
        _, _, tokens, _, low, high, _, _ = unit
        heads = gl.where(tokens <= KIND.block_q, KIND.heads, 1)
        loaded = done + gl.cdiv(high - low, KIND.tile) * heads
        for tile in range(done, loaded):
            cast_tile(
                k_raw, raw.stages.k_full, raw.stages.k_free, k, stages.k_full, stages.k_free, tile, DTYPE,
                raw.k.dtype, KIND,
            )  # fmt: skip
            cast_tile(
                v_raw, raw.stages.v_full, raw.stages.v_free, v, stages.v_full, stages.v_free, tile, DTYPE,
                raw.v.dtype, KIND,
            )  # fmt: skip
        done = loaded
        turn += 1
        unit = receive(units, ring, turn, KIND)


@gluon.jit
def cast_tile(raw, raw_full, raw_free, ready, full, free, tile, DTYPE: gl.constexpr, RAW: gl.constexpr,
              KIND: gl.constexpr):  # fmt: skip
    """Convert a tile, a few rows at a time: four elements of a word of a raw tile to two words."""
    LANES: gl.constexpr = KIND.head_padded // 16
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [32 // LANES, LANES], [4, 1], [1, 0])
    AT_ONCE: gl.constexpr = min(4096 // KIND.head_padded, KIND.tile)
    before = tile % KIND.raw_stages
    after = tile % KIND.stages
    mbarrier.wait(raw_full.index(before), (tile // KIND.raw_stages) & 1)
    mbarrier.wait(free.index(after), ((tile // KIND.stages) & 1) ^ 1)
    for part in gl.static_range(KIND.tile // AT_ONCE):
        words = raw.index(before).slice(part * AT_ONCE, AT_ONCE, dim=0).load(LAYOUT)
        first, second = cast_words(words, DTYPE, RAW)
        pairs = gl.reshape(gl.join(first, second), [AT_ONCE, KIND.head_padded // 2])
        ready.index(after).slice(part * AT_ONCE, AT_ONCE, dim=0).store(pairs)
    fence_async_shared()
    # All threads have read before TMA may overwrite the raw tile, and written before a half may
    # multiply the other one.
    wait_for_threads()
    mbarrier.arrive(raw_free.index(before))
    mbarrier.arrive(full.index(after))


@gluon.constexpr_function
def cast_program(to_bfloat16, exponent_bits):
    """Return the PTX that converts a word of four float8 elements to two words of 2-byte elements.

    The hardware converts float8 to float16, which holds each of its numbers.
    """
    float8 = "e4m3x2" if exponent_bits == 4 else "e5m2x2"
    halves = f"mov.b32 {{a, b}}, $2; cvt.rn.f16x2.{float8} c, a; cvt.rn.f16x2.{float8} d, b; "
    if not to_bfloat16:
        return f"{{ .reg .b16 a, b; .reg .b32 c, d; {halves} mov.b32 $0, c; mov.b32 $1, d; }}"
    return (
        "{ .reg .b16 a, b, e, f, g, h; .reg .b32 c, d; .reg .f32 i, j, k, l; "
        f"{halves}"
        "mov.b32 {e, f}, c; mov.b32 {g, h}, d; "
        "cvt.f32.f16 i, e; cvt.f32.f16 j, f; cvt.f32.f16 k, g; cvt.f32.f16 l, h; "
        "cvt.rn.bf16x2.f32 $0, j, i; cvt.rn.bf16x2.f32 $1, l, k; }"
    )


@gluon.jit
def cast_words(words, DTYPE: gl.constexpr, RAW: gl.constexpr):
    """Return the first two elements of each word of four, and the last two, as words of DTYPE."""
    PROGRAM: gl.constexpr = cast_program(gl.bfloat16 == DTYPE, 4 if gl.float8e4nv == RAW else 5)
    return gl.inline_asm_elementwise(
        PROGRAM, "=r,=r,r", [words], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
    )
