"""Device functions of the Hopper kernel that convert tiles of a float8 cache.

wgmma multiplies elements of one size. Four warps of their own turn each tile that TMA has loaded
into one of the queries' dtype, while the halves multiply the tiles before it. So these see no
difference between caches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.language.extra.cuda import gdc_wait

from ...triton_internals.versions import reinterpret_shared, thread_barrier
from .hopper_pages import Stages, make_stages, receive

__all__ = ["RawTiles", "cast_tiles", "make_raw_tiles", "raw_columns", "raw_layout"]

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
