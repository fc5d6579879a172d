"""Device functions of the Hopper kernel that multiply: queries with keys, and weights with values.

A half computes some columns of its rows' outputs, as one or two products of wgmma (`Kind` has their
widths).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from .hopper_kind import ROWS

__all__ = [
    "await_products", "first_column", "hold", "multiply_keys", "multiply_values", "no_output", "product_layout",
    "round_pairs", "take_columns", "weights_layout",
]  # fmt: skip


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
