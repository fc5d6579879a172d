"""The schedule's units cover a batch's keys exactly once, without more memory than was made."""

import random
from collections import defaultdict
from heapq import heapreplace
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch

from dejavu_cache.attention import schedule
from dejavu_cache.attention.batch import Batch
from dejavu_cache.attention.schedule import ENTRY, HALF, HEADER, MERGE, SPANS, make_schedule

pytestmark = pytest.mark.filterwarnings(  # Triton's interpreter, where a loop's end is computed
    "ignore:Conversion of an array with ndim > 0:DeprecationWarning"
)

SMS = 132


class Entry(NamedTuple):
    """Units of one range of keys, in the order of their numbers."""

    sequence: int
    first: int
    tokens: int
    position: int
    low: int
    high: int
    piece: int
    pieces: int
    row: int
    block: int
    head: int


class Merge(NamedTuple):
    """Rows to merge, in the order of their numbers."""

    first: int
    rows: int
    line: int
    row: int
    pitch: int
    parts: int
    counter: int
    chunks: int
    keys: int


class Scheduled(NamedTuple):
    """A batch with its lists of units and of rows to merge."""

    batch: Batch
    entries: list[Entry]
    merges: list[Merge]
    rows: int
    span: int
    halves: int
    heads: int
    parts: int


def batch_of(
    new: list[int],
    past: list[int],
    heads: tuple[int, int] = (32, 8),
    window: int = -1,
    head_size: int = 64,
) -> Batch:
    q = torch.empty(max(sum(new), 1), heads[0], head_size, dtype=torch.float16)
    cache = torch.empty(1, 16, heads[1], head_size, dtype=torch.float16)
    begins = torch.tensor([0, *new]).cumsum(0).to(torch.int32)
    lengths = torch.tensor([a + b for a, b in zip(new, past, strict=True)], dtype=torch.int32)
    table = torch.empty(len(new), 1, dtype=torch.int32)
    return Batch(
        q, cache, cache, q, begins, lengths, table, max(new), int(lengths.max()), 1.0, window, 0.0,
        None, None, None, None,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "num_sms", lambda device: SMS)


def schedule_of(batch: Batch, overlap: bool = True) -> Scheduled:
    made = make_schedule(batch, overlap)
    end = HEADER + int(made.units[0]) * ENTRY
    numbers = made.units[HEADER:end].view(-1, ENTRY).tolist()
    entries = [Entry(*entry) for entry in numbers]
    count, begin = int(made.units[1]), int(made.units[2])
    assert begin + count * MERGE <= made.units.numel()
    numbers = made.units[begin : begin + count * MERGE].view(-1, MERGE).tolist()
    merges = [Merge(*merge) for merge in numbers]
    heads = schedule.heads_at_once(batch.kv_heads, made.halves)
    rows, span = made.scratch.shape[0], SPANS[made.pairs > 0]
    parts = schedule.parts_each(made.pairs, made.halves, batch.kv_heads, batch.head_padded)
    return Scheduled(batch, entries, merges, rows, span, made.halves, heads, parts)


def check_cover(made: Scheduled) -> None:
    """Check that each Q block's pieces follow each other from its first key to its end."""
    half = HALF // made.batch.group
    blocks: dict[tuple[int, int], list[Entry]] = defaultdict(list)
    for entry in made.entries:
        blocks[entry.block, entry.head].append(entry)
    tokens: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for (_, head), entries in blocks.items():
        pieces = sorted(entries, key=lambda entry: entry.piece)
        one, window = pieces[0], made.batch.window
        low = 0 if window < 0 else max(one.position - window, 0) // made.span * made.span
        assert (pieces[0].low, pieces[-1].high) == (low, one.position + one.tokens)
        assert all(before.high == after.low for before, after in pairwise(pieces))
        assert [piece.piece for piece in pieces] == list(range(len(pieces)))
        assert all(piece.pieces in (len(pieces), 0) for piece in pieces)
        assert len(pieces) == 1 or one.row >= 0
        assert one.tokens > half or head == 0
        if head == 0:
            tokens[one.sequence].append((one.first, one.tokens))
        elif one.tokens > half:
            assert (one.block, 0) in blocks
    begins = made.batch.cu_seqlens_q.tolist()
    for sequence, (begin, end) in enumerate(pairwise(begins)):
        at = begin
        for first, count in sorted(tokens[sequence]):
            assert first == at
            at += count
        assert at == end


def check_rows(made: Scheduled) -> None:
    """Check that blocks with partial results have rows of their own, inside the scratch."""
    half = HALF // made.batch.group
    ranges = set()
    for entry in made.entries:
        single = entry.tokens <= half
        if entry.pieces > 1 or (entry.pieces == 1 and single and made.parts == 2):
            rows = entry.tokens * made.batch.group * made.parts if single else 2 * HALF
            ranges.add((entry.row, entry.row + rows * entry.pieces))
    assert all(before[1] <= after[0] for before, after in pairwise(sorted(ranges)))
    assert max((end for _, end in ranges), default=0) <= made.rows


def check_merges(made: Scheduled) -> None:
    """Check that each row of a block with several partial results is merged once, from all.

    In decoding, the half whose part comes last merges a few, without the list.
    """
    half, group = HALF // made.batch.group, made.batch.group
    expected = {}
    for entry in made.entries:
        single = entry.tokens <= half
        parts = entry.pieces * (made.parts if single else 1)
        rows = min(entry.tokens, half) * group
        few = parts <= schedule.PARTS_OF_LAST and rows <= schedule.ROWS_OF_LAST
        if parts < 2 or (made.span == SPANS[False] and few):
            continue
        pitch = rows if single else 2 * HALF
        expected[2 * entry.block] = (entry.first, rows, entry.row, pitch, parts)
        if not single:
            rest = (entry.tokens - half) * group
            expected[2 * entry.block + 1] = (
                entry.first + half,
                rest,
                entry.row + HALF,
                pitch,
                parts,
            )
    merges: dict[int, list[Merge]] = defaultdict(list)
    for merge in made.merges:
        merges[merge.counter].append(merge)
    assert merges.keys() == expected.keys()
    for counter, chunks in merges.items():
        ends = [chunk.line for chunk in chunks[1:]] + [chunks[0].rows]
        at_once = schedule.ROWS_OF_FEW
        if chunks[0].parts > schedule.FEW_PARTS or made.span == SPANS[False]:
            at_once = schedule.ROWS_OF_MANY
        for chunk, end in zip(chunks, ends, strict=True):
            numbers = (chunk.first, chunk.rows, chunk.row, chunk.pitch, chunk.parts)
            assert numbers == expected[counter]
            assert chunk.chunks == len(chunks)
            assert 0 < end - chunk.line <= at_once


def check(made: Scheduled) -> None:
    """Check the lists of a batch."""
    check_cover(made)
    check_rows(made)
    check_merges(made)


def balance(made: Scheduled) -> float:
    """Return an equal share of the keys over the most of a program, by list scheduling."""
    programs = SMS * (2 // made.halves)
    half, times = HALF // made.batch.group, [0.0] * programs
    for entry in made.entries:
        heads = made.heads if entry.tokens <= half else 1
        for _ in range(made.batch.kv_heads // made.heads):
            heapreplace(times, times[0] + heads * (entry.high - entry.low))
    return sum(times) / programs / max(times)


SHAPES = (((32, 8), 96), ((7, 1), 64), ((8, 1), 256), ((6, 3), 192), ((64, 8), 64), ((28, 4), 64))
"""Heads and their sizes."""


@pytest.mark.parametrize(("heads", "head_size"), SHAPES)
def test_units_cover_random_batches(heads: tuple[int, int], head_size: int) -> None:
    pick = random.Random(f"{heads} {head_size}")
    for longest in (1, 4, 17, 300, 900):
        count = pick.choice([1, 2, 7, 40])
        new = [pick.randrange(longest + 1) for _ in range(count - 1)] + [longest]
        past = [pick.choice([0, 1, 127, 128, pick.randrange(30000)]) for _ in new]
        batch = batch_of(new, past, heads, pick.choice([-1, 0, 100, 5000]), head_size)
        for overlap in (True, False):
            check(schedule_of(batch, overlap))


def test_what_sees_no_key_gets_no_unit() -> None:
    for heads in (32, 8), (7, 1):
        made = schedule_of(batch_of([1, 1, 40, 2], [-1, 70, -60, -2], heads))
        assert [entry.sequence for entry in made.entries] == [1]
        check_merges(made)


def test_one_long_sequence_does_not_hold_up_the_others() -> None:
    pick = random.Random(1)
    for count, mean in ((16, 2500), (128, 1200)):
        past = [max(1, int(pick.lognormvariate(0, 0.9) * mean)) for _ in range(count - 1)]
        made = schedule_of(batch_of([1] * count, [*past, 8 * mean]))
        assert balance(made) > 0.6, f"{count} decodes of some {mean}"


def test_more_sequences_than_programs_are_hardly_cut() -> None:
    """Equal shares would gain less than the cuts cost: up to 13% on an H100."""
    pick = random.Random(3)
    past = [max(1, int(pick.lognormvariate(0, 0.9) * 900)) for _ in range(64)]
    made = schedule_of(batch_of([3] * 64, past, heads=(64, 8)))
    assert len(made.entries) < 64 + 16
    assert balance(made) > 0.7


def test_a_long_decoding_sequence_is_cut_beside_prompts_that_are_not() -> None:
    new, past = [1] * 60 + [100] * 4, [400] * 59 + [2200] + [0] * 4
    made = schedule_of(batch_of(new, past, heads=(8, 1)))
    cut = {entry.sequence for entry in made.entries if entry.pieces > 1}
    assert cut == {59}


def test_what_finds_no_room_is_left_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "MOST_CUTS", 0)
    for heads in (32, 8), (7, 1):
        made = schedule_of(batch_of([1] * 12 + [100], [20000] * 13, heads))
        check(made)


def test_odd_heads_have_room_for_all_their_partial_results() -> None:
    pick = random.Random(7)
    for heads in (8, 1), (6, 3):
        past = [max(1, int(pick.lognormvariate(0, 0.9) * 8000)) for _ in range(96)]
        made = schedule_of(batch_of([1] * 96, past, heads))
        assert all(entry.row >= 0 for entry in made.entries)
        assert balance(made) > 0.8, heads


def test_short_prompts_and_uneven_chunks_are_not_cut() -> None:
    """To merge what was cut would take longer than to compute it."""
    for new, past, heads in ((241, 0, (32, 8)), (299, 0, (28, 4)), (2048, 6790, (8, 1))):
        made = schedule_of(batch_of([new], [past], heads))
        assert {entry.pieces for entry in made.entries} == {1}, (new, past, heads)
