"""Sweep suite of the batches that an engine may meet, with drawn lengths.

    dejavu-cache sweep dejavu_cache.engines.vllm.attention_suite --option heads=32 ...

tunes ahead of time what an engine with these limits tunes when it starts.

Batches that an engine may meet: one for each region in which kernels choose a config.

They are described by few numbers, and launched with tensors that are tiny in memory: all requests
read the same block of an empty cache.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...attention.api import UNTUNED, Plan
from ...attention.kernels.kernel_call import KernelCall
from ...attention.schedule import FEW_SEQS
from ...attention.sweep_suite import (
    LAUNCHES,
    MOST_TOKENS,
    Lengths,
    Model,
    Shape,
    case_of,
    for_scenario,
    scenario_arguments,
)
from ...sweep.suite import Case, Suite
from ...triton_internals.identity import dtype_name
from .planned_attention import LayerFeatures, StepInputs, plan_layer, split_cache

__all__ = [
    "SHORTEST_CONTEXT",
    "ExpectedBatch",
    "LayerShape",
    "ServingLimits",
    "batches_to_expect",
    "draw_lengths",
    "drawn_batches",
    "made_up_step",
    "suite",
    "suite_options",
    "tuned_call",
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


def tuned_call(plan: Plan) -> KernelCall | None:
    """Return a planned layer's launch, or None where its kernel is not tuned."""
    return None if plan.implementation in UNTUNED else LAUNCHES[plan.implementation](plan.batch)


CASES = 3
"""Batches over which a scenario is tuned."""

ATTEMPTS = 60
"""Batches that are drawn to find these; some scenarios are a small part of what may be drawn."""


def draw_lengths(
    batch: ExpectedBatch, limits: ServingLimits, most_tokens: int, seed: int
) -> Lengths | None:
    """Draw lengths of a batch's kind as traffic has them, or None if they would not fit.

    Contexts are lognormal. Decoding with the engine's longest context is what captured graphs are
    launched for, whatever the requests have: some seeds draw shorter ones there.

    Args:
        batch: the kind of batch.
        limits: the engine's.
        most_tokens: the most tokens in the cache.
        seed: equal seeds draw equal lengths.
    """
    pick = random.Random(f"{batch} {seed}")
    new = _draw_new_tokens(batch, limits, pick) if seed % 2 == 0 else list(batch.new)
    prompts = {index for index, tokens in enumerate(new) if tokens > limits.decoded_at_once}
    longest, bound = round(batch.context * 2 ** pick.uniform(-1.0, 1.0)), 0
    if not prompts and batch.context == limits.max_context:
        longest, bound = batch.context >> 2 * (seed % CASES), batch.context
    longest = max(min(longest, limits.max_context), *new)
    past = [0] * len(new)
    first = 0
    if len(prompts) < len(new) or batch.context > max(*batch.new, SHORTEST_CONTEXT):
        for index, tokens in enumerate(new):
            if index not in prompts or len(new) == 1:  # a prompt among decoding requests is new
                past[index] = max(round(longest * _draw_share(pick)) - tokens, 0)
        first = pick.randrange(max(len(new) - len(prompts), 1))
        past[first] = longest - new[first]
    room = most_tokens - sum(new) - past[first]
    if room < 0:
        return None
    share = min(room / max(sum(past) - past[first], 1), 1.0)
    past = [tokens if index == first else int(tokens * share) for index, tokens in enumerate(past)]
    longest = max(map(sum, zip(new, past, strict=True)))
    name = f"{len(new)} requests, {sum(new)} new and {sum(past)} earlier tokens, longest {longest}"
    return Lengths(f"{name} of {bound}" if bound else name, new, past, bound)


def _draw_new_tokens(batch: ExpectedBatch, limits: ServingLimits, pick: random.Random) -> list[int]:
    """Draw the number of requests that decode, or the lengths of prompts."""
    new = list(batch.new)
    prompts = [index for index, tokens in enumerate(new) if tokens > limits.decoded_at_once]
    if not prompts:
        most = min(2 * len(new) - 1, limits.max_requests, limits.max_tokens // new[0])
        return [new[0]] * pick.randint(len(new), max(most, len(new)))
    for index in prompts:
        new[index] = min(round(new[index] * 2 ** pick.uniform(-0.5, 1.0)), limits.max_context)
    prompted = sum(new[index] for index in prompts)
    share = min((limits.max_tokens - sum(new) + prompted) / prompted, 1.0)
    for index in prompts:
        new[index] = max(int(new[index] * share), 1)
    return new


def _draw_share(pick: random.Random) -> float:
    """Draw a request's context as a share of the longest one."""
    return min(pick.lognormvariate(-1.0, 0.8), 1.0)


def cases(
    heads: str = "32",
    kv_heads: str = "8",
    head_size: str = "128",
    page: str = "16",
    dtype: str = "bfloat16",
    cache: str = "",
    window: str = "-1",
    softcap: str = "0",
    alibi: str = "",
    sinks: str = "",
    requests: str = "256",
    tokens: str = "8192",
    context: str = "32768",
    decoded: str = "1",
    order: str = "",
    only: str = "",
) -> Iterator[Case]:
    """Yield the cases of an engine's batches, those of the most frequent kinds first.

    Each scenario has several, of drawn lengths. Scenarios that do not fit into the free memory have
    none.

    Args:
        heads: query heads of a layer on one GPU.
        kv_heads: KV heads.
        head_size: elements of a head.
        page: tokens in a block of the cache.
        dtype: of the queries.
        cache: dtype of the cache; empty for that of the queries.
        window: earlier keys that a query sees; -1 for all.
        softcap: of the scores; 0 for none.
        alibi: dtype of the ALiBi slopes; empty for none.
        sinks: dtype of the sinks; empty for none.
        requests: requests at a time.
        tokens: new tokens of a step.
        context: tokens of a request.
        decoded: new tokens of a decoding request, with those that were drafted.
        order: `cache_order` of a `LayerShape`, separated by commas.
        only: numbers of the batches to expect, separated by commas; empty for all.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def per_head(name: str) -> torch.Tensor | None:
        return torch.ones(int(heads), dtype=getattr(torch, name), device=device) if name else None

    q_dtype, cache = getattr(torch, dtype), cache or dtype
    axes = tuple(map(int, order.split(","))) if order else ()
    shape = LayerShape(
        int(heads), int(kv_heads), int(head_size), int(page), q_dtype, getattr(torch, cache), axes
    )
    sides = (-1, -1) if window == "-1" else (int(window), 0)
    features = LayerFeatures(
        shape.head_size**-0.5, sides, float(softcap), per_head(alibi), per_head(sinks)
    )
    limits = ServingLimits(int(requests), int(tokens), int(context), int(decoded))
    model = Model(
        shape.num_heads, shape.num_kv_heads, shape.head_size, int(window), sinks, alibi,
        float(softcap), cache if cache != dtype else "", cache != dtype,
    )  # fmt: skip
    form = (model, shape.page, q_dtype, 1)
    expected = batches_to_expect(limits)
    seen = set()
    for number in map(int, only.split(",")) if only else range(len(expected)):
        plan = plan_layer(*made_up_step(shape, features, expected[number], device))
        call = tuned_call(plan)
        if call is None:
            continue
        request = call.kernel.request(*call.args, grid=call.grid, warmup=False, **call.kwargs)
        scenario = plan.implementation, request.scenario
        if request.has_no_choice or scenario in seen:
            continue
        seen.add(scenario)
        wanted = request.scenario.args
        for lengths in drawn_batches(plan.implementation, wanted, expected[number], limits, form):
            yield case_of(plan.implementation, lengths, form)


def drawn_batches(
    implementation: str,
    wanted: Mapping[str, Any],
    batch: ExpectedBatch,
    limits: ServingLimits,
    form: Shape,
) -> list[Lengths]:
    """Draw batches of a kind that have the wanted key arguments, as many as a scenario has."""
    most_tokens = _most_tokens(form)
    by_name: dict[str, Lengths] = {}
    for seed in range(ATTEMPTS):
        lengths = draw_lengths(batch, limits, most_tokens, seed)
        if lengths is not None and wanted == scenario_arguments(
            implementation, lengths, form, wanted
        ):
            by_name[lengths.name] = lengths
        if len(by_name) == CASES:
            break
    return list(by_name.values())


def _most_tokens(form: Shape) -> int:
    """Return how many tokens the cache of a batch may have in the memory that is free.

    An eighth of it is more than one layer's share of an engine's cache.
    """
    model, _, dtype, _ = form
    if not torch.cuda.is_available():
        return MOST_TOKENS
    token: int = 2 * model.kv_heads * model.head_size * dtype.itemsize
    return min(MOST_TOKENS, int(torch.cuda.mem_get_info()[0]) // 8 // token)


def suite_options(
    shape: LayerShape, features: LayerFeatures, limits: ServingLimits, only: list[int]
) -> dict[str, str]:
    """Return the options with which `cases` yields the cases of some batches to expect."""

    def name(dtype: torch.dtype | None) -> str:
        return "" if dtype is None else dtype_name(dtype)

    def dtype_of(values: Any) -> torch.dtype | None:
        return None if values is None else values.dtype

    options = {
        "heads": shape.num_heads,
        "kv_heads": shape.num_kv_heads,
        "head_size": shape.head_size,
        "page": shape.page,
        "dtype": name(shape.dtype),
        "cache": name(shape.cache_dtype),
        "window": features.window[0],
        "softcap": features.softcap,
        "alibi": name(dtype_of(features.alibi_slopes)),
        "sinks": name(dtype_of(features.sinks)),
        "requests": limits.max_requests,
        "tokens": limits.max_tokens,
        "context": limits.max_context,
        "decoded": limits.decoded_at_once,
        "order": ",".join(map(str, shape.cache_order)),
        "only": ",".join(map(str, only)),
    }
    return {option: str(value) for option, value in options.items()}


suite = Suite(
    cases=cases,
    for_scenario=for_scenario,
    why_empty="hopper and few_sequences, which have one config for each kind of work, take these "
    "batches here, or the free memory holds none of them",
)
