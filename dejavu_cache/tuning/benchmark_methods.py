"""Benchmark methods, and the failures that a benchmark may record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, get_args

from ..model.record import Failure

__all__ = [
    "METHODS",
    "Method",
    "compile_failure_of",
    "failure_of",
    "is_out_of_memory",
    "method_name",
    "quantiles_of",
    "skip",
    "wall_clock",
]

Method = Literal["events-cold", "events-warm", "cudagraph-cold", "cudagraph-warm"]
"""How a launch is timed on a device: see `DeviceTimer`."""

METHODS: tuple[str, ...] = get_args(Method)
"""All methods by which a launch can be timed on a device."""


def method_name(do_bench: Any, use_cuda_graph: bool, interpreted: bool) -> str:
    """Return the benchmark method's name.

    It is part of a record's key, so timings of two methods are never compared.
    """
    if use_cuda_graph:
        return "cudagraph-warm"
    if do_bench is not None:
        name = getattr(do_bench, "__qualname__", type(do_bench).__qualname__)
        return f"custom:{getattr(do_bench, '__module__', '')}.{name}"
    return "wall" if interpreted else "events-cold"


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
    values = [float(value) for value in (timing if isinstance(timing, (list, tuple)) else [timing])]
    if not values or any(math.isnan(value) or value < 0 or math.isinf(value) for value in values):
        return Failure(kind="invalid_timing", reason=f"the benchmark returned {timing!r}")
    return values[0], *(values[1:3] if len(values) >= 3 else (None, None))


def failure_of(error: BaseException) -> Failure | None:
    """Return the failure to record for a benchmark's error, or None if it is not the config's."""
    for kind, types in _failures().items():
        if isinstance(error, types):
            return Failure(kind=kind, reason=_short(error))
    if isinstance(error, RuntimeError) and "PassManager::run failed" in str(error):
        return Failure(kind="compile_error", reason=_short(error))
    return None


def compile_failure_of(error: BaseException) -> Failure | None:
    """Return the failure to record for an error of a compilation, or None.

    Unlike a launch, a compilation also raises for options that the device does not have.
    """
    refused = isinstance(error, (ValueError, AssertionError)) or (
        isinstance(error, KeyError) and "unrecognised" in str(error)
    )
    return failure_of(error) or (
        Failure(kind="compile_error", reason=_short(error)) if refused else None
    )


def skip(error: BaseException) -> Failure:
    """Return the failure to record where the device's memory ran out."""
    return Failure(kind="skipped", reason=_short(error))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device had no memory left, which may be different the next time."""
    return type(error).__name__ == "OutOfMemoryError" or "CUDA]: out of memory" in str(error)


@cache
def _failures() -> dict[str, tuple[type[BaseException], ...]]:
    from ..triton_internals.upstream import CompilationError, OutOfResources, PTXASError

    return {
        "out_of_resources": (OutOfResources,),
        "ptxas_error": (PTXASError,),
        "compile_error": (CompilationError,),
    }


def _short(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__)[:2000]
