"""Tune and compile attention for the batches that an engine will meet, at its start or before.

    dejavu-cache sweep dejavu_cache.engines.vllm.attention_suite --option heads=32 ...

tunes ahead of time, over batches of drawn lengths, what an engine with these limits tunes when it
starts.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any

import torch

from ...attention import NewTokens
from ...attention.api import UNTUNED, Plan
from ...attention.kernels.kernel_call import KernelCall
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
from ...errors import SettingsError
from ...settings import Mode, current_settings
from ...stores import MemoryStore, TieredStore
from ...stores.urls import default_store
from ...sweep.hosts import GRACE, LocalHost, SweepSpec, single_gpu
from ...sweep.runner import Sweep
from ...sweep.suite import Case, Suite
from ...system.notices import logger
from ...triton_internals.identity import dtype_name
from ...tuning.compile_ahead import compile_together
from ...tuning.tuner import progress_lines
from .planned_attention import (
    SHORTEST_CONTEXT,
    ExpectedBatch,
    LayerFeatures,
    LayerShape,
    ServingLimits,
    batches_to_expect,
    made_up_step,
    plan_layer,
    run_layer,
)

__all__ = ["suite", "tune_attention", "untuned_batches", "warm_up_attention"]


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


SUITE = __name__
"""Where the worker of a sweep finds `suite`."""

_done: set[Any] = set()


@cache
def _deadline() -> float:
    """Return when this process's layers are to be tuned, on the monotonic clock."""
    return time.monotonic() + current_settings().warmup_seconds


def warm_up_attention(shape: LayerShape, features: LayerFeatures, limits: ServingLimits) -> int:
    """Launch attention for the batches to expect, once per process for layers alike.

    Configs come from records and decision trees; `tune_attention` may make records first. The
    launches benchmark nothing, and put what has no record on the worklist.

    Args:
        shape: the layer's.
        features: the layer's.
        limits: the engine's.

    Returns:
        The number of batches.
    """
    key = shape, features.kind, limits
    if key in _done or not torch.cuda.is_available():
        return 0
    _done.add(key)
    device = torch.device("cuda", torch.cuda.current_device())
    tune_attention(shape, features, limits, device)
    start = time.perf_counter()
    expected = batches_to_expect(limits)
    launches = [partial(launch_batch, shape, features, batch, device) for batch in expected]
    compile_together(launches)
    for launch in launches:
        launch()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # vLLM measures what is left for its own cache
    logger.info(
        "attention is ready for %d kinds of batches in %.1f s",
        len(expected),
        time.perf_counter() - start,
    )
    return len(expected)


def launch_batch(
    shape: LayerShape, features: LayerFeatures, batch: ExpectedBatch, device: torch.device
) -> torch.Tensor:
    """Launch attention for a made-up batch, and return its output.

    It is launched with new tokens to write, though nowhere, and without: some layers share the
    cache of another one, and write nothing. New keys lie beside the queries, as an engine's do, or
    apart, as after a norm of the heads.
    """
    arguments = made_up_step(shape, features, batch, device)
    _, _, query, keys, _ = arguments
    out = torch.empty_like(query)
    heads = shape.num_heads, shape.num_kv_heads, shape.num_kv_heads
    beside = torch.zeros(len(query), sum(heads), *keys.shape[3:], dtype=query.dtype, device=device)
    _, new_keys, new_values = beside.split(heads, dim=1)
    slots = torch.full((len(query),), -1, dtype=torch.int64, device=device)
    apart = NewTokens(new_keys.contiguous(), new_values.contiguous(), slots)
    for new in (NewTokens(new_keys, new_values, slots), apart, None):
        run_layer(*arguments, out, new)
    return out


def tune_attention(
    shape: LayerShape, features: LayerFeatures, limits: ServingLimits, device: torch.device
) -> int:
    """Tune the batches to expect that have no record of this GPU, in a process of its own.

    `DEJAVU_CACHE_WARMUP_SECONDS` limits the time. A scenario that another process tunes, such as
    another rank, is left to it. Whatever goes wrong is a line in the log, and the engine starts.

    Args:
        shape: the layer's.
        features: the layer's.
        limits: the engine's.
        device: the layer's.

    Returns:
        The number of batches that have a record now and had none before.
    """
    try:
        return _tune(shape, features, limits, device)
    except Exception as error:
        logger.warning("attention was not tuned at this start: %s: %s", type(error).__name__, error)
        return 0


def _tune(
    shape: LayerShape, features: LayerFeatures, limits: ServingLimits, device: torch.device
) -> int:
    if not current_settings().warmup_seconds:
        return 0
    deadline, start = _deadline(), time.monotonic()
    due = untuned_batches(shape, features, limits, device) if start < deadline else []
    if not due:
        return 0
    spec = SweepSpec(
        suite=SUITE, options=suite_options(shape, features, limits, due), store=_lasting_store()
    )
    seconds = deadline - start
    logger.info("attention is tuned for %d kinds of batches, for %.0f s at most", len(due), seconds)
    torch.cuda.empty_cache()  # the other process shares the device's memory
    stopped = _sweep(spec, device, deadline)
    tuned = len(due) - len(untuned_batches(shape, features, limits, device))
    logger.info(
        "attention was tuned for %d of %d kinds of batches in %.0f s%s",
        tuned,
        len(due),
        time.monotonic() - start,
        f" ({stopped})" if stopped else "",
    )
    return tuned


def untuned_batches(
    shape: LayerShape, features: LayerFeatures, limits: ServingLimits, device: torch.device
) -> list[int]:
    """Return the numbers of the batches to expect whose launches would tune, if they might."""
    numbers = []
    for number, batch in enumerate(batches_to_expect(limits)):
        call = tuned_call(plan_layer(*made_up_step(shape, features, batch, device)))
        if call is not None and call.kernel.mode is Mode.TUNE:
            resolution = call.kernel.explain(
                *call.args, grid=call.grid, warmup=False, **call.kwargs
            )
            if not resolution.final:
                numbers.append(number)
    return numbers


def _lasting_store() -> str:
    """Return the URL of the store in which other processes can read what one has tuned.

    Raises:
        SettingsError: there is none.
    """
    store = default_store()
    tiers = store.tiers if isinstance(store, TieredStore) else (store,)
    if all(tier.read_only or isinstance(tier, MemoryStore) for tier in tiers):
        raise SettingsError(f"{store.url} keeps no records: name a folder or a server")
    return store.url


def _sweep(spec: SweepSpec, device: torch.device, deadline: float) -> str:
    """Run a sweep on a device until a time at most; return why it ended early, if it did.

    Raises:
        DejavuError: no worker can be started, or the store cannot be used.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    seconds = max(deadline - time.monotonic(), 0.0)
    gpu = {} if device.index is None else single_gpu(device.index)
    host = LocalHost(spec, gpu, patience=seconds + 3 * GRACE)
    # A worker ends its last config by itself; one that does not is stopped.
    watch = threading.Timer(seconds + GRACE, host.close)
    watch.daemon = True
    watch.start()
    try:
        cases = host.start()
        advance = progress_lines("attention", len(cases), "batches")

        def on_event(event: Mapping[str, Any]) -> None:
            if event["event"] == "outcome":
                advance()

        budget = max(deadline - time.monotonic(), 0.0)
        stopped = Sweep([host], cases, budget=budget, on_event=on_event).run().stopped
    finally:
        watch.cancel()
        host.close()
    if stopped == "interrupted":
        raise KeyboardInterrupt
    return stopped
