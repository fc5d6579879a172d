"""Failures and timings that other machines recorded are hints, and stop no launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from support.addition import CONFIGS, LAUNCHED, Spy, larger_is_faster
from support.kernels import launch
from triton.runtime.errors import OutOfResources

from dejavu_cache import NoValidConfigError, cached_autotune, open_store
from dejavu_cache.model.record import Failure, Measurement, Pin, Record, Winner
from dejavu_cache.model.scenario import Config, now
from dejavu_cache.system.notices import whoami
from dejavu_cache.triton_internals.config_names import describe

DECLARED = [describe(config) for config in CONFIGS]
STRANGER = "root@broken-node"
FUTURE = datetime(2199, 12, 31, tzinfo=timezone.utc)


class MissingResourcesError(Exception):
    """An error that a launch raises by itself."""


def bench(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
    try:
        return larger_is_faster(kernel_call, quantiles)
    except MissingResourcesError:
        return [float("nan")] * 3


def start_process(
    store: Path, *failing: int, error: Exception | None = None, **options: Any
) -> Any:
    """Return a kernel as a new process would decorate it, which fails with some blocks."""
    LAUNCHED.clear()
    raised = error or MissingResourcesError()
    spy = Spy(lambda block: raised if block in failing else None)
    options = {"store": store, "do_bench": bench, "check": False, **options}
    return cached_autotune(CONFIGS, ["n"], **options)(spy)


def tune(store: Path, *failing: int, **options: Any) -> Any:
    """Launch a kernel in a new process, and return the kernel."""
    kernel = start_process(store, *failing, **options)
    launch(kernel, 100)
    return kernel


def plant(store: Path, measurements: Sequence[Measurement], winner: Winner | None = None) -> None:
    """Write a record for the scenario that the tests launch, as another machine might."""
    request = start_process(store).request(torch.ones(100), torch.ones(100), 100)
    record = Record(scenario=request.scenario, winner=winner, measurements=tuple(measurements))
    open_store(str(store)).put(request.context, [record])


def failure(config: Config, kind: Any = "ptxas_error", **fields: Any) -> Measurement:
    fields = {"at": now(), "by": STRANGER, **fields}
    return Measurement(config=config, failure=Failure(kind=kind, reason="not found"), **fields)


def timing(config: Config, median: float, **fields: Any) -> Measurement:
    fields = {"at": now(), "by": STRANGER, **fields}
    return Measurement(config=config, median=median, p20=median, p80=median, **fields)


def by_block(store: Path) -> dict[Any, Measurement]:
    (context,) = open_store(str(store)).contexts()
    (record,) = open_store(str(store)).records(context)
    return {entry.config.params["BLOCK"]: entry for entry in record.measurements}


@pytest.mark.parametrize("kind", ["ptxas_error", "compile_error", "out_of_resources"])
@pytest.mark.parametrize("at", [None, FUTURE])
def test_failures_of_all_configs_elsewhere_are_tried_here(
    tmp_path: Path, kind: str, at: datetime | None
) -> None:
    plant(tmp_path, [failure(config, kind, at=at or now()) for config in DECLARED])
    kernel = tune(tmp_path)
    assert kernel.best_config is CONFIGS[2]
    assert {entry.by for entry in by_block(tmp_path).values()} == {whoami()}
    again = tune(tmp_path)
    assert (LAUNCHED, again.best_config) == ([64], CONFIGS[2]), "nothing is measured twice"


@pytest.mark.parametrize("by", [STRANGER, whoami()])
@pytest.mark.parametrize("hours", [-12, 12, 36])
def test_failures_of_all_configs_are_tried_again_once_whatever_clock_dated_them(
    tmp_path: Path, hours: int, by: str
) -> None:
    """A disk that was full yesterday, on this machine or another."""
    at = now() + timedelta(hours=hours)
    plant(tmp_path, [failure(config, at=at, by=by) for config in DECLARED])
    for benchmarked in (3, 0):
        kernel = tune(tmp_path)
        assert (kernel.best_config, kernel.benchmarked) == (CONFIGS[2], benchmarked)


def test_a_strangers_failures_are_hints_while_another_config_is_valid(tmp_path: Path) -> None:
    plant(tmp_path, [failure(DECLARED[2]), timing(DECLARED[1], 2.0)])
    kernel = tune(tmp_path)
    assert kernel.best_config is CONFIGS[1]
    assert 64 not in LAUNCHED


@pytest.mark.parametrize("kind", ["crash", "wrong"])
def test_what_may_end_the_process_or_be_wrong_is_not_tried_but_the_default_is(
    tmp_path: Path, kind: str
) -> None:
    plant(tmp_path, [failure(config, kind) for config in DECLARED])
    for _ in range(2):
        kernel = tune(tmp_path)
        assert set(LAUNCHED) == {16}
        assert kernel.best_config is CONFIGS[0]


def test_with_nothing_valid_here_either_the_reasons_of_this_process_are_raised(
    tmp_path: Path,
) -> None:
    plant(tmp_path, [failure(config) for config in DECLARED])
    with pytest.raises(NoValidConfigError, match="invalid_timing"):
        tune(tmp_path, 16, 32, 64)


def test_with_nothing_valid_but_untried_configs_the_default_runs(tmp_path: Path) -> None:
    crashes = [failure(config, "crash") for config in DECLARED[1:]]
    plant(tmp_path, [failure(DECLARED[0]), *crashes])
    with pytest.raises(MissingResourcesError):
        tune(tmp_path, 16)
    assert set(LAUNCHED) == {16}


@pytest.mark.parametrize("mode", ["reuse", "tune"])
@pytest.mark.parametrize("by", [STRANGER, whoami()])
@pytest.mark.parametrize("kind", ["ptxas_error", "crash", "wrong", "skipped"])
def test_no_recorded_failure_makes_a_launch_raise(
    tmp_path: Path, mode: str, by: str, kind: str
) -> None:
    plant(tmp_path, [failure(config, kind, by=by) for config in DECLARED])
    kernel = tune(tmp_path, mode=mode)
    assert kernel.best_config in CONFIGS


@pytest.mark.parametrize("median", [0.0, 5e-324, 1e-9])
def test_a_timing_that_no_launch_can_have_decides_nothing(tmp_path: Path, median: float) -> None:
    winner = Winner(config=DECLARED[0], at=FUTURE)
    plant(tmp_path, [timing(DECLARED[0], median, at=FUTURE)], winner)
    kernel = tune(tmp_path, mode="reuse", default=CONFIGS[1])
    assert kernel.best_config is CONFIGS[1]
    kernel = tune(tmp_path)
    assert kernel.best_config is CONFIGS[2]
    assert by_block(tmp_path)[16].median == 100 / 16


def test_a_strangers_timing_wins_a_tune_only_if_it_is_confirmed(tmp_path: Path) -> None:
    winner = Winner(config=DECLARED[0], at=now())
    plant(tmp_path, [timing(DECLARED[0], 0.001)], winner)
    kernel = tune(tmp_path)
    assert kernel.best_config is CONFIGS[2]
    assert by_block(tmp_path)[16].by == whoami()


def test_a_lone_machine_does_not_outdo_all_others_tenfold(tmp_path: Path) -> None:
    honest = [timing(config, 3.0 + at, by="ann@h200-1") for at, config in enumerate(DECLARED[:2])]
    plant(tmp_path, honest, Winner(config=DECLARED[0], at=now()))
    plant(tmp_path, [timing(DECLARED[2], 0.01)])
    kernel = tune(tmp_path, mode="reuse")
    assert kernel.best_config is CONFIGS[0]
    plant(tmp_path, [timing(DECLARED[1], 0.02, by="bob@h200-2")])
    kernel = tune(tmp_path, mode="reuse")
    assert kernel.best_config is CONFIGS[2], "a second machine has confirmed it"


@pytest.mark.parametrize("mode", ["reuse", "tune"])
@pytest.mark.parametrize("pinned", [False, True])
def test_a_recorded_config_that_does_not_fit_here_gives_way_to_another(
    tmp_path: Path, mode: str, pinned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fastest = timing(DECLARED[2], 0.1)
    plant(tmp_path, [timing(DECLARED[0], 3.0), timing(DECLARED[1], 2.0), fastest])
    if pinned:
        (context,) = open_store(str(tmp_path)).contexts()
        (record,) = open_store(str(tmp_path)).records(context)
        pin = Pin(config=DECLARED[2], at=now(), by=STRANGER)
        open_store(str(tmp_path)).put(context, [record.model_copy(update={"pin": pin})])
    error = OutOfResources(300_000, 232_448, "shared memory")
    kernel = start_process(tmp_path, 64, error=error, mode=mode)
    x = torch.zeros(100)
    for _ in range(2):
        kernel[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, x, 100)
    assert LAUNCHED == [64, 32, 32]
    assert x.eq(2).all()
    assert caplog.text.count("cannot run here") == 1


def test_when_the_default_does_not_fit_either_the_program_sees_its_error(tmp_path: Path) -> None:
    plant(tmp_path, [timing(config, 1.0 / rank) for rank, config in enumerate(DECLARED, start=1)])
    error = OutOfResources(3, 2, "shared memory")
    with pytest.raises(OutOfResources):
        tune(tmp_path, 16, 32, 64, error=error, mode="reuse")
    assert LAUNCHED == [64, 32, 16]


def test_a_config_that_is_chosen_again_after_it_failed_ends_in_its_error(tmp_path: Path) -> None:
    kernel = start_process(tmp_path, mode="reuse")
    request = kernel.request(torch.ones(100), torch.ones(100), 100)
    assert kernel.resolver(None).reject(request, DECLARED[2], "does not fit")
    assert not kernel.resolver(None).reject(request, DECLARED[2], "does not fit")
    assert not kernel.resolver(None).reject(request, DECLARED[0], "does not fit"), "the default"
