"""Failures and timings of others are hints; a config that killed a process is not run."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from support.addition import CONFIGS, LAUNCHED, larger_is_faster, outcomes, spied
from support.fork_server import kernel_nursery
from support.kernels import launch
from support.processes import PROGRAMS, dejavu
from support.records import first_record
from triton.runtime.errors import OutOfResources

from dejavu_cache import NoValidConfigError, open_store
from dejavu_cache.model.record import Failure, Measurement, Pin, Record, Winner
from dejavu_cache.model.scenario import Config, now
from dejavu_cache.stores import FileStore
from dejavu_cache.system.notices import whoami
from dejavu_cache.triton_internals.config_names import describe
from dejavu_cache.tuning.measurement_marks import MeasurementMark, _Mark

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
    raised = error or MissingResourcesError()
    options = {"store": store, "do_bench": bench, **options}
    return spied(lambda block: raised if block in failing else None, **options)


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
    _, record = first_record(open_store(str(store)))
    return {entry.config.params["BLOCK"]: entry for entry in record.measurements}


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


@pytest.mark.parametrize("mode", ["reuse", "tune"])
@pytest.mark.parametrize("by", [STRANGER, whoami()])
@pytest.mark.parametrize("kind", ["ptxas_error", "crash", "wrong", "skipped"])
def test_no_recorded_failure_makes_a_launch_raise(
    tmp_path: Path, mode: str, by: str, kind: str
) -> None:
    """What may end the process or be wrong is not tried, but the default is."""
    plant(tmp_path, [failure(config, kind, by=by) for config in DECLARED])
    for _ in range(2):
        kernel = tune(tmp_path, mode=mode)
        assert kernel.best_config in CONFIGS
        assert kind not in ("crash", "wrong") or set(LAUNCHED) == {16}


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
        context, record = first_record(open_store(str(tmp_path)))
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


PROGRAM = PROGRAMS / "logged_suite.py"


def test_a_config_that_kills_its_process_is_met_once(tmp_path: Path) -> None:
    """Only in a sweep it is tried again; that time, it kills nothing."""
    store, log, marks = (tmp_path / name for name in ("store", "log", "user/dejavu-cache"))
    variables = {
        "DEJAVU_CACHE_URL": str(store), "XDG_CACHE_HOME": str(marks.parent),
        "TRITON_INTERPRET": "1", "LOG": str(log),
    }  # fmt: skip

    def run(fatal: int = 0) -> tuple[int, str, str, list[str]]:
        log.write_text("")
        named = {"FATAL": f"100 {fatal}", **variables}
        done = kernel_nursery().start_file(PROGRAM, folder=tmp_path, **named).complete()
        return done.returncode, done.stdout, done.stderr, log.read_text().splitlines()

    assert run(32)[0] == -9
    code, out, error, measured = run(32)
    assert (code, out) == (0, "16\n"), "the best of the others runs"
    # What was measured before the fatal config may have been on its way to the disk.
    assert [launch for launch in measured if launch != "100 16"] == ["100 64", "100 128"]
    assert error.count("(BLOCK=32, num_ctas=1") == 1
    assert "is not run for a day: process" in error
    assert "`dejavu-cache sweep`" in error
    others = dict.fromkeys((16, 64, 128), "timed")
    assert outcomes(FileStore(store)) == others, "a suspicion is no failure"
    assert run(32)[1::2] == ("16\n", [])
    swept = dejavu("sweep", PROGRAM, "--store", store, "--option", "cases=1", **variables)
    assert swept.returncode == 0, swept.stderr
    assert outcomes(FileStore(store)) == {**others, 32: "timed"}
    assert list((marks / "measuring").iterdir()) == []


@pytest.mark.parametrize(
    ("places", "age", "is_alive", "mode", "best"),
    [
        ((0,), 0, False, "tune", 64),
        ((0,), 0, False, "reuse", 32),
        ((2,), 0, False, "tune", 32),
        ((2,), 90_000, False, "tune", 64),
        ((2,), -90_000, False, "tune", 64),  # dated by a clock that was put back since
        ((2,), 0, True, "tune", 64),
        ((0, 1, 2), 0, False, "tune", None),
    ],
)
def test_what_marks_of_configs_say(
    places: tuple[int, ...], age: int, is_alive: bool, mode: Any, best: int | None
) -> None:
    """A config during which a process died is not run for a day, not even if it is the default."""
    kernel = spied(mode=mode, check=True)
    request = kernel.request(torch.ones(100), torch.ones(100), 100)
    marks = [MeasurementMark(request.context, request.scenario) for _ in places]
    for mark, place in zip(marks, places, strict=True):
        mark._write(_Mark(config=describe(CONFIGS[place]), pid=1, host="here").model_dump_json())
        os.utime(mark._path, (time.time() - age,) * 2)
        assert mark._handle is not None
        if not is_alive:
            os.close(mark._handle)  # as the end of its process does
    reasons = pytest.raises(NoValidConfigError, match="ended while it measured it")
    with nullcontext() if best else reasons:
        launch(kernel, 100)
    assert best is None or kernel.best_config.kwargs == {"BLOCK": best}
    is_suspected = not age and not is_alive
    assert all((16 << place in LAUNCHED) is not is_suspected for place in places)
    assert marks[0]._path.exists() is not bool(age), "old marks are removed"
