"""How a config is timed, and what its failures are called."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ..records import Failure

__all__ = ["cuda_graph", "failure_of", "is_out_of_memory", "method_name", "quantiles_of", "wall_clock"]


def method_name(do_bench: Any, use_cuda_graph: bool, interpreted: bool) -> str:
    """The benchmark method's name, which is part of a record's key: timings of two methods are never compared."""
    if use_cuda_graph:
        return "cudagraph-warm"
    if do_bench is not None:
        name = getattr(do_bench, "__qualname__", type(do_bench).__qualname__)
        return f"custom:{getattr(do_bench, '__module__', '')}.{name}"
    return "wall" if interpreted else "events-cold"


def wall_clock(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
    """Times a call by the host's clock: for the interpreter, where there is no device to ask.

    Returns:
        The quantiles, in milliseconds.
    """
    kernel_call()
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        kernel_call()
        taken.append((time.perf_counter() - start) * 1e3)
    taken.sort()
    return [taken[min(int(share * len(taken)), len(taken) - 1)] for share in quantiles]


def cuda_graph(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> Any:
    """Times a call by replaying a graph of it, which leaves the host's launches out; about 50 ms each.

    Returns:
        The quantiles, in milliseconds.
    """
    from triton.testing import do_bench_cudagraph

    return do_bench_cudagraph(kernel_call, rep=5, quantiles=quantiles)


def quantiles_of(timing: Any) -> tuple[float, float | None, float | None] | Failure:
    """Median, 20th and 80th percentile in milliseconds, from whatever a benchmark function returned."""
    values = [float(value) for value in (timing if isinstance(timing, (list, tuple)) else [timing])]
    if not values or any(math.isnan(value) or value < 0 or math.isinf(value) for value in values):
        return Failure(kind="invalid_timing", reason=f"the benchmark returned {timing!r}")
    return values[0], *(values[1:3] if len(values) >= 3 else (None, None))


def failure_of(error: BaseException) -> Failure | None:
    """What to record of an error that one config's benchmark raised; None if it is not the config's fault."""
    for kind, types in _failures().items():
        if isinstance(error, types):
            return Failure(kind=kind, reason=_short(error))
    if isinstance(error, RuntimeError) and "PassManager::run failed" in str(error):
        return Failure(kind="compile_error", reason=_short(error))
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device had no memory left: a matter of the moment, which no record should keep."""
    return type(error).__name__ == "OutOfMemoryError"


@cache
def _failures() -> dict[str, tuple[type[BaseException], ...]]:
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    return {"out_of_resources": (OutOfResources,), "ptxas_error": (PTXASError,), "compile_error": (CompilationError,)}


def _short(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__)[:2000]
