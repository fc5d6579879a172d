"""Benchmark methods: their names, which records have in their keys, and what they return."""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import time
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

from ..model.record import Failure
from ..triton_internals.identity import module_name, syntax_of, value_text
from .device_timer import restores_arguments

__all__ = [
    "KERNEL_ALONE",
    "METHODS",
    "Method",
    "benchmark_name",
    "is_called_once",
    "name_for",
    "quantiles_of",
    "wall_clock",
]


def benchmark_name(do_bench: Any) -> str:
    """Return a name that tells benchmark functions apart, the same in every process.

    A function of a module goes by its name. Anything else, of which there may be several of one
    name (a partial, a lambda, a closure, a bound method, an object), goes by its code and the
    values that it was bound to when it was first seen: it may count its calls.

    Raises:
        TypeError: it is bound to a value that has no encoding.
        OSError: its source text is not available.
    """
    function = do_bench if hasattr(do_bench, "__qualname__") else type(do_bench)
    name = f"{module_name(function)}.{function.__qualname__}"
    if inspect.isfunction(do_bench) and do_bench.__qualname__.isidentifier():
        return name
    owner = getattr(do_bench, "__self__", do_bench)
    try:
        seen = _seen.setdefault(owner, {})
    except TypeError:  # it has no hash, or nothing can refer to it weakly
        seen = {}
    if name not in seen:
        digest = hashlib.sha256("\0".join(_tokens(do_bench, ())).encode()).hexdigest()
        seen[name] = f"{name} {digest[:16]}"
    return seen[name]


_seen: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()


def _tokens(value: Any, outer: tuple[int, ...]) -> Iterator[str]:
    """Write a value by its own code and what it is bound to, but not the globals that it reads."""
    text = value_text(value)
    if text is not None:
        yield text
        return
    if id(value) in outer:
        yield f"outer {outer.index(id(value))}"
        return
    yield f"{type(value).__qualname__} {{"
    if inspect.isfunction(value):
        yield syntax_of(value)
    elif isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
        yield f"{getattr(value, '__module__', '')}.{value.__name__}"
    elif type(value).__module__ != "builtins" and callable(value) and not _binds(value):
        yield from _tokens(type(value).__call__, (*outer, id(value)))
    for part in _bound_values(value):
        yield from _tokens(part, (*outer, id(value)))
    yield "}"


def _binds(value: Any) -> bool:
    return isinstance(value, (functools.partial, types.MethodType))


def _bound_values(value: Any) -> list[Any]:
    if inspect.isfunction(value):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [*cells, value.__defaults__, value.__kwdefaults__]
    if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
        return []
    if isinstance(value, functools.partial):
        return [value.func, list(value.args), value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if type(value) in (tuple, list):
        return list(value)
    if type(value) is dict:
        return [part for item in value.items() for part in item]
    if type(value).__module__ != "builtins" and hasattr(value, "__dict__"):
        return [f"{module_name(type(value))}.{type(value).__qualname__}", dict(vars(value))]
    raise TypeError(f"it is bound to a {type(value).__qualname__}")


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
