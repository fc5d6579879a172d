"""Tell failures apart: the config's own, the machine's, and those that end the process."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import triton
from support.addition import add_one
from support.kernels import launch

from dejavu_cache import cached_autotune
from dejavu_cache.model.record import Record
from dejavu_cache.stores.tiered import default_store
from dejavu_cache.triton_internals.versions import OutOfResources, PTXASError
from dejavu_cache.tuning.compile_ahead import compile_failure_of, device_failure_of, failure_of

CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32, 64)]
FATAL = 32

Fault = Callable[[int], Exception | None]


class Faulty(triton.KernelInterface):
    """A kernel whose launches raise what a function of the block says."""

    arg_names = add_one.arg_names
    fn = add_one

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.launched: list[int] = []

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.launched.append(kwargs["BLOCK"])
        LAUNCHED.append(kwargs["BLOCK"])
        error = self.fault(kwargs["BLOCK"])
        if error is not None:
            raise error
        return add_one.run(*args, **kwargs)


LAUNCHED: list[int] = []
"""Blocks of all launches; a benchmark function bound to a kernel would have no identity."""


def bench(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
    """Launch, and return a time that is shorter for larger blocks."""
    kernel_call()
    return [100.0 / LAUNCHED[-1]] * 3


def start_process(fault: Fault, *, check: bool = False) -> tuple[Any, Faulty]:
    """Return a kernel as a new process would decorate it; larger blocks are faster."""
    faulty = Faulty(fault)
    kernel = cached_autotune(configs=CONFIGS, key=["n"], do_bench=bench, check=check)(faulty)
    return kernel, faulty


def recorded_outcomes() -> dict[Any, str]:
    """Return the outcomes in the only record, by block."""
    (context,) = default_store().contexts()
    record: Record
    (record,) = default_store().records(context)
    return {
        measurement.config.params["BLOCK"]: measurement.failure.kind
        if measurement.failure
        else "timed"
        for measurement in record.measurements
    }


def fail_times(block: int, count: int, error: Exception) -> Fault:
    """Return a fault of one block's first launches."""
    left = [count]

    def fault(launched: int) -> Exception | None:
        if launched != block or not left[0]:
            return None
        left[0] -= 1
        return error

    return fault


def no_fault(block: int) -> None:
    """Raise nothing."""


@pytest.mark.parametrize(
    "error",
    [
        PTXASError("`ptxas` failed with error code -9\n`ptxas` stderr:\n"),
        PTXASError("`ptxas` failed with error code -15"),
        MemoryError(),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_a_compiler_that_the_machine_stops_costs_a_config_one_tune(error: Exception) -> None:
    kernel, _ = start_process(fail_times(64, 9, error))
    launch(kernel, 100)
    assert recorded_outcomes() == {16: "timed", 32: "timed", 64: "skipped"}
    assert kernel.best_config.kwargs == {"BLOCK": 32}
    again, faulty = start_process(no_fault)
    launch(again, 100)
    assert set(faulty.launched) == {64}, "only what was skipped is measured"
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
    kernel, faulty = start_process(fail_times(64, 9, error))
    launch(kernel, 100)
    assert faulty.launched.count(64) == 1
    assert recorded_outcomes()[64] == outcome
    again, faulty = start_process(no_fault)
    launch(again, 100)
    assert faulty.launched == [32]


@pytest.mark.parametrize(
    "message",
    [
        "Triton Error [CUDA]: an illegal memory access was encountered",
        "CUDA error: unspecified launch failure",
        "CUDA error: device-side assert triggered",
        "CUDA error: misaligned address",
        "HIP error: an illegal memory access was encountered",
    ],
)
def test_a_config_that_loses_the_device_is_met_once_in_all_processes(message: str) -> None:
    fault = fail_times(FATAL, 9, RuntimeError(message))
    kernel, _ = start_process(fault)
    with pytest.raises(RuntimeError, match=message[-16:]):
        launch(kernel, 100)
    assert recorded_outcomes() == {16: "timed", FATAL: "crash"}
    again, faulty = start_process(fault)
    launch(again, 100)
    assert FATAL not in faulty.launched
    assert recorded_outcomes() == {16: "timed", FATAL: "crash", 64: "timed"}
    assert again.best_config.kwargs == {"BLOCK": 64}


def test_a_default_config_that_loses_the_device_is_not_launched_to_compare_results() -> None:
    fault = fail_times(16, 9, RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        launch(start_process(fault, check=True)[0], 100)
    assert recorded_outcomes() == {16: "crash"}
    again, faulty = start_process(fault, check=True)
    launch(again, 100)
    assert 16 not in faulty.launched
    assert again.best_config.kwargs == {"BLOCK": 64}


def test_a_config_that_loses_the_device_while_results_are_compared_is_recorded() -> None:
    error, launches = RuntimeError("CUDA error: unspecified launch failure"), iter([None])
    with pytest.raises(RuntimeError, match="unspecified"):
        launch(
            start_process(lambda block: next(launches, error) if block == 64 else None, check=True)[
                0
            ],
            100,
        )
    assert recorded_outcomes() == {16: "timed", 32: "timed", 64: "crash"}
    again, faulty = start_process(no_fault, check=True)
    launch(again, 100)
    assert 64 not in faulty.launched
    assert again.best_config.kwargs == {"BLOCK": 32}


def test_an_error_that_is_not_understood_is_raised_and_not_recorded() -> None:
    kernel, _ = start_process(fail_times(FATAL, 9, RuntimeError("uncorrectable ECC error")))
    with pytest.raises(RuntimeError, match="ECC"):
        launch(kernel, 100)
    assert FATAL not in recorded_outcomes()


def test_errors_are_classified_by_whose_fault_they_are() -> None:
    def kind(failure: Any) -> str | None:
        return failure.kind if failure else None

    assert kind(failure_of(PTXASError("`ptxas` failed with error code -11"))) == "ptxas_error"
    assert kind(failure_of(PTXASError("`ptxas` failed with error code -9"))) == "skipped"
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
    assert device_failure_of(ValueError("illegal memory access in a comment")) is None
