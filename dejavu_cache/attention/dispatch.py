"""Choice of the implementation by the batch.

The thresholds were measured on an H200. Among the kernels with shipped records (`qblock`,
`segmented`, `static_grid`), this choice costs 0.3% more than the best one (geometric mean over the
sweep's batches), and 5% more at worst.
"""

from __future__ import annotations

import torch

from ..triton_internals.versions import GLUON_IS_TESTED
from .batch import Batch
from .kernels import few_sequences, hopper, qblock, segmented, static_grid
from .kernels.kernel_call import num_sms
from .kernels.write_cache import WritingLayers
from .layers import Layers
from .new_tokens import NewTokens

__all__ = ["RUNS", "UNTUNED", "choose", "layers_of", "run"]

RUNS = {
    "few_sequences": few_sequences.run,
    "hopper": hopper.run,
    "qblock": qblock.run,
    "segmented": segmented.run,
    "static_grid": static_grid.run,
}
"""Implementations that a batch may be given to, by name."""

UNTUNED = ("few_sequences", "hopper")
"""Implementations with one config for each kind of work, which leaves nothing to tune."""


def choose(batch: Batch) -> str:
    """Return the name of the implementation that suits a batch."""
    if GLUON_IS_TESTED and hopper.suits(batch):
        # The config of few_sequences was measured on a Hopper GPU; elsewhere, segments are tuned.
        return "few_sequences" if few_sequences.suits(batch) else "hopper"
    rows = batch.max_seqlen_q * batch.group
    programs = max(batch.num_tokens * batch.group // 64, batch.num_seqs) * batch.kv_heads
    sms = num_sms(batch.q.device)
    if rows <= 16:  # decoding a few tokens per sequence: the bandwidth of reading keys decides
        full = programs >= 2 * sms - 8 and batch.max_seqlen_k <= 2 * programs
        return "qblock" if full else "segmented"
    if programs < sms // 2 and batch.max_seqlen_k >= 2048:
        return "segmented"  # too few Q blocks for the GPU, with many keys each
    return "qblock"


class IndependentLayers:
    """Layers of a step that share nothing."""

    def __init__(self, implementation: str) -> None:
        """Keep the implementation's name, a key of `RUNS`."""
        self._run = RUNS[implementation]

    def writes(self, batch: Batch, new: NewTokens) -> bool:
        """Return False: the kernels read the cache only."""
        return False

    def launch(self, batch: Batch, new: NewTokens | None = None) -> None:
        """Compute a layer."""
        self._run(batch)


def layers_of(implementation: str, batch: Batch, overlap: bool) -> Layers:
    """Prepare an implementation's launches in the layers of a step.

    Args:
        implementation: a key of `RUNS`.
        batch: the call of one layer.
        overlap: as in `plan`.
    """
    if implementation == "hopper":
        return WritingLayers(hopper.HopperLayers(batch, overlap))
    if implementation == "few_sequences":
        return WritingLayers(few_sequences.FewSequencesLayers())
    return WritingLayers(IndependentLayers(implementation))


def run(batch: Batch) -> torch.Tensor:
    """Compute a batch's attention by the implementation that suits it, and return its `out`."""
    return RUNS[choose(batch)](batch)
