"""Which implementation suits a batch: the one place that decides.

The numbers are those of an H200, from `benchmarks/results/attention.json`.
"""

from __future__ import annotations

from functools import cache

import torch

from . import hopper, qblock, segmented
from .arguments import Batch

__all__ = ["run"]


def run(batch: Batch) -> torch.Tensor:
    """Attention of a batch by the implementation that suits it."""
    rows = batch.max_seqlen_q * batch.group
    programs = max(batch.num_tokens * batch.group // 64, batch.num_seqs) * batch.kv_heads
    if rows <= 16:  # decoding, one or a few tokens each: what counts is how fast the keys are read
        full = programs >= 8 * _num_sms(batch.q.device) - 64
        return qblock.run(batch) if full and batch.max_seqlen_k <= 1024 else segmented.run(batch)
    if programs < _num_sms(batch.q.device) // 2 and batch.max_seqlen_k >= 2048:
        return segmented.run(batch)  # too few Q blocks for the GPU, with many keys each
    if programs >= _num_sms(batch.q.device) and hopper.suits(batch):
        return hopper.run(batch)
    return qblock.run(batch)


@cache
def _num_sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132
