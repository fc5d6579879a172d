"""Batches that an engine may meet: one for each region in which kernels choose a config.

They are described by few numbers, and launched with tensors that are tiny in memory: all requests
read the same block of an empty cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ...attention.schedule import FEW_SEQS
from .planned_attention import LayerFeatures, StepInputs, split_cache

__all__ = [
    "SHORTEST_CONTEXT",
    "ExpectedBatch",
    "LayerShape",
    "ServingLimits",
    "batches_to_expect",
    "made_up_step",
]

SHORTEST_CONTEXT = 128
"""Context from which on batches are told apart by it, in tokens."""


SHORT_PROMPT = 96
"""Tokens of a prompt of more than half a Q block that is not long, with one query head per KV head.

With one request at a time, 64 tokens are half a block and 128 are long: no power of two is between.
"""

REST_OF_PROMPT = 4
"""Tokens of one request that `few_sequences` leaves to `hopper`, in a block of one half.

For 5 to 16 query heads per KV head. An engine that serves one request decodes by the former.
"""


@dataclass(frozen=True)
class LayerShape:
    """Shape of a layer and its cache.

    Attributes:
        num_heads: query heads.
        num_kv_heads: KV heads.
        head_size: elements of a head.
        page: tokens of a block.
        dtype: of the queries.
        cache_dtype: of the cache.
        cache_order: order in memory of the dimensions of [blocks, kv_heads, page, 2 * head_size],
            where the cache has keys and values side by side; empty where they are apart. Kernels
            are chosen by it.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    page: int
    dtype: torch.dtype
    cache_dtype: torch.dtype
    cache_order: tuple[int, ...] = ()


@dataclass(frozen=True)
class ServingLimits:
    """Largest batches of an engine.

    Attributes:
        max_requests: requests at a time.
        max_tokens: new tokens of a step.
        max_context: tokens of a request.
        decoded_at_once: new tokens of a decoding request, with those that were drafted.
    """

    max_requests: int
    max_tokens: int
    max_context: int
    decoded_at_once: int = 1


@dataclass(frozen=True)
class ExpectedBatch:
    """Batch by its composition: new tokens of each request, and the longest context."""

    new: tuple[int, ...]
    context: int


def batches_to_expect(limits: ServingLimits) -> list[ExpectedBatch]:
    """Return one batch for each region in which the kernels choose a config of its own.

    The most frequent kinds come first: decoding, prompts, prompts among decoding requests, and
    chunks of long prompts.
    """
    expected = [
        *_decode_batches(limits),
        *_prompt_batches(limits),
        *_mixed_batches(limits),
        *_chunk_batches(limits),
    ]
    return list(dict.fromkeys(expected))


def _decode_batches(limits: ServingLimits) -> Iterator[ExpectedBatch]:
    """Yield decoding requests, with all drafted tokens and with none."""
    for new in (limits.decoded_at_once, 1):
        # Captured graphs decode with the longest context.
        for context in reversed([*_powers(SHORTEST_CONTEXT, limits.max_context)]):
            for count in _powers(1, min(limits.max_requests, limits.max_tokens // new)):
                yield ExpectedBatch((new,) * count, context)


def _prompt_batches(limits: ServingLimits) -> Iterator[ExpectedBatch]:
    longest = min(limits.max_context, limits.max_tokens)
    for length in _powers(16, longest):
        for count in _powers(1, min(limits.max_requests, limits.max_tokens // length)):
            yield ExpectedBatch(
                (length,) * count, max(length, min(SHORTEST_CONTEXT, limits.max_context))
            )
    if longest > SHORT_PROMPT:
        yield ExpectedBatch((SHORT_PROMPT,), SHORT_PROMPT)
    rest = min(REST_OF_PROMPT, longest)
    yield ExpectedBatch((rest,), rest)


def _mixed_batches(limits: ServingLimits) -> Iterator[ExpectedBatch]:
    """Yield one prompt among decoding requests, with all tokens of a step and with a quarter.

    Last, a few requests share all tokens of a step evenly.
    """
    for new in (limits.decoded_at_once, 1):
        for count in _powers(1, limits.max_requests - 1):
            for tokens in (limits.max_tokens, limits.max_tokens // 4):
                prompt = min(tokens - count * new, limits.max_context)
                if prompt > new:
                    for context in {limits.max_context, max(prompt, limits.max_context // 4)}:
                        yield ExpectedBatch(((new,) * count) + (prompt,), context)
    count = min(FEW_SEQS, limits.max_requests, limits.max_tokens)
    length, rest = divmod(min(limits.max_tokens, count * limits.max_context), count)
    yield ExpectedBatch((length + 1,) * rest + (length,) * (count - rest), length + (rest > 0))


def _chunk_batches(limits: ServingLimits) -> Iterator[ExpectedBatch]:
    """Yield a chunk of a prompt that fills a step, after ever more of the prompt, and last ones."""
    longest = min(limits.max_tokens, limits.max_context)
    for context in _powers(longest, limits.max_context):
        yield ExpectedBatch((longest,), context)
    for chunk in _powers(SHORTEST_CONTEXT, longest):
        yield ExpectedBatch((chunk,), limits.max_context)


def _powers(first: int, last: int) -> Iterator[int]:
    """Yield `first`, its doubles up to `last`, and `last`."""
    value = first
    while value < last:
        yield value
        value *= 2
    if last >= 1:
        yield last


def made_up_step(
    shape: LayerShape, features: LayerFeatures, batch: ExpectedBatch, device: torch.device
) -> tuple[StepInputs, LayerFeatures, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the arguments of `run_layer` for a batch, whose requests all read one empty block."""

    def empty(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(*sizes, dtype=dtype, device=device)

    tokens, page = sum(batch.new), shape.page
    begins = torch.zeros(len(batch.new) + 1, dtype=torch.int32)
    begins[1:] = torch.tensor(batch.new, dtype=torch.int32).cumsum(0)
    keys, values = split_cache(_empty_block(shape, device), shape.head_size)
    if shape.cache_dtype != shape.dtype:
        scale = torch.ones((), dtype=torch.float32, device=device)
        features = features._replace(k_scale=scale, v_scale=scale)
    if features.sinks is not None:
        features = features._replace(sinks=features.sinks.to(device))
    step = StepInputs(
        tokens,
        max(batch.new),
        batch.context,
        begins.to(device),
        torch.full((len(batch.new),), max(batch.new), dtype=torch.int32, device=device),
        empty(len(batch.new), -(-batch.context // page), dtype=torch.int32),
    )
    query = empty(tokens, shape.num_heads, shape.head_size, dtype=shape.dtype)
    return step, features, query, keys, values


def _empty_block(shape: LayerShape, device: torch.device) -> torch.Tensor:
    """Return a cache of one block that lies in memory as the engine's does."""
    order = shape.cache_order
    sizes: tuple[int, ...] = (1, 2, shape.page, shape.num_kv_heads, shape.head_size)
    if order:
        side_by_side = (1, shape.num_kv_heads, shape.page, 2 * shape.head_size)
        sizes = tuple(side_by_side[axis] for axis in order)
    cache = torch.zeros(sizes, dtype=shape.dtype, device=device).to(shape.cache_dtype)
    return cache.permute([order.index(axis) for axis in range(4)]) if order else cache
