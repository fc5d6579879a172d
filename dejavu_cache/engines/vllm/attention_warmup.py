"""Tune and compile a layer's attention kernels for the batches that an engine will meet."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import torch

from ...attention import NewTokens
from ...errors import SettingsError
from ...settings import Mode, current_settings
from ...stores import MemoryStore, TieredStore
from ...stores.urls import default_store
from ...sweep.hosts import GRACE, LocalHost, SweepSpec, single_gpu
from ...sweep.runner import Sweep
from ...system.notices import logger
from ...tuning.compile_ahead import compile_together
from ...tuning.tuner import progress
from .attention_suite import (
    ExpectedBatch,
    LayerShape,
    ServingLimits,
    batches_to_expect,
    made_up_step,
    suite_options,
    tuned_call,
)
from .planned_attention import LayerFeatures, plan_layer, run_layer

__all__ = ["launch_batch", "tune_attention", "untuned_batches", "warm_up_attention"]

SUITE = "dejavu_cache.engines.vllm.attention_suite"

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
        shown = current_settings().progress
        with progress("attention", len(cases), unit="batches", wanted=shown) as advance:

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
