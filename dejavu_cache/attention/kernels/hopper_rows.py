"""Device functions of the Hopper kernel for the rows of half a Q block.

Queries and keys are multiplied, the softmax weighs the scores, weights and values are multiplied,
and results are stored. A half computes some columns of its rows' outputs, as one or two products of
wgmma; `Kind` has their widths, and all else that a binary is compiled for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from ...triton_internals.versions import reinterpret_shared
from .. import schedule
from ..schedule import PART_COLUMNS

ROWS = gl.constexpr(schedule.HALF)
"""Rows of half a Q block: those of one wgmma instruction."""

HALF = schedule.HALF
heads_at_once = gluon.constexpr_function(schedule.heads_at_once)
parts_each = gluon.constexpr_function(schedule.parts_each)


class Kind(NamedTuple):
    """Constants of a binary; device functions take them as one argument.

    Attributes:
        pairs: as in `Schedule`.
        kv_heads: number of KV heads.
        halves: halves of a program, of `halves_of`.
        heads: KV heads of a unit whose Q block fits one half; of `heads_at_once`.
        group: query heads per KV head.
        block_q: tokens of half a Q block.
        head: head size.
        head_padded: head size of the tiles.
        page: tokens in a block of the cache.
        box: rows of a box that TMA loads.
        window: keys before its own position that a query sees; -1 for all.
        softcap: whether scores are capped.
        tile: keys in a tile.
        stages: tiles in shared memory that can be multiplied, of keys and of values each.
        raw_stages: tiles in shared memory of a float8 cache, likewise; 0 for other caches, whose
            tiles are multiplied as they are loaded.
        overlap: whether launches overlap, as in `plan`.
        sharers: halves of a program that compute columns of the same partial result: 2 if each
            computes half of the columns, else 1.
        parts: partial results of a piece of a block of one half; as `parts_each`.
        key_widths: columns of the products of queries and keys, each a power of two.
        held: how many of these products take their queries from registers.
        value_widths: columns of a half's products of weights and values, likewise.
    """

    pairs: int
    kv_heads: int
    halves: int
    heads: int
    group: int
    block_q: int
    head: int
    head_padded: int
    page: int
    box: int
    window: int
    softcap: bool
    tile: int
    stages: int
    raw_stages: int
    overlap: bool
    sharers: int
    parts: int
    key_widths: tuple[int, ...]
    held: int
    value_widths: tuple[int, ...]


@gluon.constexpr_function
def kind_of(
    pairs, halves, kv_heads, group, head, head_padded, page, box, window, softcap, tile, stages, raw_stages, overlap
):  # fmt: skip
    """Return the constants of a binary.

    Triton's tensors have powers of two columns: a head of 96 is multiplied as 64 and 32, and not
    padded to 128. Where two programs share a multiprocessor, ptxas finds no registers for a product
    with 256 columns, and so it is two.

    Products of prompts with heads of 256 take about as long to read shared memory as to multiply.
    So some queries are held in registers: half of them, or a quarter where larger tiles leave less
    room.
    """
    widths = (head_padded,)
    if head_padded >= 128 and 4 * head <= 3 * head_padded:
        widths = (head_padded // 2, head_padded // 4)
    elif raw_stages and head_padded >= (128 if halves == 1 else 256):
        widths = (head_padded // 2, head_padded // 2)
    elif head_padded == 256 and halves == 1:
        widths = (128, 128)
    heads = heads_at_once(kv_heads, halves)
    parts = parts_each(pairs, halves, kv_heads, head_padded)
    sharers = halves // (heads * parts)
    keys, held = widths, 0
    if widths == (256,) and pairs > 0:
        keys, held = ((128, 128), 1) if tile <= 32 else ((64, 64, 128), 1)
    values = (
        pairs, kv_heads, halves, heads, group, HALF // group, head, head_padded, page, box, window, softcap,
        tile, stages, raw_stages, overlap, sharers, parts, keys, held,
        (head_padded // 2,) if sharers == 2 else widths,
    )  # fmt: skip
    return Kind(*[gl.constexpr(value) for value in values])


@gluon.constexpr_function
def product_layout(width):
    """Return the layout of a product of wgmma with so many columns."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16])


@gluon.constexpr_function
def weights_layout(width):
    """Return the layout of the softmax weights that so many columns of values are multiplied with."""
    return gl.DotOperandLayout(0, product_layout(width), 2)


@gluon.jit
def no_output(KIND: gl.constexpr):
    """Return zeros, a tensor per product."""
    WIDTHS: gl.constexpr = KIND.value_widths
    acc = ()
    for index in gl.static_range(len(WIDTHS)):
        acc = acc + (no_product(WIDTHS[index]),)  # type: ignore[assignment]
    return acc


@gluon.jit
def no_product(WIDTH: gl.constexpr):
    return gl.zeros([ROWS, WIDTH], gl.float32, product_layout(WIDTH))


@gluon.jit
def hold(queries, KIND: gl.constexpr):
    """Return the queries of each product with keys, in registers or in shared memory."""
    WIDTHS: gl.constexpr = KIND.key_widths
    parts = ()
    for index in gl.static_range(len(WIDTHS)):
        part = take_columns(queries, index, WIDTHS)
        if index < KIND.held:
            part = part.load(weights_layout(KIND.tile))
        parts = parts + (part,)  # type: ignore[assignment]
    return parts


@gluon.jit
def multiply_keys(queries, keys, KIND: gl.constexpr):
    """Begin to multiply queries, as `hold` returns them, with the keys of a tile; returns the scores."""
    WIDTHS: gl.constexpr = KIND.key_widths
    scores = gl.zeros([ROWS, KIND.tile], gl.float32, product_layout(KIND.tile))
    for index in gl.static_range(len(WIDTHS)):
        scores = warpgroup_mma(
            queries[index], take_columns(keys, index, WIDTHS).permute((1, 0)), scores,
            use_acc=index > 0, is_async=True,
        )  # fmt: skip
    return scores


@gluon.jit
def multiply_values(weights, values, acc, fade, KIND: gl.constexpr):
    """Scale the outputs so far by `fade`, and begin to add weights times the values of a tile."""
    WIDTHS: gl.constexpr = KIND.value_widths
    result = ()
    for index in gl.static_range(len(WIDTHS)):
        columns = take_columns(values, index, WIDTHS)
        product = add_product(weights, columns, scale_rows(acc[index], fade, KIND))
        result = result + (product,)  # type: ignore[assignment]
    return result


@gluon.jit
def add_product(weights, values, acc):
    WIDTH: gl.constexpr = values.shape[1]
    rounded = gl.convert_layout(take_pairs(weights, values.dtype), weights_layout(WIDTH))
    return warpgroup_mma(rounded, values, acc, is_async=True)


@gluon.jit
def scale_rows(acc, factors, KIND: gl.constexpr):
    """Multiply the rows of a product of wgmma by factors; of prompts, most of which are 1.

    A warp whose rows all have the factor 1 jumps over the multiplications. Of the instructions for
    a prompt's tile, they are a seventh with heads of 128, and a fourth or more with heads of 256.
    """
    LAYOUT: gl.constexpr = product_layout(acc.shape[1])
    factors = gl.convert_layout(factors, gl.SliceLayout(1, LAYOUT))[:, None]
    if KIND.pairs > 0:
        EACH: gl.constexpr = acc.shape[1] // 2
        PROGRAM: gl.constexpr = multiply_program(EACH)
        CONSTRAINTS: gl.constexpr = multiply_constraints(EACH)
        scaled = gl.inline_asm_elementwise(
            PROGRAM,
            CONSTRAINTS,
            gl.broadcast(acc, factors),
            dtype=gl.float32,
            is_pure=True,
            pack=EACH,
        )
    else:
        scaled = acc * factors
    return scaled


@gluon.constexpr_function
def multiply_program(count):
    """Return the PTX that multiplies a thread's numbers in place, unless its warp's factors are 1.

    The numbers are of two rows, two of each in turns: numbers 0 and 2 have the factors of both.

    Args:
        count: numbers of a thread.
    """
    factors = [f"${2 * count + place}" for place in range(count)]
    products = " ".join(f"mul.f32 ${place}, ${place}, {f};" for place, f in enumerate(factors))
    return (
        "{ .reg .pred any; "
        f"setp.neu.f32 any, {factors[0]}, 0f3F800000; "
        f"setp.neu.or.f32 any, {factors[2]}, 0f3F800000, any; "
        f"vote.sync.any.pred any, any, 0xFFFFFFFF; @!any bra ONES; {products} ONES: }}"
    )


@gluon.constexpr_function
def multiply_constraints(count):
    """Return the operands of `multiply_program`: results, in the registers of numbers, and factors."""
    places = [str(place) for place in range(count)]
    return ",".join(["=f"] * count + places + ["f"] * count)


@gluon.jit
def await_products(acc, total):
    """Wait until the outputs are there, and a sum, so that nothing moves it behind the wait."""
    if len(acc) == 1:
        wide, total = warpgroup_mma_wait(0, [acc[0], total])
        products = (wide,)
    else:
        wide, narrow, total = warpgroup_mma_wait(0, [acc[0], acc[1], total])
        products = (wide, narrow)
    return products, total


@gluon.constexpr_function
def first_column(index, widths):
    """Return the first column of a product."""
    return sum(widths[:index])


@gluon.jit
def take_columns(tile, index: gl.constexpr, WIDTHS: gl.constexpr):
    """Return the columns of a tile for a product."""
    columns = tile
    if tile.shape[1] != WIDTHS[index]:
        columns = tile.slice(first_column(index, WIDTHS), WIDTHS[index], dim=1)
    return columns


@gluon.jit
def round_pairs(weights, DTYPE: gl.constexpr):
    """Round float32 to a 2-byte type, two numbers to one int32; the other of each two is zero.

    Triton carries 2-byte numbers through a loop in a register each, and repacking them takes as
    long as the exponentials.
    """
    if gl.bfloat16 == DTYPE:
        packed = gl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $3, $2; mov.b32 $1, 0;", "=r,=r,r,r", [weights],
            dtype=gl.int32, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        packed = gl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $3, $2; mov.b32 $1, 0;", "=r,=r,r,r", [weights],
            dtype=gl.int32, is_pure=True, pack=2,
        )  # fmt: skip
    return packed


@gluon.jit
def take_pairs(packed, DTYPE: gl.constexpr):
    """Return the numbers that `round_pairs` packed."""
    if gl.bfloat16 == DTYPE:
        weights = gl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r,r", [packed], dtype=gl.bfloat16, is_pure=True, pack=2
        )
    else:
        weights = gl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r,r", [packed], dtype=gl.float16, is_pure=True, pack=2
        )
    return weights


reinterpret = reinterpret_shared(gl)

EXTRA = gl.constexpr(PART_COLUMNS)
"""Columns of a partial result beside the output."""

LANES = gl.constexpr(
    gl.DistributedLinearLayout(
        [[8, 0]], [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [ROWS.value, 4]
    )
)
"""Layout of one number per row and lane that holds some of the row of a product of wgmma."""

WORDS = gl.constexpr(gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0]))
"""Layout of rows that are read and written 16 bytes at a time, as words of two 2-byte elements.

Triton moves 2-byte elements through a register each, and packs and unpacks them.
"""

LOG2E = gl.constexpr(1.4426950408889634)

GROWTH = gl.constexpr(8.0)
"""Binary orders by which scores of a prompt may exceed their peak until it is raised.

Weights are at most 256 then, which float16 holds. FlashAttention 4 leaves its maximum likewise.
"""


class TokenHeads(NamedTuple):
    """Queries or outputs in memory, [token, head]: a pointer to the first, and the strides."""

    pointer: Any
    stride_token: Any
    stride_head: Any


@gluon.jit
def as_words(tile, TOKENS: gl.constexpr, HEAD_PADDED: gl.constexpr):
    """View a tile in swizzled shared memory, [TOKENS, HEAD_PADDED], as words."""
    return reinterpret(tile, gl.int32, [TOKENS, HEAD_PADDED // 2], gl.NVMMASharedLayout(128, 32, 2))


@gluon.jit
def find_words(memory, first, tokens, kv_head, COLUMN: gl.constexpr, WIDTH: gl.constexpr, KIND: gl.constexpr):  # fmt: skip
    """Return pointers to WIDTH columns of half a Q block, [ROWS, WIDTH // 2], and which exist."""
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, WORDS))
    words = COLUMN // 2 + gl.arange(0, WIDTH // 2, gl.SliceLayout(0, WORDS))
    at = (first + rows // KIND.group).to(gl.int64) * (memory.stride_token // 2) + (
        kv_head * KIND.group + rows % KIND.group
    ) * (memory.stride_head // 2)
    there = (rows < tokens * KIND.group)[:, None] & (words < KIND.head // 2)[None, :]
    begin = memory.pointer.to(gl.pointer_type(gl.int32), bitcast=True)
    return begin + (at[:, None] + words[None, :]), there


@gluon.jit
def load_queries(q, first, tokens, kv_head, KIND: gl.constexpr):
    """Load the queries of half a Q block as words, padded with zeros."""
    at, there = find_words(q, first, tokens, kv_head, 0, KIND.head_padded, KIND)
    return gl.load(at, mask=there, other=0)


@gluon.jit
def split_columns(scores, TILE: gl.constexpr):
    """Reshape a tile so that axis 2 counts the lanes that share a row, in wgmma's layout.

    Reducing the other axes takes no exchange between lanes.
    """
    return gl.reshape(scores, [ROWS, TILE // 8, 4, 2])


@gluon.jit
def hide(scores, positions, start, end, KIND: gl.constexpr):
    """Return a tile's scores without those of keys that a row does not see."""
    tokens = start + gl.arange(0, KIND.tile, gl.SliceLayout(0, product_layout(KIND.tile)))
    last = gl.minimum(positions, end - 1)
    seen = tokens[None, :] <= last[:, None]
    if KIND.window >= 0:
        seen = seen & (tokens[None, :] + KIND.window >= positions[:, None])
    return gl.where(seen, scores, float("-inf"))


@gluon.jit
def softmax(scores, peak, total, positions, first_position, start, end, scale, softcap, MASKED: gl.constexpr,
            KIND: gl.constexpr):  # fmt: skip
    """Return a tile's softmax weights, the factor of the output so far, and new peak and totals.

    A prompt's peak is a score that none exceeds by more than `GROWTH`: most tiles leave it as it
    is, and their factor is 1. In decoding, it is the maximum. Each lane that holds some of a row
    has a total of its own, [ROWS, 4]; they are added at the end.
    """
    TILE: gl.constexpr = KIND.tile
    if KIND.softcap:  # tanh(x) = 2 / (1 + exp(-2 x)) - 1; `scale` is of the exponent here
        scores = softcap * (2.0 / (1.0 + gl.exp2(scores * scale)) - 1.0)
        scale = LOG2E
    if MASKED:
        if (KIND.pairs == 0) and (KIND.window < 0):
            if start + TILE > first_position + 1:  # in decoding, few tiles have keys to hide
                scores = hide(scores, positions, start, end, KIND)
        else:
            scores = hide(scores, positions, start, end, KIND)
    highest = gl.max(scores, 1) * scale
    if KIND.pairs > 0:
        new_peak = gl.where(highest > peak + GROWTH, highest, peak)
    else:
        new_peak = gl.maximum(peak, highest)
    shift = new_peak
    if MASKED:  # a row may have seen no key yet
        shift = gl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = gl.exp2(scores * scale - shift[:, None])
    fade = gl.exp2(peak - shift)
    totals = gl.sum(gl.sum(split_columns(weights, TILE), 3), 1)
    total = total * gl.convert_layout(fade, gl.SliceLayout(1, LANES))[:, None]
    return weights, fade, new_peak, total + gl.convert_layout(totals, LANES)


@gluon.jit
def store_rows(out, staging, acc, total, first, tokens, kv_head, COLUMN: gl.constexpr, KIND: gl.constexpr):  # fmt: skip
    """Divide the outputs of half a Q block by their sums and store them, from column COLUMN on.

    They go through `staging` in shared memory, [ROWS, columns]: in the layout of wgmma, threads
    would store 4 bytes at a time, which takes short prompts a tenth of their time.
    """
    WIDTH: gl.constexpr = staging.shape[1]
    WIDTHS: gl.constexpr = KIND.value_widths
    for index in gl.static_range(len(WIDTHS)):
        stage_columns(take_columns(staging, index, WIDTHS), acc[index], total, tokens * KIND.group)
    at, there = find_words(out, first, tokens, kv_head, COLUMN, WIDTH, KIND)
    gl.store(at, as_words(staging, ROWS, WIDTH).load(WORDS), mask=there)


@gluon.jit
def stage_columns(staging, acc, total, count):
    """Divide some columns of `count` rows by the rows' sums, and put them into shared memory."""
    LAYOUT: gl.constexpr = product_layout(staging.shape[1])
    inside = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT)) < count
    divisor = gl.where(inside, gl.convert_layout(total, gl.SliceLayout(1, LAYOUT)), 1.0)
    staging.store((acc * (1.0 / divisor)[:, None]).to(staging.dtype))


@gluon.jit
def store_part(scratch, acc, peak, total, row, count, kv_head, COLUMN: gl.constexpr, KIND: gl.constexpr):  # fmt: skip
    """Store `count` rows of a partial result from the scratch's row `row` on."""
    WIDTH: gl.constexpr = KIND.head_padded + EXTRA
    WIDTHS: gl.constexpr = KIND.value_widths
    for index in gl.static_range(len(WIDTHS)):
        start = COLUMN + first_column(index, WIDTHS)
        store_columns(scratch + start, acc[index], row, count, kv_head, KIND.kv_heads, WIDTH)
    LAYOUT: gl.constexpr = product_layout(WIDTHS[0])
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    inside = rows < count
    at = scratch + ((row + rows).to(gl.int64) * KIND.kv_heads + kv_head) * WIDTH + KIND.head_padded
    gl.store(at, gl.convert_layout(peak, gl.SliceLayout(1, LAYOUT)), mask=inside)
    gl.store(at + 1, gl.convert_layout(total, gl.SliceLayout(1, LAYOUT)), mask=inside)


@gluon.jit
def store_columns(scratch, acc, row, count, kv_head, KV_HEADS: gl.constexpr, WIDTH: gl.constexpr):
    """Store some columns of a partial result; WIDTH is that of all."""
    LAYOUT: gl.constexpr = product_layout(acc.shape[1])
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    dims = gl.arange(0, acc.shape[1], gl.SliceLayout(0, LAYOUT))
    at = scratch + ((row + rows).to(gl.int64) * KV_HEADS + kv_head) * WIDTH
    gl.store(at[:, None] + dims[None, :], acc, mask=(rows < count)[:, None])
