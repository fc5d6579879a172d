"""Batches of paged attention that no sweep has tuned for, to tell what its records are worth.

    python records/worth.py attention_suite --store URL [--only qblock]

`dejavu-cache sweep dejavu_cache.attention` makes the records. Inputs are the sequences, their most
new tokens and most earlier ones, and the tokens in a page. Lengths are drawn up to these.
"""

from __future__ import annotations

from typing import Any

import torch

from dejavu_cache.attention.api import IMPLEMENTATIONS
from dejavu_cache.attention.sweep_suite import PRESETS, Lengths, batch_of

INPUTS = ()
HELD_OUT = tuple(
    (*sizes, page)
    for page in (128, 16)
    for sizes in (
        *((3, 1, 6000), (24, 1, 1500), (100, 1, 3000), (200, 1, 700)),
        *((1, 3000, 0), (6, 700, 0), (3, 700, 5000)),
    )
)


def _draw(count: int, most: int) -> list[int]:
    return torch.randint(most // 4, most + 1, (count,)).tolist()


def _run(name: str, sequences: int, new: int, past: int, page: int) -> torch.Tensor:
    lengths = Lengths(
        "", _draw(sequences, new) if new > 1 else [1] * sequences, _draw(sequences, past)
    )
    model = PRESETS["llama3-8b"]
    return IMPLEMENTATIONS[name](batch_of(lengths, model, page, torch.bfloat16))


def qblock(*sizes: int) -> torch.Tensor:
    return _run("qblock", *sizes)


def segmented(*sizes: int) -> torch.Tensor:
    return _run("segmented", *sizes)


def static_grid(*sizes: int) -> torch.Tensor:
    return _run("static_grid", *sizes)


FUNCTIONS: tuple[Any, ...] = (qblock, segmented, static_grid)
