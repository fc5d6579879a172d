"""Kernel that makes the schedule of a batch; `attention/schedule.py` launches it.

It runs as one program, and loops over the Q blocks twice: once to decide how each is cut, and once
to write the lists in the order of the units' costs.
"""

from __future__ import annotations

import triton
import triton.language as tl

ONE_HALF = tl.constexpr(0.7)
"""Cost of a head's keys for a Q block of one half, in those of a block of two: that of loading."""

UNIT = tl.constexpr(1.0)
"""Cost of a unit beside its keys, where there are prompts."""

CUT = tl.constexpr(0.5)
"""Cost of cutting a Q block of one half once more, beside that of its rows, likewise."""

UNSTEADY = tl.constexpr(0.5)
"""Part of a decoding unit's cost by which its time differs from the estimate, likewise."""

DECODING_UNIT = tl.constexpr(5.0)
"""What UNIT is in batches without prompts.

The numbers of these batches were fitted on an H100 to the times of 78 drawn ones, each cut in six
ways.
"""

DECODING_CUT = tl.constexpr(2.0)
"""What CUT is in batches without prompts."""

CUT_OF_MANY = tl.constexpr(4.0)
"""Cost of cutting a Q block once more, in such a batch that has more units than slots."""

DECODING_UNSTEADY = tl.constexpr(0.25)
"""What UNSTEADY is in batches without prompts."""

CUT_OF_ROW = tl.constexpr(0.02)
"""Cost of cutting a row once more."""

PART = tl.constexpr(0.015)
"""Cost of merging a partial result that has to wait for the others."""

INEXACT = tl.constexpr(0.001)
"""What a quotient may be too large by, as divisions on a GPU are not exact."""

LONG = tl.constexpr(128)
"""Keys whose cost for a Q block of two halves is the unit of all costs."""


@triton.jit
def find_blocks(
    cu_seqlens_q, seqused_k, block, num_seqs, blocks, BLOCK_Q: tl.constexpr, MAX_SEQS: tl.constexpr
):
    """`softmax_tiles.find_block` for a tensor of Q blocks: sequence, first, tokens, position."""
    sequence = tl.zeros_like(block)
    step = MAX_SEQS // 2
    while step > 0:
        later = sequence + step
        there = later < num_seqs
        number = tl.load(cu_seqlens_q + later, mask=there, other=0) // BLOCK_Q + later
        sequence = tl.where(there & (number <= block), later, sequence)
        step = step // 2
    begin = tl.load(cu_seqlens_q + sequence)
    new = tl.load(cu_seqlens_q + sequence + 1) - begin
    offset = (block - begin // BLOCK_Q - sequence) * BLOCK_Q
    tokens = tl.where(block < blocks, tl.maximum(tl.minimum(new - offset, BLOCK_Q), 0), 0)
    position = tl.load(seqused_k + sequence) - new + offset
    # Rows that see no key have no result, and a program would wait for ever for a unit's tiles.
    tokens = tl.where(position + tokens > 0, tokens, 0)
    return sequence, begin + offset, tokens, position


@triton.jit
def first_key(position, WINDOW: tl.constexpr, SPAN: tl.constexpr):
    """Return the first key that a Q block needs, rounded down to a multiple of SPAN."""
    low = tl.zeros_like(position)
    if WINDOW >= 0:
        low = tl.maximum(position - WINDOW, 0) // SPAN * SPAN
    return low


@triton.jit
def cut_into(cost, limit):
    """Return into how many pieces a cost is cut for each limit, [CANDIDATES, MAX_SEQS]."""
    return tl.maximum(tl.ceil(cost[None, :] / limit[:, None] - INEXACT), 1.0)


@triton.jit
def choose_cost(
    blocks, mean, most, single, unit, cut, cut_of_many, part, unsteady, slots, least, most_cuts,
    CANDIDATES: tl.constexpr, QUARTERS: tl.constexpr, SIZES: tl.constexpr,
):  # fmt: skip
    """Return the largest cost of a unit for which the estimated time is shortest.

    The estimate starts from an equal share of all work. List scheduling is not that even: of the N
    longest units, one program has N / slots, rounded up. Units of decoding take more or less time,
    as memory is more or less busy; a part of the longest is added for that.

    Args:
        blocks: number of each sequence's Q blocks, [MAX_SEQS], float32.
        mean: mean cost of these.
        most: largest cost of these.
        single: whether these have one half, as in decoding.
        unit: cost of a unit beside its keys.
        cut: cost of cutting one once more: a partial result is written and merged.
        cut_of_many: the same if there are more units than slots.
        part: cost of another partial result for those that merge them, beside that.
        unsteady: part of a decoding unit's cost by which its time differs from the estimate.
        slots: programs per unit of an entry.
        least: smallest cost of a unit.
        most_cuts: limit of units beyond one per Q block.
        CANDIDATES: number of costs to compare, from a quarter of an equal share to four. They are
            multiples of the smallest.
        QUARTERS: number of costs that stand for those of a prompt's Q blocks; 1 in decoding.
        SIZES: how many N are looked at; 0 in decoding and for many sequences, whose other
            terms decide.
    """
    share = tl.sum(blocks * mean, 0) / slots
    exponent = tl.arange(0, CANDIDATES).to(tl.float32) * (4.0 / CANDIDATES) - 2.0
    limit = tl.maximum(tl.floor(share * tl.exp2(exponent) / least), 1.0) * least
    if QUARTERS > 1:  # not to cut at all is one of the candidates
        uncut = tl.maximum(tl.max(tl.where(blocks > 0, most, 0.0), 0), least)
        is_last = tl.arange(0, CANDIDATES) == CANDIDATES - 1
        limit = tl.where(is_last, tl.maximum(limit, uncut), limit)
    lowest = tl.maximum(2.0 * mean - most, 0.0)
    pieces = tl.zeros([CANDIDATES, blocks.shape[0]], dtype=tl.float32)
    longest = tl.zeros([CANDIDATES, blocks.shape[0]], dtype=tl.float32)
    for quarter in tl.static_range(QUARTERS):
        cost = lowest + (most - lowest) * ((quarter + 1) / QUARTERS)
        parts = cut_into(cost, limit)
        pieces += parts / QUARTERS
        longest = tl.maximum(longest, tl.where(blocks > 0, cost, 0.0)[None, :] / parts)
    units = tl.sum(blocks[None, :] * pieces, 1)
    cut = tl.where((units > slots)[:, None], cut_of_many[None, :], cut[None, :])
    cuts = tl.sum(blocks[None, :] * cut * (pieces - 1.0), 1)
    doubt = unsteady * tl.max(tl.where(single[None, :], longest, 0.0), 1)
    longest = tl.max(longest, 1)
    time = tl.maximum(share + unit * units / slots, longest + unit)
    for number in tl.static_range(SIZES):
        size = longest * (1.0 - number / SIZES) - INEXACT
        longer = tl.zeros([CANDIDATES, blocks.shape[0]], dtype=tl.float32)
        for quarter in tl.static_range(QUARTERS):
            cost = lowest + (most - lowest) * ((quarter + 1) / QUARTERS)
            parts = cut_into(cost, limit)
            longer += tl.where(cost[None, :] >= size[:, None] * parts, parts / QUARTERS, 0.0)
        rounds = tl.ceil(tl.sum(blocks[None, :] * longer, 1) / slots - INEXACT)
        time = tl.maximum(time, (size + unit) * rounds)
    is_cut = (pieces > 1.0) & (blocks > 0)[None, :]
    time += cuts / slots + tl.max(tl.where(is_cut, cut, 0.0), 1)
    time += tl.where(units > slots, doubt, 0.0)
    time += part * tl.max(tl.where(blocks > 0, cut_into(most, limit), 0.0), 1)
    time = tl.where(units - tl.sum(blocks, 0) > most_cuts, float("inf"), time)
    best = tl.arange(0, CANDIDATES) == tl.argmin(time, 0)
    chosen = tl.sum(tl.where(best, limit, 0.0), 0)
    if QUARTERS > 1:  # not to cut alone a last block of one half, whose tiles cost `least` each
        chosen = tl.where(chosen >= uncut, chosen * tl.maximum(least, 1.0), chosen)
    return chosen, tl.sum(tl.where(best, longest, 0.0), 0)


@triton.jit
def list_merges(
    merges, before, block, first, tokens, pieces, row, keys,
    half: tl.constexpr, GROUP: tl.constexpr, HALF: tl.constexpr, MERGE: tl.constexpr, FEW: tl.constexpr, FEW_ROWS: tl.constexpr,
    MANY_ROWS: tl.constexpr, LAST_PARTS: tl.constexpr, LAST_ROWS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """List the rows of Q blocks that have several partial results, a few at a time.

    Left out is what the half merges whose part comes last.

    The numbers of a merge are: first token of the half; its rows; the first of them to merge; the
    scratch row of the first part; scratch rows from one part to the next; number of parts; half of
    the Q block, counted over all; merges of this half; and the keys, if the halves of a program
    share them and only the tile's size says whether both have some.

    Returns:
        The number of merges.
    """
    parts = pieces * tl.where(tokens <= half, PARTS, 1)
    rows = tl.minimum(tokens, half) * GROUP
    split = (tokens > 0) & (row >= 0) & (parts > 1)
    split = split & ((parts > LAST_PARTS) | (rows > LAST_ROWS))
    later_rows = tl.maximum(tokens - half, 0) * GROUP
    at_once = tl.where(parts > FEW, MANY_ROWS, FEW_ROWS)
    chunks = tl.cdiv(rows, at_once)
    later = tl.cdiv(later_rows, at_once)
    count = tl.where(split, chunks + later, 0)
    place = before + tl.cumsum(count, 0) - count
    for number in tl.range(0, tl.max(count, 0)):
        there = number < count
        second = number >= chunks
        merge = merges + (place + number) * MERGE
        tl.store(merge, first + tl.where(second, half, 0), mask=there)
        tl.store(merge + 1, tl.where(second, later_rows, rows), mask=there)
        tl.store(merge + 2, (number - tl.where(second, chunks, 0)) * at_once, mask=there)
        tl.store(merge + 3, row + tl.where(second, HALF, 0), mask=there)
        tl.store(merge + 4, tl.where(tokens > half, 2 * HALF, rows), mask=there)
        tl.store(merge + 5, parts, mask=there)
        tl.store(merge + 6, 2 * block + second.to(tl.int32), mask=there)
        tl.store(merge + 7, tl.where(second, later, chunks), mask=there)
        tl.store(merge + 8, tl.where(pieces > 1, 1 << 30, keys), mask=there)
    return tl.sum(count, 0)


@triton.jit(
    do_not_specialize=["num_seqs", "blocks", "slots", "most_cuts", "most_rows", "entries"],
    do_not_specialize_on_alignment=["cu_seqlens_q", "seqused_k"],
)
def schedule_kernel(
    units, cu_seqlens_q, seqused_k, num_seqs, blocks, slots, most_cuts, most_rows,
    entries, GROUP: tl.constexpr, WINDOW: tl.constexpr, MAX_SEQS: tl.constexpr, CHUNK: tl.constexpr,
    HALF: tl.constexpr, ENTRY: tl.constexpr, HEADER: tl.constexpr, BINS: tl.constexpr,
    MERGE: tl.constexpr, FEW: tl.constexpr, FEW_ROWS: tl.constexpr, MANY_ROWS: tl.constexpr,
    LAST_PARTS: tl.constexpr, LAST_ROWS: tl.constexpr, CANDIDATES: tl.constexpr, SIZES: tl.constexpr,
    HEADS: tl.constexpr, PARTS: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Write the lists of units and of rows to merge; runs as one program.

    An entry stands for the units of all KV heads. Its numbers are: sequence; first token in q;
    number of tokens; position of the first; first key; end of the keys; which piece of the Q block
    this is; how many there are, or 0 if there is no room for partial results; the first row of
    these; the number of the Q block; and the KV head, of every HEADS, that a block of two halves
    has, which gets an entry for each of them.

    Args:
        units: the list; behind it two numbers per Q block, and then the rows to merge.
        cu_seqlens_q: as in `paged_attention`.
        seqused_k: as in `paged_attention`.
        num_seqs: number of sequences.
        blocks: number of Q blocks at most.
        slots: programs per unit of an entry, float32.
        most_cuts: room for more entries.
        most_rows: room for rows of partial results.
        entries: entries if no Q block is cut, at most.
        GROUP: query heads per KV head.
        WINDOW: keys before its own position that a query sees; -1 for all.
        MAX_SEQS: num_seqs at most; one of few powers of two, since each is another binary.
        CHUNK: Q blocks that are scheduled at a time.
        HALF: as in `schedule`.
        ENTRY: likewise.
        HEADER: likewise.
        BINS: likewise.
        MERGE: likewise.
        FEW: FEW_PARTS.
        FEW_ROWS: rows to merge at a time that have at most FEW parts: ROWS_OF_FEW, or ROWS_OF_MANY
            in decoding.
        MANY_ROWS: ROWS_OF_MANY.
        LAST_PARTS: PARTS_OF_LAST, or 0 where there are prompts.
        LAST_ROWS: ROWS_OF_LAST.
        CANDIDATES: of `choose_cost`.
        SIZES: likewise.
        HEADS: KV heads that a multiprocessor computes at a time, of blocks of one half.
        PARTS: of `parts_each`.
        SPAN: one of SPANS.
    """
    half: tl.constexpr = HALF // GROUP
    pair: tl.constexpr = 2 * half
    one: tl.constexpr = ONE_HALF * HEADS * SPAN / LONG
    two: tl.constexpr = SPAN / LONG
    HAS_PROMPTS: tl.constexpr = SPAN == LONG
    bins = tl.arange(0, BINS)
    notes = units + HEADER + (entries + most_cuts) * ENTRY

    lane = tl.arange(0, MAX_SEQS)
    begin = tl.load(cu_seqlens_q + lane, mask=lane < num_seqs, other=0)
    new = tl.load(cu_seqlens_q + lane + 1, mask=lane < num_seqs, other=0) - begin
    keys = tl.load(seqused_k + lane, mask=lane < num_seqs, other=0).to(tl.float32)
    count = tl.cdiv(new, pair).to(tl.float32)
    most = tl.ceil(keys / SPAN)
    mean = tl.where(count <= 1, most, (keys - count * (pair * 0.5)) / SPAN + 0.5)
    if WINDOW >= 0:
        most = tl.minimum(most, WINDOW // SPAN + 2.0)
        mean = tl.minimum(mean, most)
    tile = tl.where(new <= half, one, two)
    fixed: tl.constexpr = CUT if HAS_PROMPTS else DECODING_CUT
    # On an H200, chunks took 6 to 23% longer with the cuts of an estimate that made them cheaper.
    cut = tl.where(new <= half, fixed + CUT_OF_ROW * new * GROUP, 10.0)
    cut_of_many = cut
    if not HAS_PROMPTS:
        cut_of_many = tl.full([MAX_SEQS], CUT_OF_MANY, tl.float32)
    units_each = count * tl.where(new <= half, 1.0, HEADS)
    limit, longest = choose_cost(
        units_each, mean * tile, most * tile, new <= half, UNIT if HAS_PROMPTS else DECODING_UNIT,
        cut, cut_of_many, PART * PARTS, UNSTEADY if HAS_PROMPTS else DECODING_UNSTEADY,
        slots, one, 0.8 * most_cuts, CANDIDATES, 4 if HAS_PROMPTS else 1, SIZES,
    )  # fmt: skip

    sizes = tl.zeros([BINS], dtype=tl.int32)
    used_cuts = 0
    used_rows = 0
    for start in tl.range(0, blocks, CHUNK):
        block = start + tl.arange(0, CHUNK)
        _, _, tokens, position = find_blocks(
            cu_seqlens_q, seqused_k, block, num_seqs, blocks, pair, MAX_SEQS
        )
        tiles = tl.cdiv(position + tokens - first_key(position, WINDOW, SPAN), SPAN)
        tiles = tl.where(tokens > 0, tl.maximum(tiles, 1), 0)
        single = tokens <= half
        weight = tl.where(single, one, two)
        cuts = tl.maximum(tl.ceil(tiles * weight / limit - INEXACT), 1.0)
        length = tl.ceil(tiles / cuts).to(tl.int32)
        length = tl.maximum(length, 1)
        pieces = tl.cdiv(tiles, length)
        rows = tl.where(single, tokens * GROUP * PARTS, 2 * HALF) * pieces
        rows = tl.where((pieces > 1) | (single & (PARTS == 2)), rows, 0)
        copies = tl.where(single, 1, HEADS)
        last_row = used_rows + tl.cumsum(rows, 0)
        last_cut = used_cuts + tl.cumsum(tl.maximum(pieces - 1, 0) * copies, 0)
        # What finds no room is not cut. Sums of the others' sizes still count it, which is safe.
        fits = (last_row <= most_rows) & (last_cut <= most_cuts)
        used_rows += tl.sum(rows, 0)
        used_cuts += tl.sum(tl.maximum(pieces - 1, 0) * copies, 0)
        length = tl.where(fits, length, tiles)
        pieces = tl.where(fits, pieces, tl.minimum(pieces, 1))
        tl.store(notes + 2 * block, length, mask=block < blocks)
        tl.store(notes + 2 * block + 1, tl.where(fits, last_row - rows, -1), mask=block < blocks)
        rank = BINS - 1 - tl.minimum((length * weight * (BINS / longest)).to(tl.int32), BINS - 1)
        sizes += tl.sum(tl.where(rank[:, None] == bins[None, :], (pieces * copies)[:, None], 0), 0)

    total = tl.sum(sizes, 0)
    tl.store(units, total)
    offset = HEADER + (entries + most_cuts) * ENTRY + 2 * blocks
    merges = units + offset
    tl.store(units + 2, offset)
    merged = 0
    filled = tl.cumsum(sizes, 0) - sizes
    tl.debug_barrier()
    for start in tl.range(0, blocks, CHUNK):
        block = start + tl.arange(0, CHUNK)
        sequence, first, tokens, position = find_blocks(
            cu_seqlens_q, seqused_k, block, num_seqs, blocks, pair, MAX_SEQS
        )
        low = first_key(position, WINDOW, SPAN)
        end = position + tokens
        length = tl.load(notes + 2 * block, mask=block < blocks, other=1)
        row = tl.load(notes + 2 * block + 1, mask=block < blocks, other=-1)
        tiles = tl.where(tokens > 0, tl.maximum(tl.cdiv(end - low, SPAN), 1), 0)
        pieces = tl.cdiv(tiles, tl.maximum(length, 1))
        weight = tl.where(tokens <= half, one, two)
        rank = BINS - 1 - tl.minimum((length * weight * (BINS / longest)).to(tl.int32), BINS - 1)
        chosen = rank[:, None] == bins[None, :]
        copies = tl.where(tokens <= half, 1, HEADS)
        own = tl.where(chosen, (pieces * copies)[:, None], 0)
        place = tl.sum(tl.where(chosen, filled[None, :] + tl.cumsum(own, 0) - own, 0), 1)
        filled += tl.sum(own, 0)
        for number in tl.range(0, tl.max(pieces * copies, 0)):
            there = number < pieces * copies
            piece = number // copies
            entry = units + HEADER + (place + number) * ENTRY
            start_key = low + piece * length * SPAN
            tl.store(entry, sequence, mask=there)
            tl.store(entry + 1, first, mask=there)
            tl.store(entry + 2, tokens, mask=there)
            tl.store(entry + 3, position, mask=there)
            tl.store(entry + 4, start_key, mask=there)
            tl.store(entry + 5, tl.minimum(start_key + length * SPAN, end), mask=there)
            tl.store(entry + 6, piece, mask=there)
            tl.store(entry + 7, tl.where(row >= 0, pieces, 0), mask=there)
            tl.store(entry + 8, row, mask=there)
            tl.store(entry + 9, block, mask=there)
            tl.store(entry + 10, number % copies, mask=there)
        merged += list_merges(
            merges, merged, block, first, tokens, pieces, row, end - low,
            half, GROUP, HALF, MERGE, FEW, FEW_ROWS, MANY_ROWS, LAST_PARTS, LAST_ROWS, PARTS,
        )  # fmt: skip
    tl.store(units + 1, merged)
