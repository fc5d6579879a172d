"""Reference implementation in float32 PyTorch, which defines the correct result."""

from __future__ import annotations

import math

import torch

from .batch import Batch

__all__ = ["run"]


def run(batch: Batch) -> torch.Tensor:
    """Compute attention sequence by sequence; waits for the GPU, because it reads the lengths."""
    begins = batch.cu_seqlens_q.tolist()
    for index, keys in enumerate(batch.seqused_k.tolist()):
        if begins[index + 1] > begins[index]:
            rows = slice(begins[index], begins[index + 1])
            result = _attend(batch, index, batch.q[rows].float(), keys)
            batch.out[rows] = result.to(batch.out.dtype)
    return batch.out


def _attend(batch: Batch, index: int, q: torch.Tensor, num_keys: int) -> torch.Tensor:
    """Compute one sequence's attention.

    Args:
        batch: the call.
        index: the sequence's number in the batch.
        q: float32 queries of its last tokens, [tokens, num_query_heads, head_size].
        num_keys: the number of its tokens.
    """
    blocks = batch.block_table[index, : math.ceil(num_keys / batch.k_cache.shape[1])].long()
    keys, values = (
        _take_blocks(cache, blocks)
        .flatten(0, 1)[:num_keys]
        .float()
        .repeat_interleave(batch.group, 1)
        for cache in (batch.k_cache, batch.v_cache)
    )
    scale = batch.softmax_scale if batch.k_scale is None else batch.softmax_scale * batch.k_scale
    scores = torch.einsum("qhd,khd->hqk", q, keys) * scale
    if batch.softcap > 0:
        scores = batch.softcap * torch.tanh(scores / batch.softcap)
    positions = torch.arange(num_keys, device=q.device)
    distance = positions[num_keys - len(q) :, None] - positions[None, :]
    if batch.alibi_slopes is not None:
        scores = scores - batch.alibi_slopes.float()[:, None, None] * distance
    hidden = distance < 0
    if batch.window >= 0:
        hidden |= distance > batch.window
    scores = scores.masked_fill(hidden, float("-inf"))
    if batch.sinks is not None:
        sinks = batch.sinks.float()[:, None, None].expand(-1, len(q), 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    out = torch.einsum("hqk,khd->qhd", weights, values)
    return out if batch.v_scale is None else out * batch.v_scale


def _take_blocks(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Return blocks of a cache; torch before 2.9 cannot index a float8 tensor on a CPU."""
    if cache.dtype.itemsize == 1:
        return cache.view(torch.uint8)[blocks].view(cache.dtype)
    return cache[blocks]
