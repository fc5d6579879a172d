"""Attention in float32 PyTorch: the definition of correct."""

from __future__ import annotations

import math

import torch

from .batch import Batch

__all__ = ["run"]


def run(batch: Batch) -> torch.Tensor:
    """Attention of a batch, sequence by sequence; it reads the lengths, so it waits for the GPU."""
    begins = batch.cu_seqlens_q.tolist()
    for index, keys in enumerate(batch.seqused_k.tolist()):
        if begins[index + 1] > begins[index]:
            rows = slice(begins[index], begins[index + 1])
            batch.out[rows] = _sequence(batch, index, batch.q[rows].float(), keys).to(
                batch.out.dtype
            )
    return batch.out


def _sequence(batch: Batch, index: int, q: torch.Tensor, num_keys: int) -> torch.Tensor:
    """One sequence: q [tokens, heads, head_size] in float32, the last of its `num_keys` tokens."""
    blocks = batch.block_table[index, : math.ceil(num_keys / batch.k_cache.shape[1])].long()
    keys, values = (
        cache[blocks].flatten(0, 1)[:num_keys].float().repeat_interleave(batch.group, 1)
        for cache in (batch.k_cache, batch.v_cache)
    )
    scale = batch.softmax_scale if batch.k_scale is None else batch.softmax_scale * batch.k_scale
    scores = torch.einsum("qhd,khd->hqk", q, keys) * scale
    if batch.softcap > 0:
        scores = batch.softcap * torch.tanh(scores / batch.softcap)
    at = torch.arange(num_keys, device=q.device)
    behind = at[num_keys - len(q) :, None] - at[None, :]
    if batch.alibi_slopes is not None:
        scores = scores - batch.alibi_slopes.float()[:, None, None] * behind
    hidden = behind < 0
    if batch.window >= 0:
        hidden |= behind > batch.window
    scores = scores.masked_fill(hidden, float("-inf"))
    if batch.sinks is not None:
        sinks = batch.sinks.float()[:, None, None].expand(-1, len(q), 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    out = torch.einsum("hqk,khd->qhd", weights, values)
    return out if batch.v_scale is None else out * batch.v_scale
