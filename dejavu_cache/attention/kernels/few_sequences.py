"""Decoding of one or two sequences: the paper's segments (4.5) in one config, without a schedule.

One sequence occupies a GPU only if it is cut into many segments, and then all of them are short.
What the Hopper kernel prepares takes longer than they do: a list of units, barriers, and warps with
tasks of their own. Its code is six times as long, too (99 KB, and 15 KB here), and after the
products of a model a launch finds none of it in a cache.
"""

from __future__ import annotations

import torch
import triton

from ..batch import Batch
from ..search_space import why_not_here
from . import segmented
from .kernel_call import KernelCall, Repeat, num_sms

__all__ = ["FewSequencesLayers", "run", "suits"]

TILES = {"TILE": 32, "per_sm": 4}
OPTIONS = {"num_warps": 4, "num_stages": 4}
"""The config: of 19, the fastest with long contexts, and among the fastest with short ones.

They were measured between the products of a model, on an H200.
"""

ROWS = 16
"""Rows of a sequence, at most; a row is a (token, query head of one KV head)."""

MOST_SEQS = 2
"""Sequences, at most: more of different lengths need the balance that a schedule gives."""

SMS_PER_HEAD = 8
"""Multiprocessors for each sequence's KV head, at least."""


def suits(batch: Batch) -> bool:
    """Check a batch for few rows of one or two sequences, and a GPU that is large beside them."""
    heads = batch.num_seqs * batch.kv_heads
    return (
        batch.num_seqs <= MOST_SEQS
        and batch.max_seqlen_q * batch.group <= ROWS
        and SMS_PER_HEAD * heads <= num_sms(batch.q.device)
    )


def slots_of(batch: Batch) -> int:
    """Return the most segments of a sequence: a power of two, equal for all batches of a model.

    Kernels are compiled for it, and nothing is to be compiled for another length of a sequence.
    """
    programs = max(TILES["per_sm"] * num_sms(batch.q.device) // batch.kv_heads, 1)
    return min(1 << (programs.bit_length() - 1), segmented.MOST_SEGMENTS)


def prepare(batch: Batch) -> tuple[KernelCall, KernelCall]:
    """Prepare the launches that compute and merge a batch's segments.

    Raises:
        ValueError: the config cannot run the batch's shape on this GPU.
    """
    slots = slots_of(batch)
    call = segmented.launch(batch, most=slots)
    tiles = {**TILES, "BLOCK_M": max(ROWS, 1 << (batch.group - 1).bit_length())}
    arguments = {**call.arguments, **tiles}
    reason = why_not_here(triton.Config(tiles, **OPTIONS), arguments)
    if reason:
        raise ValueError(
            f"implementation: 'few_sequences' has one config, which {reason}; use 'auto'"
        )
    grid = call.grid(arguments)
    # The function behind the autotuner, since there is nothing to choose.
    computing = KernelCall(call.kernel.fn, grid, call.args, {**call.kwargs, **tiles, **OPTIONS})
    merging = segmented.merge(
        batch.out, arguments["scratch"], batch.cu_seqlens_q, batch.v_scale, batch.head_padded,
        grid[1], slots,
    )  # fmt: skip
    return computing, merging


def run(batch: Batch) -> torch.Tensor:
    """Compute a batch's attention, and return its `out`."""
    for call in prepare(batch):
        call()
    return batch.out


class FewSequencesLayers:
    """Launches in the layers of a step, which share the memory for segments."""

    def launch(self, batch: Batch) -> Repeat:
        """Compute a layer, and return how to compute others of the same form."""
        computing, merging = prepare(batch)
        compute = computing.repeated(computing(), ("out", "q", "k_cache", "v_cache"))
        merge = merging.repeated(merging(), ("out",))

        def repeat(
            q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, out: torch.Tensor
        ) -> bool:
            return compute(out, q, k_cache, v_cache) and merge(out)

        return repeat
