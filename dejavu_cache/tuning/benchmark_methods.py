"""Benchmark methods: their names, which records have in their keys, and what they return."""

import functools
import hashlib
import inspect
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ..model.record import Failure
from ..triton_internals.identity import module_name, value_text


def benchmark_name(do_bench: Any) -> str:
    """Return a name that tells benchmark functions apart, the same in every process.

    A function of a module goes by its name. Any other one, of which there may be several of one
    name (a lambda, a closure, a partial), goes by its code and the plain values that it is bound
    to. A method or an object goes by its code alone: what it holds may change with its calls.

    Raises:
        TypeError: it is not written in Python.
        OSError: its source text is not available.
    """
    bound: list[Any] = []
    function = do_bench
    while isinstance(function, functools.partial):
        bound += [*function.args, *itertools.chain(*sorted(function.keywords.items()))]
        function = function.func
    if inspect.isfunction(function):
        bound += [cell.cell_contents for cell in function.__closure__ or ()]
        bound += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    else:
        function = getattr(function, "__func__", type(function).__call__)
    if not inspect.isfunction(function):
        raise TypeError(f"a {type(do_bench).__qualname__} has no code of Python's")
    name = f"{module_name(function)}.{function.__qualname__}"
    if function is do_bench and function.__qualname__.isidentifier():
        return name
    texts = [
        (None if isinstance(value, list) else value_text(value)) or type(value).__qualname__
        for value in bound  # of what may change, such as a list, only the type
    ]
    digest = hashlib.sha256("\0".join([inspect.getsource(function), *texts]).encode()).hexdigest()
    return f"{name} {digest[:16]}"


Method = Literal["events-cold", "events-warm", "cudagraph-cold", "cudagraph-warm"]
"""How a launch is timed on a device: see `DeviceTimer`."""


def wall_clock(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
    """Time a call by the host's clock, for the interpreter, which has no device.

    Returns:
        Of three calls, the middle, the shortest and the longest time, in milliseconds: median and
        quantiles, whichever are asked for.
    """
    kernel_call()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        kernel_call()
        times.append((time.perf_counter() - start) * 1e3)
    shortest, middle, longest = sorted(times)
    return [middle, shortest, longest]


Quantiles = tuple[float, float | None, float | None]
"""Median, 20th and 80th percentile in milliseconds."""


def quantiles_of(timing: Any) -> Quantiles | Failure:
    """Return a benchmark's return value as quantiles, or what is wrong with it."""
    try:
        values = list(map(float, timing if isinstance(timing, (list, tuple)) else [timing]))
    except (TypeError, ValueError):
        values = []
    if not values or min(values) < 0 or not all(map(math.isfinite, values)):
        return Failure(kind="invalid_timing", reason=f"the benchmark returned {timing!r}")
    return values[0], *(values[1:3] if len(values) >= 3 else (None, None))
