"""Device functions of the Hopper kernel that merge partial results.

A block that several units or both halves of a program compute has partial results: each is the
output so far, its maximum (base 2) and its sum. In decoding, a few of them are merged by the half
whose part came last. All others wait until no unit is left, and then all programs merge them, a few
rows each: one half would take longer alone than for its part.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ...triton_internals.versions import thread_barrier
from ..schedule import (
    FEW_PARTS,
    MERGE,
    PARTS_OF_LAST,
    ROWS_OF_FEW,
    ROWS_OF_LAST,
    ROWS_OF_MANY,
)
from .hopper_pages import STARTED, receive_started
from .hopper_rows import EXTRA

__all__ = ["is_few", "merge", "merge_few"]

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
        kv_head: the KV head.
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
