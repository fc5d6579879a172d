"""A config that is fast because it is wrong never wins, and nobody measures it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from dejavu_cache import CheckOptions, cached_autotune

WRONG = triton.Config({"BLOCK": 16, "LIMIT": 32})
CONFIGS = [
    triton.Config({"BLOCK": 16, "LIMIT": 1024}),
    WRONG,
    triton.Config({"BLOCK": 64, "LIMIT": 1024}),
]


@triton.jit
def total(x_ptr, out_ptr, n, BLOCK: tl.constexpr, LIMIT: tl.constexpr):
    """Sum n numbers; a config whose LIMIT is less than n leaves some out."""
    accumulator = 0.0
    for start in range(0, LIMIT, BLOCK):
        at = start + tl.arange(0, BLOCK)
        accumulator += tl.sum(tl.load(x_ptr + at, mask=at < n, other=0.0))
    tl.store(out_ptr, accumulator)


def fast_if_wrong(launched: list[Any]) -> Callable[..., list[float]]:
    """Return a benchmark function in which the wrong config is ten times as fast as the others."""

    def bench(kernel_call: Callable[[], Any], quantiles: Any) -> list[float]:
        kernel_call()
        launched.append(None)
        return [0.1 if len(launched) % 3 == 2 else 1.0] * 3

    return bench


def decorate(folder: Path, launched: list[Any], **options: Any) -> Any:
    return cached_autotune(
        CONFIGS, ["n"], store=folder, do_bench=fast_if_wrong(launched), **options
    )(total)


def launch(kernel: Any) -> tuple[torch.Tensor, torch.Tensor]:
    x, out = torch.rand(1000, generator=torch.Generator().manual_seed(0)), torch.zeros(1)
    kernel[(1,)](x, out, 1000)
    return out, x.sum()


def test_the_fastest_config_loses_if_its_results_are_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = decorate(tmp_path, [])
    actual, expected = launch(kernel)
    torch.testing.assert_close(actual[0], expected)
    assert kernel.best_config.kwargs["LIMIT"] == 1024
    assert "is fast but wrong, and is not used: out_ptr differs in 1 of 1 elements" in caplog.text


def test_what_is_wrong_is_recorded_and_not_measured_again(tmp_path: Path) -> None:
    launch(decorate(tmp_path, []))
    launched: list[Any] = []
    again = decorate(tmp_path, launched)
    actual, expected = launch(again)
    torch.testing.assert_close(actual[0], expected)
    assert launched == []
    record = next(again.home.record_sets()).records[0]
    failures = [timing.failure for timing in record.measurements if timing.failure]
    assert [failure.kind for failure in failures] == ["wrong"]
    x, out = torch.rand(1000), torch.zeros(1)
    assert "wrong results: (BLOCK=16, LIMIT=32" in again.explain(x, out, 1000).wrong[0]


def test_without_the_check_the_wrong_config_wins(tmp_path: Path) -> None:
    kernel = decorate(tmp_path, [], check=False)
    actual, expected = launch(kernel)
    assert kernel.best_config.kwargs["LIMIT"] == 32
    assert abs(actual[0] - expected) > 100


def test_a_declared_tolerance_may_allow_it(tmp_path: Path) -> None:
    kernel = decorate(tmp_path, [], check=CheckOptions(tolerance=10.0))
    launch(kernel)
    assert kernel.best_config.kwargs["LIMIT"] == 32


@triton.jit
def increment(x_ptr, n, BLOCK: tl.constexpr):
    """Add one to n numbers in place."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


CONFIGS_IN_PLACE = [triton.Config({"BLOCK": block}) for block in (16, 32)]


@pytest.mark.parametrize("fastest", [0, 1])
def test_a_kernel_that_works_in_place_ran_once_after_its_tune(fastest: int) -> None:
    """Whichever config wins: the default is not compared with itself."""
    times = [2.0, 2.0]
    times[fastest] = 1.0

    def bench(kernel_call: Callable[[], Any], quantiles: Any) -> list[float]:
        kernel_call()
        return [times.pop(0)] * 3

    kernel = cached_autotune(CONFIGS_IN_PLACE, ["n"], do_bench=bench)(increment)
    x = torch.zeros(100)
    kernel[lambda values: (triton.cdiv(100, values["BLOCK"]),)](x, 100)
    assert kernel.best_config is CONFIGS_IN_PLACE[fastest]
    assert torch.equal(x, torch.ones(100))


def test_a_tune_that_fails_leaves_what_a_kernel_works_on() -> None:
    def interrupted(kernel_call: Callable[[], Any], quantiles: Any) -> list[float]:
        kernel_call()
        raise KeyboardInterrupt

    kernel = cached_autotune(CONFIGS_IN_PLACE, ["n"], do_bench=interrupted)(increment)
    x = torch.zeros(100)
    with pytest.raises(KeyboardInterrupt):
        kernel[(7,)](x, 100)
    assert torch.equal(x, torch.zeros(100))
