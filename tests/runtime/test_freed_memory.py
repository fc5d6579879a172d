"""What a launch passed, and the copies that a tune made of it, are freed however the tune ends."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from dejavu_cache import cached_autotune

SIZE = 1 << 14
CONFIGS = [triton.Config({"B": block}) for block in (1024, 4096, 16384)]


def add_one(x, o, n, B: tl.constexpr, OFF: tl.constexpr = 0):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + at, tl.load(x + at, mask=at < n) + 1 + OFF, mask=at < n)


def count_nothing(x, o, n, B: tl.constexpr):
    pass


def behind_a_pointer(x, o, n, B: tl.constexpr):
    tl.store(tl.load(x).to(tl.pointer_type(tl.int32)), 1)


class Fail:
    """A benchmark that raises an error in one of its calls, and else makes the last one fastest."""

    def __init__(self, error: type[BaseException] | None = None, call: int = 2) -> None:
        self.error = error
        self.failing = call
        self.calls = 0

    def __call__(self, kernel_call: Callable[[], Any], quantiles: Any = None) -> list[float]:
        self.calls += 1
        if self.error is not None and self.calls == self.failing:
            raise self.error("CUDA error: an illegal memory access was encountered")
        kernel_call()
        return [1.0 / self.calls] * 3


def fail_to_launch(arguments: Any) -> None:
    raise LookupError("by a hook")


def run_out(arguments: Any) -> None:
    raise torch.OutOfMemoryError("no memory is left")


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a winner": (add_one, {}),
    "an error": (add_one, {"do_bench": Fail(ValueError)}),
    "an error at the first config": (add_one, {"do_bench": Fail(ValueError, 1)}),
    "Ctrl-C": (add_one, {"do_bench": Fail(KeyboardInterrupt)}),
    "no memory": (add_one, {"do_bench": Fail(torch.OutOfMemoryError)}),
    "no memory for the default": (
        add_one,
        {"configs": [triton.Config({"B": 1024}, pre_hook=run_out), *CONFIGS[1:]]},
    ),
    "a hook that fails": (
        add_one,
        {"configs": [*CONFIGS, triton.Config({"B": 64}, pre_hook=fail_to_launch)]},
    ),
    "a wrong config": (add_one, {"configs": [*CONFIGS, triton.Config({"B": 1024, "OFF": 1})]}),
    "a lost device": (add_one, {"do_bench": Fail(RuntimeError)}),
    "an ended budget": (add_one, {"tune_seconds": 1e-6}),
    "no work": (count_nothing, {}),
    "nothing to compare": (behind_a_pointer, {}),
    "no comparison": (add_one, {"check": False}),
    "a fallback": (add_one, {"mode": "reuse"}),
    "a refusal": (add_one, {"mode": "strict"}),
}


@contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def large_tensors() -> int:
    """Return how many tensors of the launch's size are alive, its arguments or copies of them."""
    alive = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor]
    return sum(tensor.numel() == SIZE for tensor in alive)


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_kept(way: str, tmp_path: Path) -> None:
    function, options = WAYS[way]
    options = {"configs": CONFIGS, "do_bench": Fail(), **options}
    kernel = cached_autotune(key=["n"], store=tmp_path, **options)(triton.jit(function))
    target = torch.zeros(1, dtype=torch.int32)
    with no_collector():
        before = large_tensors()
        x = torch.ones(SIZE, dtype=torch.int64 if function is behind_a_pointer else None)
        if function is behind_a_pointer:
            x.fill_(target.data_ptr())
        o = torch.zeros(SIZE)
        with suppress(BaseException):
            kernel[lambda meta: (triton.cdiv(SIZE, meta["B"]),)](x, o, SIZE)
        del x, o
        assert large_tensors() == before
        assert kernel.nargs is None


def test_an_error_that_a_program_keeps_holds_no_copies(tmp_path: Path) -> None:
    kernel = cached_autotune(CONFIGS, ["n"], store=tmp_path, do_bench=Fail(KeyboardInterrupt))(
        triton.jit(add_one)
    )
    with no_collector():
        before = large_tensors()
        x, o = torch.ones(SIZE), torch.zeros(SIZE)
        with pytest.raises(KeyboardInterrupt) as kept:
            kernel[(16,)](x, o, SIZE)
        assert large_tensors() == before + 2
        assert kept.value is not None
