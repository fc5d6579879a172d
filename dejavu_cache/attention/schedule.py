"""Schedule of a batch, made on the device: units of work that all layers of a step share.

A unit is a range of one Q block's keys. Prompts are cut into Q blocks of two halves; where the rows
of a block fit one half, the halves divide KV heads, tiles or columns (`hopper_kernel` says how). In
most decoding, programs have one half, and a multiprocessor has two programs. One small kernel turns
the batch's lengths into a list of units, the long ones first and none so long that the others would
wait for it. Programs take units from the list until it is empty, so the speed depends on the total
work and not on the longest sequence.

Four small numbers describe the work, and the kernels are compiled for them:

- *pairs*: whether a Q block can have two halves, of 64 rows each: 0, 1, or 2 for long prompts;
- *halves*: the groups of warps in a program, which compute a half each: 1 or 2;
- *heads*: the KV heads that a unit computes at once where a Q block fits one half;
- *parts*: the partial results of a range of keys of such a block.

Nothing here waits for the device: the host knows bounds only, and allocates by them. A captured
graph makes a new list at each replay, from the lengths that lie in the tensors then.
"""

from typing import Any, NamedTuple

import torch

from ..triton_internals.binder import RepeatedLaunch
from .batch import Batch
from .kernels.kernel_call import KernelCall, num_sms
from .kernels.schedule_kernel import schedule_kernel

HALF = 64
"""Rows of half a Q block; a row is a (token, query head of one KV head)."""

SPANS = {True: 128, False: 64}
"""Number whose multiples are the keys of a unit, except at a sequence's end; by having prompts.

Tiles of keys must divide it.
"""

LONG_CONTEXT = {64: 0, 96: 512, 128: 2560, 256: 0}
"""Least keys that the token in the middle of a long prompt sees, by largest head size.

Drawn prompts on an H200 decided. As long ones, none of ten with heads of 64 took longer; of eleven
with heads of 256, eight took 11 to 19% less time, and two up to 4% more.
"""

LONG_QUERY = 128
"""New tokens per sequence from which most are prompts."""

ENTRY = 11
"""Numbers that describe the units of a range of keys; `schedule_kernel` names them."""

HEADER = 4
"""Numbers before the first entry: how many entries, how many merges, and where these begin."""

MERGE = 9
"""Numbers that describe rows to merge; `list_merges` names them."""

COUNTERS = 4
"""Counters of a launch before those of arrived parts: TAKEN, ENDED, STARTED and LEFT."""

FEW_PARTS = 4
"""Partial results of which many rows are merged at a time."""

ROWS_OF_FEW = 16
"""Rows that are merged at a time if they have few partial results, where there are prompts."""

ROWS_OF_MANY = 4
"""Rows that are merged at a time if they have many, or in decoding."""

PARTS_OF_LAST = 8
"""Most partial results, in decoding, that are merged by the half whose own came last."""

ROWS_OF_LAST = 16
"""Most rows that this half merges."""

ROWS_OF_ONE_HALF = 8
"""Rows of a sequence up to which programs of one half are no slower, whatever comes between."""

FEW_SEQS = 16
"""Fewest sequences that the kernel is compiled for; larger binaries are for 4, 16, … times them."""

BINS = 16
"""Costs of units that their order tells apart."""

PART_COLUMNS = 4
"""Columns of a partial result beside the output: maximum and sum, and two that align the next."""

MOST_CUTS = 4
"""Limit of the pieces that are made by cutting, per multiprocessor."""


class Schedule(NamedTuple):
    """Buffers that all layers of a step share.

    Attributes:
        units: header, entries, what the kernel notes of each Q block, and rows to merge; int32.
        scratch: partial results, float32, [rows, KV heads, head size + PART_COLUMNS].
        blocks: number of Q blocks at most.
        pairs: 0 if no Q block can have two halves, 2 for long prompts, else 1.
        halves: halves of a program, of `halves_of`.
    """

    units: torch.Tensor
    scratch: torch.Tensor
    blocks: int
    pairs: int
    halves: int


def pairs_of(batch: Batch) -> int:
    """Return the kind of a batch: 0 without Q blocks of two halves, 2 for long prompts, else 1.

    Prompts are long if a token in their middle may see `LONG_CONTEXT` keys, and the sequences have
    `LONG_QUERY` new tokens on average, so that few of them decode.
    """
    if batch.max_seqlen_q <= HALF // batch.group:
        return 0
    new = batch.num_tokens / batch.num_seqs
    keys = batch.max_seqlen_k - batch.max_seqlen_q + new / 2
    head = batch.q.shape[-1]
    least = next(least for size, least in LONG_CONTEXT.items() if head <= size)
    return 2 if keys >= least and new >= LONG_QUERY else 1


def halves_of(batch: Batch, overlap: bool) -> int:
    """Return the halves of a program: one in decoding, where a multiprocessor has two programs.

    One half is half of the code, which a launch after the products of a model finds in no cache.
    Where launches follow each other, their code is in a cache: then, drawn batches of several
    tokens a sequence took 1 to 11% less time in two halves. Heads of 256 in a float8 cache leave
    no room for two programs.
    """
    rows = batch.max_seqlen_q * batch.group
    has_room = not (batch.casts and batch.head_padded > 128)
    is_decoding = pairs_of(batch) == 0
    return 1 if is_decoding and has_room and (rows <= ROWS_OF_ONE_HALF or not overlap) else 2


def heads_at_once(kv_heads: int, halves: int) -> int:
    """Return the KV heads of a unit whose Q block fits one half: one for each half, if even."""
    return halves if kv_heads % 2 == 0 else 1


def parts_each(pairs: int, halves: int, kv_heads: int, head_padded: int) -> int:
    """Return the partial results of a piece of a Q block of one half.

    With an odd number of KV heads, two halves of a program compute every other tile, and have a
    partial result each. In decoding with heads of 256 these would be many and large, and take
    longer to merge than to multiply the queries twice: each half computes half of the columns.
    """
    halves_share_keys = kv_heads % 2 == 1 and not (pairs == 0 and head_padded == 256)
    return 2 if halves == 2 and halves_share_keys else 1


class _Bounds(NamedTuple):
    """Sizes of a schedule's buffers, by what the host knows; lengths lie on the device.

    Attributes:
        blocks: Q blocks.
        entries: entries if no Q block is cut.
        cuts: further entries that cutting may make. The kernel leaves whole what finds no room.
        rows: rows of partial results, likewise.
        merges: entries in the list of rows to merge.
        slots: programs per unit of an entry.
    """

    blocks: int
    entries: int
    cuts: int
    rows: int
    merges: int
    slots: float

    @property
    def units(self) -> int:
        """Numbers in `Schedule.units`; two are noted of each Q block."""
        entries = self.entries + self.cuts
        return HEADER + entries * ENTRY + 2 * self.blocks + self.merges * MERGE


def _bounds_of(batch: Batch, pairs: int, halves: int) -> _Bounds:
    """Return the sizes that suffice for any lengths within a batch's bounds."""
    half = HALF // batch.group
    blocks = batch.q_blocks(2 * half)
    heads = heads_at_once(batch.kv_heads, halves)
    programs = num_sms(batch.q.device) * (2 // halves)
    slots = programs * heads / batch.kv_heads
    cuts = int(MOST_CUTS * slots) + 8
    parts = parts_each(pairs, halves, batch.kv_heads, batch.head_padded)
    # Each piece of a block has the block's rows, once for each part. The first pieces of all blocks
    # of one half have the rows of all their tokens, each further piece those of one block.
    rows_of_block = HALF if pairs else batch.max_seqlen_q * batch.group
    first_rows = min(batch.num_tokens, batch.num_seqs * half) * batch.group
    split_blocks = cuts if parts == 1 else blocks
    return _Bounds(
        blocks=blocks,
        entries=blocks * heads if pairs else blocks,
        cuts=cuts,
        rows=2 * first_rows + cuts * rows_of_block * parts,
        merges=split_blocks * (2 * HALF // ROWS_OF_MANY),
        slots=slots,
    )


def make_schedule(batch: Batch, overlap: bool = True) -> Schedule:
    """Launch the kernel that schedules a batch, and return its buffers; `group` is at most HALF."""
    pairs, halves = pairs_of(batch), halves_of(batch, overlap)
    bounds = _bounds_of(batch, pairs, halves)
    device = batch.q.device
    units = torch.empty(bounds.units, dtype=torch.int32, device=device)
    columns = max(64, batch.head_padded) + PART_COLUMNS
    scratch = torch.empty(bounds.rows, batch.kv_heads, columns, dtype=torch.float32, device=device)
    _launch(
        (units, batch.cu_seqlens_q, batch.seqused_k, batch.num_seqs, bounds.blocks, bounds.slots,
         bounds.cuts, bounds.rows, bounds.entries),
        constants_of(batch, halves),
    )  # fmt: skip
    return Schedule(units, scratch, bounds.blocks, pairs, halves)


def constants_of(batch: Batch, halves: int) -> dict[str, int]:
    """Return what `schedule_kernel` is compiled for: few values, since an engine meets them all."""
    max_seqs = FEW_SEQS
    while max_seqs < batch.num_seqs:
        max_seqs *= 4
    pairs = pairs_of(batch)
    has_pairs = pairs > 0
    is_small = max_seqs == FEW_SEQS and batch.q_blocks(2 * (HALF // batch.group)) <= 32
    chunk = 512 if has_pairs else min(2 * max_seqs, 256)
    return {
        "GROUP": batch.group, "WINDOW": batch.window, "MAX_SEQS": max_seqs,
        "CHUNK": 32 if is_small else chunk, "HALF": HALF, "ENTRY": ENTRY, "HEADER": HEADER,
        "BINS": BINS, "MERGE": MERGE, "FEW": FEW_PARTS,
        "FEW_ROWS": ROWS_OF_FEW if has_pairs else ROWS_OF_MANY,
        "MANY_ROWS": ROWS_OF_MANY, "LAST_PARTS": 0 if has_pairs else PARTS_OF_LAST,
        "LAST_ROWS": ROWS_OF_LAST, "CANDIDATES": 32 if max_seqs <= 64 else 16,
        "SIZES": 8 if has_pairs and max_seqs <= 64 else 0,
        "HEADS": heads_at_once(batch.kv_heads, halves) * (2 // halves),
        "PARTS": parts_each(pairs, halves, batch.kv_heads, batch.head_padded),
        "SPAN": SPANS[has_pairs],
    }  # fmt: skip


_repeated: dict[Any, RepeatedLaunch] = {}


def _launch(values: tuple[Any, ...], constants: dict[str, Any]) -> None:
    """Launch the kernel, which Triton binds once for each set of constants: nothing else counts."""
    key = values[0].device, *constants.values()
    launch = _repeated.get(key)
    if launch is not None and launch(*values):
        return
    # Many warps, so that each thread has few numbers and the kernel little code: after the kernels
    # of a model, it is probably in no cache.
    warps = 8 if constants["CHUNK"] == 32 else 32
    call = KernelCall(schedule_kernel, (1,), values, {**constants, "num_warps": warps})
    launch = call.launch(schedule_kernel.arg_names[: len(values)])
    if launch is not None:
        _repeated[key] = launch
