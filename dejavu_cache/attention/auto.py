"""Which implementation suits a batch: the one place that decides."""

from __future__ import annotations

import torch

from . import qblock, segmented
from .arguments import Batch

__all__ = ["run"]

ENOUGH_PROGRAMS = 1024
"""(sequence, KV head) pairs that fill a GPU several times over."""


def run(batch: Batch) -> torch.Tensor:
    """Attention of a batch by the implementation that suits it."""
    if batch.max_seqlen_q > 1:
        return qblock.run(batch)
    if batch.num_seqs * batch.kv_heads >= ENOUGH_PROGRAMS and batch.max_seqlen_k <= 1024:
        return qblock.run(batch)
    return segmented.run(batch)
