"""Configs that fail in a tune are recorded, and not tried again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support.addition import CONFIGS, Bench, make
from support.kernels import launch

from dejavu_cache import (
    NoValidConfigError,
)


class TestFailures:
    def out_of_resources(self, kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> float:
        from triton.runtime.errors import OutOfResources

        self.calls = getattr(self, "calls", 0) + 1
        if self.calls < 3:
            raise OutOfResources(300000, 232448, "shared memory")
        return 1.0

    def test_a_failed_config_is_recorded_and_not_tried_again(self) -> None:
        kernel = make(do_bench=self.out_of_resources)
        launch(kernel, 100)
        assert kernel.best_config is CONFIGS[2]
        launch(make(do_bench=self.out_of_resources), 100)
        assert self.calls == 3

    def test_if_all_fail_each_reason_is_listed(self) -> None:
        kernel = make(Bench([float("nan")]))
        with pytest.raises(NoValidConfigError) as caught:
            launch(kernel, 100)
        assert str(caught.value).count("invalid_timing: the benchmark returned [nan") == 3
        with pytest.raises(NoValidConfigError):
            launch(kernel, 100)

    @pytest.mark.parametrize("returned", [None, "fast", [], object()])
    def test_what_is_no_time_is_a_failure_and_not_measured_again(self, returned: Any) -> None:
        def bench(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> Any:
            kernel_call()
            return returned

        with pytest.raises(NoValidConfigError, match="invalid_timing: the benchmark returned"):
            launch(make(do_bench=bench), 100)

    def test_recorded_failures_of_all_configs_stop_no_later_process(self) -> None:
        with pytest.raises(NoValidConfigError):
            launch(make(Bench([float("nan")])), 100)
        for calls in (3, 0):
            again = Bench()
            kernel = make(again)
            launch(kernel, 100)
            assert again.calls == calls, "they are tried once more, since nothing else is left"
            assert kernel.benchmarked == calls

    def test_a_launch_in_which_all_configs_failed_is_tried_again_by_the_same_process(self) -> None:
        """A disk that was full, or a tool that was missing, may be there by the next launch."""
        bench = Bench([float("nan")])
        kernel = make(bench)
        with pytest.raises(NoValidConfigError):
            launch(kernel, 100)
        bench.times = [3.0, 1.0, 2.0]
        launch(kernel, 100)
        assert kernel.benchmarked == 3

    def test_running_out_of_memory_is_not_the_configs_fault(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench = Bench()

        def hungry(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
            if bench.calls < 2:  # also when it is measured again
                bench.calls += 1
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            return bench(kernel_call, quantiles)

        hungry.__module__, hungry.__qualname__ = Bench.__module__, Bench.__qualname__
        launch(make(do_bench=hungry), 100)
        assert "skipped for now: CUDA out of memory" in caplog.text
        assert bench.calls == 4, "the config is measured again once, and the other two are timed"
        again = Bench()
        launch(make(again), 100)
        assert again.calls == 1, "the skipped config is tried again"

    def test_the_callers_mistake_is_the_callers_to_see(self) -> None:
        def broken(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> float:
            raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            launch(make(do_bench=broken), 100)


def test_a_hook_may_launch_the_scenario_that_is_being_tuned() -> None:
    """Let the launch inside the tune take a fallback, since it would wait for itself."""
    inner: list[Any] = []

    def launch_again(arguments: dict[str, Any], reset_only: bool = False) -> None:
        if not inner:
            inner.append(None)
            launch(kernel, 100)

    kernel = make(pre_hook=launch_again)
    launch(kernel, 100)
    assert kernel.best_config is CONFIGS[1]
