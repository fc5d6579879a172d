"""A config that is fast because it is wrong never wins, and nobody measures it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.copying import DEFAULT, RIGHT, WRONG, decorate, explain, launch

from dejavu_cache import cached_autotune

CONFIGS = [DEFAULT, WRONG, RIGHT]
TIMES = (2.0, 0.1, 1.0)


def test_the_fastest_config_loses_if_its_results_are_wrong_and_is_not_measured_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for benchmarked in (3, 0):
        kernel = decorate(tmp_path, CONFIGS, *TIMES)
        assert launch(kernel)
        assert (kernel.best_config.kwargs, kernel.benchmarked) == (RIGHT.kwargs, benchmarked)
    assert "is fast but wrong, and is not used: out_ptr differs in " in caplog.text
    record = next(kernel.home.record_sets()).records[0]
    failures = [timing.failure.kind for timing in record.measurements if timing.failure]
    assert failures == ["wrong"]
    assert "wrong results: (LIMIT=4, STEP=3" in explain(kernel).wrong[0]


def test_without_the_check_the_wrong_config_wins(tmp_path: Path) -> None:
    kernel = decorate(tmp_path, CONFIGS, *TIMES, check=False)
    launch(kernel)
    assert not launch(kernel)
    assert kernel.best_config.kwargs == WRONG.kwargs


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
