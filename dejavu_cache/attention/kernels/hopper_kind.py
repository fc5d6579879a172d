"""Class `Kind`: what a binary of the Hopper kernel is compiled for, and what follows from that."""

from __future__ import annotations

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .. import schedule

__all__ = ["ROWS", "Kind", "kind_of"]

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
    pairs,
    halves,
    kv_heads,
    group,
    head,
    head_padded,
    page,
    box,
    window,
    softcap,
    tile,
    stages,
    raw_stages,
    overlap,
):
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
