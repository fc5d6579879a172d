"""Paged attention of an engine's layers: views of its cache, and one plan for layers alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ... import attention
from ...attention.batch import Scales
from ...runtime.service_phase import without_benchmarks

__all__ = [
    "LayerFeatures",
    "StepInputs",
    "plan_layer",
    "run_layer",
    "split_cache",
]


class LayerFeatures(NamedTuple):
    """What a layer asks of attention, beside its queries and its cache.

    Layers with the same `key` share one plan within a step, to which each gives its own factors of
    keys and values. Do not compare with `==`: tensors have no single truth value.
    """

    scale: float
    window: tuple[int, int]
    softcap: float
    alibi_slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Hashable key; tensors count by identity."""
        shared = (self.scale, self.window, self.softcap, id(self.alibi_slopes), id(self.sinks))
        return shared if self.scales is not None else (*shared, id(self.k_scale), id(self.v_scale))

    @property
    def kind(self) -> tuple[Any, ...]:
        """Hashable key of layers that need the same kernels; tensors count by their presence."""
        tensors = (self.alibi_slopes, self.sinks, self.k_scale, self.v_scale)
        return self.scale, self.window, self.softcap, *(value is not None for value in tensors)

    @property
    def scales(self) -> Scales | None:
        """The layer's factors of keys and values; None unless there are both."""
        if self.k_scale is None or self.v_scale is None:
            return None
        return self.k_scale, self.v_scale


@dataclass(eq=False)
class StepInputs:
    """Lengths and block table of one step of an engine, and the plans that were made for it.

    Attributes:
        num_tokens: number of new tokens, with padding.
        max_query_len: largest number of new tokens of a request, or more.
        max_seq_len: largest number of tokens of a request, or more.
        query_start_loc: `cu_seqlens_q` of `paged_attention`.
        seq_lens: its `seqused_k`.
        block_table: its `block_table`.
        slots: where the new keys and values belong in the cache, as in `attention.NewTokens`; None
            if they are there already.
        is_for_capture: whether the step is captured into a graph. What a plan allocates has to
            belong to the graph then, so that a plan from before the capture is of no use in it.
        plans: of the step's layers, by what layers have in common that share one.
    """

    num_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slots: torch.Tensor | None = None
    is_for_capture: bool = False
    plans: dict[tuple[Any, ...], attention.Plan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Bring the bound into what is possible: an engine's may be anything in its warm-up."""
        self.max_query_len = max(min(self.max_query_len, self.num_tokens), 1)

    def lengths(self, page: int) -> dict[str, Any]:
        """Return the step's arguments of `paged_attention`, for a cache with pages of a size."""
        room = self.block_table.shape[1] * page
        max_query = min(self.max_query_len, room)
        return {
            "cu_seqlens_q": self.query_start_loc,
            "seqused_k": self.seq_lens,
            "block_table": self.block_table,
            "max_seqlen_q": max_query,
            "max_seqlen_k": min(max(self.max_seq_len, max_query), room),
        }


def split_cache(
    kv_cache: torch.Tensor, head_size: int, dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values of an engine's cache, [blocks, block_size, kv_heads, head_size].

    Args:
        kv_cache: [blocks, 2, block_size, kv_heads, head_size], or with keys and values side by side
            in the last dimension: [blocks, kv_heads, block_size, 2 * head_size]. Any strides.
        head_size: of the layer.
        dtype: float8 dtype of a cache whose bytes are declared as integers; None: the cache's own.

    Raises:
        ValueError: the cache has another shape.
    """
    if dtype is not None and kv_cache.dtype != dtype:
        kv_cache = kv_cache.view(dtype)
    if kv_cache.dim() == 5 and kv_cache.shape[1] == 2:
        keys, values = kv_cache.unbind(1)
        return keys, values
    if kv_cache.dim() == 4 and kv_cache.shape[3] == 2 * head_size:
        keys, values = kv_cache.transpose(1, 2).split(head_size, dim=-1)
        return keys, values
    raise ValueError(
        f"kv_cache: {list(kv_cache.shape)}; expected [blocks, 2, block_size, kv_heads, "
        f"{head_size}] or [blocks, kv_heads, block_size, {2 * head_size}]"
    )


def run_layer(
    step: StepInputs,
    features: LayerFeatures,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    new: attention.NewTokens | None = None,
    write: Callable[[], object] = lambda: None,
) -> None:
    """Compute a layer's attention in a step; nothing is benchmarked for it.

    Args:
        step: the step.
        features: the layer's.
        query: [num_tokens, num_heads, head_size].
        keys: of the layer's cache, from `split_cache`.
        values: likewise.
        out: is written.
        new: the new tokens' keys and values, if they are not in the cache yet.
        write: writes them into the cache; called where attention does not do that itself.
    """
    with without_benchmarks():
        key = features.key, query.shape, query.stride(), keys.shape, keys.stride()
        plan = step.plans.get(key)
        if plan is None:
            plan = plan_layer(step, features, query, keys, values)
            if not step.is_for_capture or torch.cuda.is_current_stream_capturing():
                step.plans[key] = plan
        if new is not None and not plan.writes(new):
            write()
            new = None
        plan.run(query, keys, values, out, new, features.scales)


def plan_layer(
    step: StepInputs,
    features: LayerFeatures,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> attention.Plan:
    """Return the plan of a layer in a step; the arguments are those of `run_layer`.

    Launches do not overlap: an engine has other kernels between its layers. Side by side in vLLM
    0.22, overlapping changed the time of a decoding step by less than 0.2%.
    """
    return attention.plan(
        query,
        keys,
        values,
        **step.lengths(keys.shape[1]),
        softmax_scale=features.scale,
        window_size=features.window,
        softcap=features.softcap,
        alibi_slopes=features.alibi_slopes,
        sinks=features.sinks,
        k_scale=features.k_scale,
        v_scale=features.v_scale,
        overlap=False,
    )
