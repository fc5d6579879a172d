"""Benchmark methods, and what they return."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from ..model.record import Failure
from .benchmark_identity import benchmark_name
from .timed_calls import restores_arguments

__all__ = [
    "KERNEL_ALONE",
    "METHODS",
    "Method",
    "is_called_once",
    "method_name",
    "name_for",
    "quantiles_of",
    "wall_clock",
]

Method = Literal["events-cold", "events-warm", "cudagraph-cold", "cudagraph-warm"]
"""How a launch is timed on a device: see `DeviceTimer`."""

METHODS: tuple[str, ...] = get_args(Method)
"""All methods by which a launch can be timed on a device."""


KERNEL_ALONE = "-kernel"
"""Suffix of a method whose events leave out Triton's saving and restoring of arguments."""


def name_for(autotuner: Any, method: str) -> str:
    """Return a method's name in the keys of an autotuner's records.

    Where Triton restores arguments around a launch, its own timings contain that and ours do not.
    """
    leaves_out = method.startswith("events-") and restores_arguments(autotuner)
    return f"{method}{KERNEL_ALONE}" if leaves_out else method


def method_name(do_bench: Any, use_cuda_graph: bool, interpreted: bool) -> str:
    """Return the benchmark method's name.

    It is part of a record's key, so timings of two methods are never compared.

    Raises:
        TypeError: the benchmark function is bound to a value that has no encoding.
    """
    if use_cuda_graph:
        return "cudagraph-warm"
    if do_bench is not None:
        return f"custom:{benchmark_name(do_bench)}"
    return "wall" if interpreted else "events-cold"


def is_called_once(method: str) -> bool:
    """Return whether a method is a caller's own benchmark or a clock, called once per config.

    The device timer may measure a config again.
    """
    return method.startswith(("custom:", "wall"))


def wall_clock(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
    """Time a call by the host's clock, for the interpreter, which has no device.

    Returns:
        The quantiles, in milliseconds.
    """
    kernel_call()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        kernel_call()
        times.append((time.perf_counter() - start) * 1e3)
    times.sort()
    return [times[min(int(share * len(times)), len(times) - 1)] for share in quantiles]


def quantiles_of(timing: Any) -> tuple[float, float | None, float | None] | Failure:
    """Return median, 20th and 80th percentile in milliseconds from a benchmark's return value."""
    timings = timing if isinstance(timing, (list, tuple)) else [timing]
    try:
        values = [float(value) for value in timings]
    except (TypeError, ValueError):
        values = []
    if not values or any(value < 0 or not math.isfinite(value) for value in values):
        return Failure(kind="invalid_timing", reason=f"the benchmark returned {timing!r}")
    return values[0], *(values[1:3] if len(values) >= 3 else (None, None))
