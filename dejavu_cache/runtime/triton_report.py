"""Report a choice the way Triton's own autotuner does."""

from __future__ import annotations

from typing import Any

from ..model.resolution import Resolution
from ..triton_internals.autotune_cache import launch_key
from ..triton_internals.triton_objects import find_jit_function
from ..triton_internals.upstream import knobs
from ..triton_internals.versions import autotuning_listener
from .config_cache import ConfigCache
from .request import Request

__all__ = ["report_to_triton"]


def report_to_triton(
    autotuner: Any, request: Request, resolution: Resolution, benchmarked: int
) -> None:
    """Fill `cache` and `configs_timings`, call Triton's listener, and print what it would print.

    Args:
        autotuner: the `CachedAutotuner` that launches.
        request: the launch's scenario.
        resolution: the config that it runs.
        benchmarked: the number of configs that were benchmarked for it.
    """
    key = launch_key(autotuner, request.args, request.kwargs)
    config = resolution.config
    if isinstance(autotuner.cache, ConfigCache):
        autotuner.cache.report(key, config)
    timings = getattr(request.autotuner, "configs_timings", {})
    if timings:
        autotuner.configs_timings = timings
    listener, function = autotuning_listener(), find_jit_function(autotuner)
    is_measured = resolution.final and not resolution.only
    if listener is not None and function is not None and is_measured:
        listener(
            fn=function,
            key=key,
            best_config=config,
            configs_timings=timings,
            duration=autotuner.bench_time if benchmarked else None,
            cache_hit=not benchmarked,
        )
    if knobs.autotuning.print and benchmarked:
        print(
            f"Triton autotuning for function {autotuner.base_fn.__name__},\nwith key as {key},\n"
            f"finished after {autotuner.bench_time:.2f}s,\n"
            f"best config selected: {config};"
        )
