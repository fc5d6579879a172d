"""Report a choice the way Triton's own autotuner does."""

from __future__ import annotations

from typing import Any

from ..model.resolution import Resolution
from ..triton_internals.upstream import knobs
from ..triton_internals.versions import autotuning_listener
from .request import Request

__all__ = ["report_to_triton"]


def report_to_triton(
    autotuner: Any, request: Request, resolution: Resolution, benchmarked: int
) -> None:
    """Fill `cache`, print the line of `TRITON_PRINT_AUTOTUNING`, and call Triton's listener.

    Args:
        autotuner: the `CachedAutotuner` that launches.
        request: the launch's scenario.
        resolution: the config that it runs.
        benchmarked: the number of configs that were benchmarked for it.
    """
    key = (*request.scenario.args.values(), *request.scenario.dtypes.values())
    autotuner.cache[key] = resolution.config
    if knobs.autotuning.print and benchmarked:
        print(
            f"Triton autotuning for function {autotuner.base_fn.__name__},\nwith key as {key},\n"
            f"finished after {autotuner.bench_time:.2f}s,\n"
            f"best config selected: {resolution.config};"
        )
    listener = autotuning_listener()
    if listener is not None:
        listener(
            fn=autotuner.base_fn,
            key=key,
            best_config=resolution.config,
            configs_timings=getattr(autotuner, "configs_timings", {}),
            duration=autotuner.bench_time if benchmarked else None,
            cache_hit=not benchmarked,
        )
