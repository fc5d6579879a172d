"""Sweep suite of paged attention for larger pages and half the heads, as tensor parallelism has.

    dejavu-cache sweep records/attention_suite.py --tune-loss 0.03

`dejavu-cache sweep dejavu_cache.attention` tunes all batches of one shape; this takes decoding and
prompts of fewer sizes for several shapes, each with the kernel that `auto` launches where `hopper`
does not suit. Held-out inputs are the sequences, their most new tokens and most earlier ones, the
KV heads, and the tokens in a page. Lengths are drawn between half of these and these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from dejavu_cache.attention.api import choose, run
from dejavu_cache.attention.kernels import hopper
from dejavu_cache.attention.sweep_suite import (
    Lengths,
    Model,
    batch_of,
    case_of,
    current_device,
    lengths,
    outline,
)
from dejavu_cache.sweep.suite import Case

SHAPES = ((4, 16), (8, 32), (8, 128), (8, 64), (4, 32), (4, 128), (4, 64))
"""KV heads, each with four query heads of 128, and tokens in a page; the most used first."""

SEQUENCES = (1, 4, 16, 64, 256)
LONGEST = (2048, 8192, 512, 32768)

INPUTS = ()
HELD_OUT = tuple(
    (*sizes, *shape)
    for shape in SHAPES
    for sizes in (
        *((5, 1, 12000), (20, 1, 3500), (90, 1, 3500), (300, 1, 900)),
        *((1, 3900, 0), (5, 700, 0), (6, 11000, 0)),
    )
)

hopper.suits = lambda batch: False


def _draw(count: int, most: int) -> list[int]:
    return torch.randint(most // 2, most + 1, (count,)).tolist()


def attention(sequences: int, new: int, past: int, heads: int, page: int) -> torch.Tensor:
    drawn = _draw(sequences, new) if new > 1 else [1] * sequences
    composition = Lengths("", drawn, _draw(sequences, past))
    return run(batch_of(composition, Model(4 * heads, heads, 128), page, torch.bfloat16))


FUNCTIONS: tuple[Any, ...] = (attention,)


def suite() -> Iterator[Case]:
    """Yield a case for each shape of the batches, sizes that are most used first."""
    batches = {batch.name: batch for batch in lengths()}
    sizes = [f"{count} x {longest}" for longest in LONGEST for count in SEQUENCES]
    for name in [f"{kind} {size}" for size in sizes for kind in ("decode", "prefill")]:
        if name in batches:
            yield from _cases_of(batches[name])


def _cases_of(batch: Lengths) -> Iterator[Case]:
    for heads, page in SHAPES:
        shape = Model(4 * heads, heads, 128), page, torch.bfloat16
        case = case_of(choose(outline(batch, shape, current_device())), batch, shape)
        yield replace(case, name=f"{case.name}, {heads} KV heads, pages of {page}")
