"""Validated arguments of a `paged_attention` call, in the form that the kernels take."""

from __future__ import annotations

import math
import os
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from ..system.fork_lock import cached_property
from .argument_checks import (
    check_lengths,
    check_out,
    check_per_head,
    check_tensors,
    positive_number,
    scale_tensor,
    window_length,
)
from .layer_tensors import LayerTensors, Scales

__all__ = ["Batch", "make_batch"]

CHECK_VALUES = os.environ.get("DEJAVU_ATTENTION_CHECK", "0") not in ("", "0")
"""Whether values in GPU memory are checked too. Read once, because every launch needs it."""


@dataclass(eq=False)
class Batch:
    """Validated call. Shapes are those of `paged_attention`; sizes are in tokens.

    Do not change it. It is not a frozen dataclass, because every call makes one and freezing takes
    longer than checking some of the tensors.
    """

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    out: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seqused_k: torch.Tensor
    block_table: torch.Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    softmax_scale: float
    window: int
    """Number of keys before its own position that a query sees; -1 for all."""
    softcap: float
    alibi_slopes: torch.Tensor | None
    sinks: torch.Tensor | None
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None

    def with_tensors(self, layer: LayerTensors) -> Batch:
        """Return the call with another layer's tensors, which must be of the same form."""
        other = copy(self)
        other.q, other.out = layer.q, layer.out
        other.k_cache, other.v_cache = layer.k_cache, layer.v_cache
        if layer.scales is not None:
            other.k_scale, other.v_scale = layer.scales
        return other

    def with_out(self, out: torch.Tensor) -> Batch:
        """Return the call with another tensor to write to."""
        other = copy(self)
        other.out = out
        return other

    @cached_property
    def num_tokens(self) -> int:
        """Number of new tokens."""
        return self.q.shape[0]

    @cached_property
    def num_seqs(self) -> int:
        """Number of sequences."""
        return self.seqused_k.shape[0]

    @cached_property
    def kv_heads(self) -> int:
        """Number of KV heads."""
        return self.k_cache.shape[2]

    @cached_property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.q.shape[1] // self.k_cache.shape[2]

    @cached_property
    def head_padded(self) -> int:
        """Head size of the kernels' tiles: the next power of two, at least 16."""
        return max(16, 1 << (self.q.shape[2] - 1).bit_length())

    @property
    def scales(self) -> Scales | None:
        """Factors of the cached keys and values; None unless there are both."""
        if self.k_scale is None or self.v_scale is None:
            return None
        return self.k_scale, self.v_scale

    @cached_property
    def casts(self) -> bool:
        """Whether the cache has float8 elements, which are converted to the queries' dtype."""
        return self.k_cache.element_size() < self.q.element_size()

    @cached_property
    def decode_share(self) -> int:
        """Largest percentage of decoding sequences that is possible for the batch's sizes."""
        longer = math.ceil(max(self.num_tokens - self.num_seqs, 0) / max(self.max_seqlen_q - 1, 1))
        return 100 * (self.num_seqs - min(longer, self.num_seqs)) // self.num_seqs

    def q_blocks(self, block_q: int) -> int:
        """Return how many numbers `find_block` assigns to Q blocks of `block_q` tokens, at most."""
        return self.num_tokens // block_q + self.num_seqs

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Arguments for the kernels' parameters from `q` to `decode_share`."""
        q, cache = self.q, self.k_cache
        return (
            q, cache, self.v_cache, self.cu_seqlens_q, self.seqused_k, self.block_table,
            self.alibi_slopes, self.sinks, self.k_scale, self.v_scale,
            self.softmax_scale, self.softcap,
            q.stride(0), q.stride(1), cache.stride(0), cache.stride(1), cache.stride(2),
            self.block_table.stride(0), *self.composition,
        )  # fmt: skip

    @property
    def composition(self) -> tuple[int, int, int, int]:
        """Number of sequences, their mean new tokens, their most tokens, and the decode share."""
        return (
            self.num_seqs,
            max(self.num_tokens // self.num_seqs, 1),
            self.max_seqlen_k,
            self.decode_share,
        )

    @cached_property
    def shape(self) -> dict[str, Any]:
        """Compile-time arguments of the kernels that the call determines."""
        return {
            "KV_HEADS": self.kv_heads,
            "GROUP": self.group,
            "HEAD": self.q.shape[2],
            "HEAD_PADDED": self.head_padded,
            "PAGE": self.k_cache.shape[1],
            "WINDOW": self.window,
            "SOFTCAP": self.softcap > 0,
            "PRECISION": _precision(self.q),
        }


def _precision(q: torch.Tensor) -> str:
    """Return Triton's input precision: tf32x3 keeps float32's results within 1e-6 on NVIDIA."""
    return "tf32x3" if q.dtype == torch.float32 and torch.version.hip is None else "ieee"


def make_batch(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    k_scale: torch.Tensor | float | None,
    v_scale: torch.Tensor | float | None,
    out: torch.Tensor | None,
) -> Batch:
    """Validate the arguments of `paged_attention` and return them as a `Batch`.

    Raises:
        ValueError: an argument does not fit; the message names it, its value and what is expected.
    """
    check_tensors(q, k_cache, v_cache)
    check_lengths(q, k_cache, cu_seqlens_q, seqused_k, block_table, max_seqlen_q, max_seqlen_k)
    check_per_head("alibi_slopes", alibi_slopes, q)
    check_per_head("sinks", sinks, q)
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    else:
        check_out(out, q)
    scale = (
        q.shape[2] ** -0.5
        if softmax_scale is None
        else positive_number("softmax_scale", softmax_scale)
    )
    batch = Batch(
        q=q,
        k_cache=k_cache,
        v_cache=v_cache,
        out=out,
        cu_seqlens_q=cu_seqlens_q,
        seqused_k=seqused_k,
        block_table=block_table,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        softmax_scale=scale,
        window=window_length(window_size),
        softcap=positive_number("softcap", softcap) if softcap != 0 else 0.0,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        k_scale=scale_tensor("k_scale", k_scale, q),
        v_scale=scale_tensor("v_scale", v_scale, q),
    )
    if CHECK_VALUES or not q.is_cuda:
        _check_values(batch)
    return batch


def _check_values(batch: Batch) -> None:
    """Check the lengths and block numbers, for which the host waits for the GPU."""
    begins = batch.cu_seqlens_q.tolist()
    queries = [after - before for before, after in pairwise(begins)]
    keys = batch.seqused_k.tolist()
    if (
        begins[0] != 0
        or begins[-1] > batch.num_tokens
        or min(queries) < 0
        or max(queries) > batch.max_seqlen_q
    ):
        raise ValueError(
            f"cu_seqlens_q: {begins}; expected it to rise from 0 to q's {batch.num_tokens} tokens "
            f"in steps of at most max_seqlen_q, {batch.max_seqlen_q}"
        )
    page, num_blocks = batch.k_cache.shape[1], batch.k_cache.shape[0]
    for index, (query, key) in enumerate(zip(queries, keys, strict=True)):
        if query == 0:  # padding, as in a captured graph
            continue
        if not query <= key <= batch.max_seqlen_k:
            raise ValueError(
                f"seqused_k: {key} at {index}; expected the sequence's {query} new tokens to "
                f"max_seqlen_k, {batch.max_seqlen_k}"
            )
        used = batch.block_table[index, : math.ceil(key / page)]
        outside = used[(used < 0) | (used >= num_blocks)]
        if outside.numel():
            raise ValueError(
                f"block_table: {int(outside[0])} in row {index}; expected blocks of the cache, "
                f"0 to {num_blocks - 1}"
            )
