"""Paged attention of an engine's layers: views of its cache, one plan for layers alike, a warm-up.

`batches_to_expect` has one batch for each region in which kernels choose a config. They are
described by few numbers, and launched with tensors that are tiny in memory: all requests read the
same block of an empty cache.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from ... import attention
from ...attention.batch import Scales
from ...attention.schedule import FEW_SEQS
from ...runtime.service_phase import without_benchmarks
from ...system.background_threads import start_thread
from ...system.notices import logger
from ...triton_internals.compilation import load_binary
from ...tuning.compile_ahead import compile_together

CACHE_DTYPES = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
"""Dtypes of quantized caches, by vLLM's name; scales are one number per layer."""

HEAD_SIZES = range(8, 257, 8)
"""Sizes of heads that layers may have."""


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

    def plan(
        self, features: LayerFeatures, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> attention.Plan:
        """Return the plan of a layer, which layers alike share.

        Launches do not overlap: an engine has other kernels between its layers. Side by side in
        vLLM 0.22, overlapping changed the time of a decoding step by less than 0.2%.

        Args:
            features: the layer's.
            query: [num_tokens, num_heads, head_size].
            keys: of the layer's cache, from `split_cache`.
            values: likewise.
        """
        key = features.key, query.shape, query.stride(), keys.shape, keys.stride()
        plan = self.plans.get(key)
        if plan is None:
            plan = attention.plan(
                query,
                keys,
                values,
                **self.lengths(keys.shape[1]),
                softmax_scale=features.scale,
                window_size=features.window,
                softcap=features.softcap,
                alibi_slopes=features.alibi_slopes,
                sinks=features.sinks,
                k_scale=features.k_scale,
                v_scale=features.v_scale,
                overlap=False,
            )
            if not self.is_for_capture or torch.cuda.is_current_stream_capturing():
                self.plans[key] = plan
        return plan


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
    """Return a batch as a step and a layer's arguments; all requests read one empty block."""
    tokens, page = sum(batch.new), shape.page
    keys, values = split_cache(_empty_block(shape, device), shape.head_size)
    if shape.cache_dtype != shape.dtype:
        scale = torch.ones((), dtype=torch.float32, device=device)
        features = features._replace(k_scale=scale, v_scale=scale)
    for name in ("alibi_slopes", "sinks"):
        if (tensor := getattr(features, name)) is not None:
            features = features._replace(**{name: tensor.to(device)})
    step = StepInputs(
        tokens,
        max(batch.new),
        batch.context,
        torch.tensor([0, *accumulate(batch.new)], dtype=torch.int32, device=device),
        torch.full((len(batch.new),), max(batch.new), dtype=torch.int32, device=device),
        torch.zeros(len(batch.new), -(-batch.context // page), dtype=torch.int32, device=device),
    )
    query = torch.zeros(tokens, shape.num_heads, shape.head_size, dtype=shape.dtype, device=device)
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


class _WarmUp:
    """Warm-up for layers alike, whose imports, look-ups and compilation a thread begins with."""

    def __init__(self, shape: LayerShape, features: LayerFeatures, limits: ServingLimits) -> None:
        """Begin."""
        self._expected = self._needed = batches_to_expect(limits)
        self._launch = partial(launch_batch, shape, features)
        compile_all = partial(self._compile, torch.cuda.current_device())
        self._thread = start_thread(compile_all, "dejavu-cache warm-up")

    def _compile(self, device: int) -> None:
        """Compile for batches of meta tensors, and keep one of those that need the same kernels."""
        needed = []
        with torch.cuda.device(device):
            with compile_together() as begun:
                if begun is None:
                    return
                for batch in self._expected:
                    before = len(begun)
                    with suppress(Exception):  # raised again by the launches that follow
                        self._launch(batch, torch.device("meta"))
                        if len(begun) == before:
                            continue
                    needed.append(batch)
            for _, compiled in begun.values():
                with suppress(Exception):
                    load_binary(compiled)
        self._needed = needed

    def finish(self) -> None:
        """Launch what is needed; a second call does nothing."""
        start = time.perf_counter()
        if self._thread is not None:
            self._thread.join()
        needed, self._needed = self._needed, []
        for batch in needed:
            self._launch(batch, torch.device("cuda", torch.cuda.current_device()))
        if needed:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # vLLM measures what is left for its own cache
            kinds, taken = len(self._expected), time.perf_counter() - start
            logger.info("attention is ready for %d kinds of batches in %.1f s", kinds, taken)


_warm_ups: dict[tuple[Any, ...], _WarmUp] = {}

os.register_at_fork(after_in_child=_warm_ups.clear)  # threads of the parent compile


def begin_warm_up(shape: LayerShape, features: LayerFeatures, limits: ServingLimits) -> _WarmUp:
    """Begin a warm-up in a thread, once per process for layers alike.

    Of batches that need the same kernels, one is launched when it is finished. Configs come from
    records. The launches benchmark nothing, and put what has no record on the worklist.
    """
    key = shape, features.kind, limits
    if key not in _warm_ups:
        _warm_ups[key] = _WarmUp(shape, features, limits)
    return _warm_ups[key]


def launch_batch(
    shape: LayerShape, features: LayerFeatures, batch: ExpectedBatch, device: torch.device
) -> torch.Tensor:
    """Launch attention for a made-up batch, and return its output.

    It is launched with new tokens to write, though nowhere, and without: some layers share the
    cache of another one, and write nothing. New keys lie beside the queries, as an engine's do, or
    apart, as after a norm of the heads.
    """
    step, features, query, keys, values = made_up_step(shape, features, batch, device)
    out = torch.empty_like(query)
    heads = shape.num_heads, shape.num_kv_heads, shape.num_kv_heads
    beside = torch.zeros(len(query), sum(heads), *keys.shape[3:], dtype=query.dtype, device=device)
    _, new_keys, new_values = beside.split(heads, dim=1)
    slots = torch.full((len(query),), -1, dtype=torch.int64, device=device)
    apart = attention.NewTokens(new_keys.contiguous(), new_values.contiguous(), slots)
    with without_benchmarks():
        plan = step.plan(features, query, keys, values)
        for new in (attention.NewTokens(new_keys, new_values, slots), apart):
            if plan.writes(new):
                plan.run(query, keys, values, out, new, features.scales)
        return plan.run(query, keys, values, out, None, features.scales)
