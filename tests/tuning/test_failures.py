"""Tell failures apart: the config's own, the machine's, and those that end the process."""

import errno
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support.addition import LAUNCHED, Bench, Fault, make, outcomes, spied, tune_spied  # fmt: skip
from support.kernels import launch

from dejavu_cache import NoValidConfigError
from dejavu_cache.stores.tiered import default_store
from dejavu_cache.triton_internals.versions import OutOfResources, PTXASError
from dejavu_cache.tuning.compile_ahead import compile_failure_of, device_failure_of, failure_of


def recorded_outcomes() -> dict[Any, str]:
    return outcomes(default_store())


def fail_times(block: int, count: int, error: Exception) -> Fault:
    left = [count]

    def fault(launched: int) -> Exception | None:
        if launched != block or not left[0]:
            return None
        left[0] -= 1
        return error

    return fault


def test_a_compiler_that_the_machine_stops_costs_a_config_one_tune() -> None:
    stopped = PTXASError("`ptxas` failed with error code -9\n`ptxas` stderr:\n")
    kernel = tune_spied(fail_times(64, 9, stopped))
    assert recorded_outcomes() == {16: "timed", 32: "timed", 64: "skipped"}
    assert kernel.best_config.kwargs == {"BLOCK": 32}
    again = tune_spied()
    assert {*LAUNCHED} == {64}, "only what was skipped is measured"
    assert recorded_outcomes()[64] == "timed"
    assert again.best_config.kwargs == {"BLOCK": 64}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (PTXASError("`ptxas` failed with error code 255"), "ptxas_error"),
        (OutOfResources(300000, 200000, "shared"), "out_of_resources"),
    ],
)
def test_a_failure_is_recorded_and_never_met_again(error: Exception, outcome: str) -> None:
    tune_spied(fail_times(64, 9, error))
    assert LAUNCHED.count(64) == 1
    assert recorded_outcomes()[64] == outcome
    tune_spied()
    assert LAUNCHED == [32]


LOST = RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize(
    ("block", "right_launches", "check", "recorded", "winner"),
    [
        (32, 0, False, {16: "timed", 32: "crash"}, 64),
        (16, 0, True, {16: "crash"}, 64),  # the default, whose results are those to compare with
        (64, 1, True, {16: "timed", 32: "timed", 64: "crash"}, 32),  # while they are compared
    ],
)
def test_a_config_that_loses_the_device_is_met_once_in_all_processes(
    block: int, right_launches: int, check: bool, recorded: dict[int, str], winner: int
) -> None:
    right = iter([None] * right_launches)

    def fault(launched: int) -> Exception | None:
        return next(right, LOST) if launched == block else None

    with pytest.raises(RuntimeError, match="illegal memory access"):
        tune_spied(fault, check=check)
    assert recorded_outcomes() == recorded
    again = tune_spied(fault, check=check)
    assert block not in LAUNCHED
    assert recorded_outcomes() == {16: "timed", 32: "timed", 64: "timed", block: "crash"}
    assert again.best_config.kwargs == {"BLOCK": winner}


LOSSES = (
    "Triton Error [CUDA]: an illegal memory access was encountered",
    "CUDA error: unspecified launch failure",
    "CUDA error: device-side assert triggered",
    "CUDA error: misaligned address",
    "HIP error: an illegal memory access was encountered",
)


def test_errors_are_classified_by_whose_fault_they_are() -> None:
    def kind(failure: Any) -> str | None:
        return failure.kind if failure else None

    assert kind(failure_of(PTXASError("`ptxas` failed with error code -11"))) == "ptxas_error"
    assert kind(failure_of(PTXASError("`ptxas` failed with error code -15"))) == "skipped"
    assert kind(failure_of(MemoryError())) == "skipped"
    assert kind(failure_of(OSError(errno.ENOSPC, "No space left on device"))) == "skipped"
    assert kind(failure_of(torch.cuda.OutOfMemoryError("CUDA out of memory"))) == "skipped"
    full = RuntimeError("cannot write")
    full.__cause__ = OSError(errno.ENOSPC, "full")
    assert kind(failure_of(full)) == "skipped"
    assert kind(compile_failure_of(FileNotFoundError("ptxas"))) == "skipped"
    assert kind(failure_of(FileNotFoundError("a kernel's own file"))) is None
    assert kind(compile_failure_of(ValueError("no such option"))) == "compile_error"
    unknown = KeyError("Keyword argument wraps was specified but unrecognised")
    assert kind(compile_failure_of(unknown, {"debug"})) == "compile_error", "the config's option"
    assert compile_failure_of(unknown, {"debug", "wraps"}) is None, "the caller's mistake"
    for message in LOSSES:
        assert device_failure_of(RuntimeError(message)) is not None, message
    assert device_failure_of(ValueError("illegal memory access in a comment")) is None


@pytest.mark.parametrize("returned", [[float("nan")] * 3, None, "fast", [], object()])
def test_what_is_no_time_is_a_failure_and_not_measured_again(returned: Any) -> None:
    def bench(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> Any:
        kernel_call()
        return returned

    kernel = spied(do_bench=bench)
    with pytest.raises(NoValidConfigError) as caught:
        launch(kernel, 100)
    assert str(caught.value).count("invalid_timing: the benchmark returned") == 3


@pytest.mark.parametrize("same_process", [True, False])
def test_configs_that_all_failed_are_tried_once_more(same_process: bool) -> None:
    """A disk that was full, or a tool that was missing, may be there by the next launch."""
    bench = Bench([float("nan")])
    kernel = make(bench)
    with pytest.raises(NoValidConfigError):
        launch(kernel, 100)
    bench.times = [3.0, 1.0, 2.0]
    for calls in (3, 0):
        again = kernel if same_process else make()
        before = again.benchmarked
        launch(again, 100)
        assert again.benchmarked - before == calls
