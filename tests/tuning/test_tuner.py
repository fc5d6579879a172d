"""How configs are measured: what is measured again, in which order, within which budget."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from threading import Event
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import triton
import triton.language as tl
from support.addition import CONFIGS, LAUNCHED, Spy, add_one
from support.kernels import launch
from support.records import first_record

from dejavu_cache import cached_autotune, config_space
from dejavu_cache.errors import SettingsError
from dejavu_cache.stores.tiered import default_store
from dejavu_cache.triton_internals.config_names import DeclaredConfigs
from dejavu_cache.tuning.compile_ahead import compile_ahead
from dejavu_cache.tuning.device_timer import DeviceTimer, Effort, Sample, TimedLaunch
from dejavu_cache.tuning.tuner import CandidateLaunch, ConfigLaunch


class Clock:
    """A benchmark with a time for each config, which lists the configs that it was asked for."""

    def __init__(self, times: dict[int, float], dies_at: int = 0) -> None:
        self.times = times
        self.asked: list[int] = []
        self.dies_at = dies_at

    def kernel(self, **options: Any) -> Any:
        return cached_autotune(**{"key": ["n"], "do_bench": self, **options})(Spy())

    def __call__(self, kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        if len(self.asked) + 1 == self.dies_at:
            raise KeyboardInterrupt
        kernel_call()
        self.asked.append(LAUNCHED[-1])
        return [self.times.get(LAUNCHED[-1], 9.0)] * 3


class ClockTimer(DeviceTimer):
    def __init__(self, clock: Clock) -> None:
        super().__init__("events-cold")
        self._clock = clock

    def warm_up(self) -> None: ...

    def sample(self, launch: TimedLaunch, effort: Effort, limit: float = 0.0) -> Sample:
        return Sample(self._clock(launch, ()), True)


def racing(clock: Clock) -> Any:
    kernel = clock.kernel(do_bench=None, configs=CONFIGS)
    kernel.do_bench = ClockTimer(clock)
    return kernel


def test_the_first_measurement_of_a_close_race_does_not_decide() -> None:
    """Measure the first config once too slow, as on a cold clock; the repeats put that right."""

    class ColdClock(Clock):
        def __call__(self, *args: Any) -> list[float]:
            timing = super().__call__(*args)
            self.times[16] = 1.0
            return timing

    clock = ColdClock({16: 1.05, 32: 1.02, 64: 5.0})
    kernel = racing(clock)
    launch(kernel, 100)
    assert kernel.best_config.kwargs == {"BLOCK": 16}
    assert Counter(clock.asked) == {16: 6, 32: 6, 64: 1}, "two are close, and race five rounds"
    assert kernel.benchmarked == 3


def test_measurements_take_all_that_a_tune_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    where = "dejavu_cache.tuning.tuner.compile_ahead"
    monkeypatch.setattr(where, lambda *given: Event().wait(0.3) or compile_ahead(*given))
    launch(racing(Clock({})), 100)
    assert sum(entry.seconds for entry in first_record(default_store())[1].measurements) > 0.3


def test_the_race_of_a_process_that_died_in_it_is_held_by_the_next_one() -> None:
    """And only that, among those that were close; by then it is another one that is faster."""
    clock = Clock({16: 1.0, 32: 1.02, 64: 5.0}, dies_at=4)
    with pytest.raises(KeyboardInterrupt):
        launch(racing(clock), 100)
    assert clock.asked == [16, 32, 64]
    clock = Clock({16: 1.1, 32: 1.02})
    kernel = racing(clock)
    launch(kernel, 100)
    assert {*clock.asked} == {16, 32}
    assert (kernel.best_config.kwargs, kernel.benchmarked) == ({"BLOCK": 32}, 2)
    _, record = first_record(default_store())
    assert record.winner is not None
    assert record.winner.config.params == {"BLOCK": 32}
    clock = Clock({})
    launch(racing(clock), 100)
    assert clock.asked == [], "once"


def blocks(*sizes: int) -> list[triton.Config]:
    return [triton.Config({"BLOCK": size}) for size in sizes]


class TestBudgets:
    def test_a_count_ends_a_scenario(self) -> None:
        """Measure the default in any case, and leave the next process nothing to do."""
        configs = blocks(16, 32, 64, 128)
        clock = Clock({16: 4.0, 32: 3.0, 64: 2.0, 128: 1.0})
        for _ in range(2):
            kernel = clock.kernel(configs=configs, tune_configs=2, default=configs[3])
            launch(kernel, 100)
            assert clock.asked == [128, 16]
            assert kernel.best_config is configs[3]
        launch(clock.kernel(configs=configs, tune_configs=3, default=configs[3]), 100)
        assert clock.asked[:2] == [128, 16]
        assert len(clock.asked) == 3

    def test_time_ends_a_tune_and_the_next_process_goes_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        configs = blocks(16, 32, 64, 128)
        elapsed = 0.0
        stopped = SimpleNamespace(**{**vars(time), "monotonic": lambda: elapsed})
        monkeypatch.setattr("dejavu_cache.tuning.tuner.time", stopped)
        monkeypatch.setattr("dejavu_cache.runtime.tune.time", stopped)

        class Slow(Clock):
            def __call__(self, *args: Any, **kwargs: Any) -> list[float]:
                nonlocal elapsed
                elapsed += 0.3
                return super().__call__(*args, **kwargs)

        clock = Slow({128: 1.0})
        kernel = clock.kernel(configs=configs, tune_seconds=0.5)
        launch(kernel, 100)
        assert clock.asked == [16, 32]
        assert "unmeasured configs: 2" in str(kernel.explain(torch.ones(1), torch.ones(1), 100))
        launch(kernel, 100)
        assert clock.asked == [16, 32], "once per process"
        again = clock.kernel(configs=configs, tune_seconds=10)
        launch(again, 100)
        assert clock.asked == [16, 32, 64, 128]
        assert again.best_config is configs[3]

    def test_time_that_is_over_at_once_is_enough_for_one(self) -> None:
        clock = Clock({})
        kernel = clock.kernel(configs=blocks(16, 32), tune_seconds=1e-9)
        launch(kernel, 100)
        assert clock.asked == [16]


def test_a_search_finds_the_best_of_many_within_its_budget() -> None:
    """Its choices are recorded like any others, so that the next process measures nothing."""
    space = config_space(
        {"BLOCK": [16, 32, 64, 128], "SHAPE": list(range(20))},
        num_warps=[1, 2, 4, 8],
        num_stages=[1, 2, 3, 4],
        where=lambda BLOCK, num_warps: 16 * num_warps <= BLOCK,
    )
    assert len(space) == 800
    asked: list[dict[str, Any]] = []

    class Fake(triton.KernelInterface):
        arg_names: ClassVar = ["x_ptr", "y_ptr", "n", "BLOCK", "SHAPE"]
        fn = add_one

        def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            self.config = kwargs
            return add_one.run(*args, grid=grid, warmup=warmup, BLOCK=kwargs["BLOCK"])

    fake = Fake()

    def bench(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        kernel_call()
        values = fake.config
        asked.append(values)
        cost = 1 + abs(values["SHAPE"] - 13) + (values["BLOCK"] != 64) + (values["num_warps"] != 2)
        return [cost + 0.1 * values["num_stages"]] * 3

    kernel = cached_autotune(space, key=["n"], do_bench=bench, tune_configs=60)(fake)
    launch(kernel, 100)
    assert len(asked) <= 60
    assert (asked[0]["BLOCK"], asked[0]["SHAPE"]) == (16, 0), "the default is the yardstick"
    best = kernel.best_config
    assert abs(best.kwargs["SHAPE"] - 13) <= 1
    before = len(asked)
    launch(cached_autotune(space, key=["n"], do_bench=bench, tune_configs=60)(fake), 100)
    assert len(asked) == before


@triton.jit
def add_in_place(x_ptr, total_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at) + 1.0)
    tl.atomic_add(total_ptr, 1.0)


def test_only_what_an_ordinary_launch_runs_is_timed() -> None:
    """Not what Triton saves, zeroes and restores, nor the hooks of a benchmark."""
    x, total, seen = torch.zeros(16), torch.full((1,), 7.0), []

    def note(what: str) -> None:
        seen.append((what, x[0].item(), total.item()))

    config = triton.Config({"BLOCK": 16}, pre_hook=lambda values: note("config's hook"))
    kernel = triton.autotune(
        [config], key=[], restore_value=["x_ptr"], reset_to_zero=["total_ptr"]
    )(add_in_place)
    kernel.nargs = {"x_ptr": x, "total_ptr": total}
    declared, options = DeclaredConfigs("kernel", [config]), {"grid": (1,), "warmup": False}
    launch = CandidateLaunch(kernel, declared, next(iter(declared)), (x, total), options)
    launched = ConfigLaunch(launch, config)
    launched.begin()
    note("begun")
    launched.run()
    note("ran")
    launched.end()
    note("ended")
    assert seen == [("begun", 0, 0), ("config's hook", 0, 0), ("ran", 1, 1), ("ended", 0, 1)]
    assert ConfigLaunch(launch._replace(kwargs={"grid": (-2,)}), config).programs == 0


@pytest.mark.parametrize(
    "error",
    [torch.cuda.OutOfMemoryError("20 MiB"), RuntimeError("Triton Error [CUDA]: out of memory")],
)
def test_a_config_that_lacks_memory_is_measured_with_what_pytorch_keeps(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, lacking = Clock({}), [error]
    monkeypatch.setattr(torch.cuda, "empty_cache", lacking.clear)

    def bench(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        timing = clock(kernel_call, quantiles)
        if lacking:
            raise error
        return timing

    launch(clock.kernel(configs=blocks(16, 32), do_bench=bench), 100)
    assert clock.asked == [16, 16, 32]
    _, record = first_record(default_store())
    assert all(measurement.median for measurement in record.measurements)


def test_memory_that_is_gone_for_all_configs_costs_the_tuning_and_not_the_launch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def hungry(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    kernel = cached_autotune(configs=CONFIGS, key=["n"], do_bench=hungry)(add_one)
    launch(kernel, 100)
    assert kernel.best_config is CONFIGS[0]
    assert "no config has a usable timing" in caplog.text
    _, record = first_record(default_store())
    failures = [timing.failure for timing in record.measurements]
    assert [failure and failure.kind for failure in failures] == ["skipped"] * 3
    again = cached_autotune(configs=CONFIGS, key=["n"], do_bench=hungry)(add_one)
    assert "unmeasured configs: 3" in str(again.explain(torch.ones(1), torch.ones(1), 100))


@pytest.mark.parametrize(
    "options", [{"method": "events"}, {"method": "events-warm", "do_bench": print}]
)
def test_a_method_is_one_of_four_and_alone(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="method"):
        cached_autotune(configs=CONFIGS, key=["n"], **options)(add_one)


STORED: list[int] = []


def count_stored(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
    """Wait until the measurements before are in the default store, and note how many there are."""
    store, deadline = default_store(), time.monotonic() + 240
    while True:
        count = sum(len(r.measurements) for c in store.contexts() for r in store.records(c))
        if count >= len(STORED) or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    STORED.append(count)
    kernel_call()
    return [9.0] * 3


def test_a_measurement_is_on_disk_before_the_next_but_one_is_over() -> None:
    STORED.clear()
    launch(cached_autotune(CONFIGS, ["n"], do_bench=count_stored)(add_one), 100)
    assert STORED == [0, 1, 2]


def test_a_budget_without_numpy_takes_the_first_configs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "dejavu_cache.prediction.slowdown_model", None)
    clock = Clock({})
    launch(clock.kernel(configs=config_space({"BLOCK": [16, 32, 64]}), tune_configs=2), 100)
    assert clock.asked == [16, 32]
    assert "the first 2 of 3 configs are measured, since NumPy" in caplog.text
