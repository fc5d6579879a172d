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
    assert "wrong results: (BLOCK=16, LIMIT=32" in str(again.explain(x, out, 1000))


def test_without_the_check_the_wrong_config_wins(tmp_path: Path) -> None:
    kernel = decorate(tmp_path, [], check=False)
    actual, expected = launch(kernel)
    assert kernel.best_config.kwargs["LIMIT"] == 32
    assert abs(actual[0] - expected) > 100


def test_a_declared_tolerance_may_allow_it(tmp_path: Path) -> None:
    kernel = decorate(tmp_path, [], check=CheckOptions(tolerance=10.0))
    launch(kernel)
    assert kernel.best_config.kwargs["LIMIT"] == 32
