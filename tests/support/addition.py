"""A kernel that adds one, to be decorated in many ways, and a benchmark of it."""

from collections.abc import Callable, Sequence
from typing import Any

import triton
import triton.language as tl

from dejavu_cache import cached_autotune
from support.kernels import launch
from support.records import first_record

CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32, 64)]


@triton.jit
def add_one(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


class Bench:
    """A benchmark that counts what it times, with a time for each call in turn."""

    def __init__(self, times: Sequence[float] = (3.0, 1.0, 2.0)) -> None:
        self.times = list(times)
        self.calls = 0

    def __call__(self, kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        kernel_call()
        self.calls += 1
        return [self.times[(self.calls - 1) % len(self.times)]] * 3


def equal_times(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
    """Launch, and find every config equally fast."""
    kernel_call()
    return [1.0] * 3


LAUNCHED: list[int] = []
"""Blocks of the launches of all `Spy` kernels."""

Fault = Callable[[int], Exception | None]


class Spy:
    """A kernel whose launches are noted, and raise what a function of the block returns."""

    def __init__(self, fault: Fault = lambda block: None, fn: Any = add_one) -> None:
        self.fn, self.arg_names, self.fault = fn, fn.arg_names, fault

    def run(self, *args: Any, **kwargs: Any) -> Any:
        LAUNCHED.append(kwargs["BLOCK"])
        if error := self.fault(kwargs["BLOCK"]):
            raise error
        return self.fn.run(*args, **kwargs)


def larger_is_faster(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
    """Launch a spied kernel, and return a time that is shorter for larger blocks."""
    kernel_call()
    return [100.0 / LAUNCHED[-1]] * 3


def spied(fault: Fault = lambda block: None, **options: Any) -> Any:
    """Return a spied kernel as a new process would decorate it; larger blocks are faster."""
    LAUNCHED.clear()
    options = {"do_bench": larger_is_faster, "check": False, **options}
    return cached_autotune(CONFIGS, ["n"], **options)(Spy(fault))


def tune_spied(fault: Fault = lambda block: None, **options: Any) -> Any:
    """Launch a spied kernel in a new process, and return the kernel."""
    kernel = spied(fault, **options)
    launch(kernel, 100)
    return kernel


def outcomes(store: Any) -> dict[Any, str]:
    """Return what the only record of a store says of each block: `timed`, or a failure."""
    _, record = first_record(store)
    return {
        each.config.params["BLOCK"]: each.failure.kind if each.failure else "timed"
        for each in record.measurements
    }


def make(bench: Bench | None = None, fn: Any = add_one, **options: Any) -> Any:
    """Decorate a kernel anew, as a fresh process would."""
    options = {"configs": CONFIGS, "key": ["n"], "do_bench": _by_name(bench or Bench()), **options}
    return cached_autotune(**options)(fn)


def _by_name(bench: Bench) -> Callable[[Callable[[], Any], Sequence[float]], list[float]]:
    """Make a benchmark a function of the module, so that all of them are one method."""

    def function(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        return bench(kernel_call, quantiles)

    function.__qualname__ = Bench.__qualname__
    return function
