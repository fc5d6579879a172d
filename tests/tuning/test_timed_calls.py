"""Which part of a benchmarked call counts: what Triton does to the arguments does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from dejavu_cache import cached_autotune
from dejavu_cache.tuning.device_timer import keep_restoring_out


@triton.jit
def add_in_place(x_ptr, total_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at) + 1.0)
    tl.atomic_add(total_ptr, 1.0)


class Watched:
    """A decorated kernel, of whose benchmarked call the state is noted where its time counts."""

    def __init__(self, **options: Any) -> None:
        self.x, self.total = torch.zeros(16), torch.full((1,), 7.0)
        self.seen: list[tuple[str, float, float]] = []
        config = triton.Config({"BLOCK": 16}, pre_hook=lambda values: self.note("config's hook"))
        self.kernel = triton.autotune([config], key=[], **options)(add_in_place)
        self.kernel.nargs = {"x_ptr": self.x, "total_ptr": self.total}

    def note(self, what: str) -> None:
        self.seen.append((what, self.x[0].item(), self.total.item()))

    def bench(self) -> list[tuple[str, float, float]]:
        """Benchmark once; return what was noted, with x and the total at that moment."""
        config = self.kernel.configs[0]
        arguments = {**self.kernel.nargs, **config.all_kwargs()}

        def do_bench(call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
            with keep_restoring_out(self.kernel, call, arguments) as timed:
                timed(lambda: self.note("begin"), lambda: self.note("end"))
            return [1.0] * 3

        self.kernel.do_bench = do_bench
        self.kernel._bench(self.x, self.total, grid=(1,), warmup=False, config=config)
        return self.seen


def test_what_triton_saves_zeroes_and_restores_is_outside() -> None:
    watched = Watched(restore_value=["x_ptr"], reset_to_zero=["total_ptr"])
    assert watched.bench() == [("begin", 0, 0), ("config's hook", 0, 0), ("end", 1, 1)]
    assert watched.x.eq(0).all()


def test_an_authors_hooks_are_inside_and_run_once() -> None:
    def pre_hook(values: Mapping[str, Any], reset_only: bool = False) -> None:
        watched.note("before")

    def post_hook(values: Mapping[str, Any], exception: Exception | None) -> None:
        watched.note("after")

    watched = Watched(pre_hook=pre_hook, post_hook=post_hook, restore_value=["x_ptr"])
    assert [what for what, *_ in watched.bench()] == [
        *("begin", "config's hook", "before", "after", "end")
    ]


def test_one_hook_of_the_author_leaves_the_other_to_triton() -> None:
    """As Triton itself does: it zeroes, and calls the author's function afterwards."""

    def post_hook(values: Mapping[str, Any], exception: Exception | None) -> None:
        watched.note("after")

    watched = Watched(post_hook=post_hook, reset_to_zero=["total_ptr"])
    assert watched.bench() == [
        *(("begin", 0, 0), ("config's hook", 0, 0), ("after", 1, 1), ("end", 1, 1))
    ]


def test_hooks_are_as_before_afterwards_even_if_the_launch_fails() -> None:
    watched = Watched(restore_value=["x_ptr"])
    hooks = watched.kernel.pre_hook, watched.kernel.post_hook
    watched.bench()
    assert (watched.kernel.pre_hook, watched.kernel.post_hook) == hooks
    watched.kernel.fn = None
    with pytest.raises(AttributeError):
        watched.bench()
    assert watched.x.eq(0).all()
    assert (watched.kernel.pre_hook, watched.kernel.post_hook) == hooks


def test_timings_with_and_without_restoring_are_never_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records of a kernel whose arguments are restored have a key of their own."""
    monkeypatch.setattr("dejavu_cache.runtime.autotuner.is_interpreting", lambda: False)
    config = triton.Config({"BLOCK": 16})

    def method(**options: Any) -> str:
        kernel = cached_autotune([config], key=[], **options)(add_in_place)
        return str(kernel.declaration.problem.method)

    assert method() == "events-cold"
    assert method(restore_value=["x_ptr"]) == "events-cold-kernel"
    assert method(reset_to_zero=["total_ptr"], method="events-warm") == "events-warm-kernel"
    assert method(restore_value=["x_ptr"], method="cudagraph-warm") == "cudagraph-warm"
    assert method(pre_hook=print, reset_to_zero=["total_ptr"]) == "events-cold"
