"""Recorded winners are measured again, and set aside once they are slower than their rivals."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.processes import ROOT, dejavu

from dejavu_cache import cached_autotune
from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import Config, now
from dejavu_cache.stores import FileStore
from dejavu_cache.sweep.case_tuner import make_request
from dejavu_cache.sweep.suite import Case, load_suite
from dejavu_cache.sweep.winner_verification import VerifiedWinner, verify_winners

SUITE = ROOT / "tests" / "programs" / "wrong_suite.py"
LIMITS = (2048, 32, 1024, 4096)
"""Values of the kernel's only parameter; the first is the default's, and 32 is wrong."""


class Device:
    """Times by LIMIT, in milliseconds, of which each launch takes the next one."""

    def __init__(self) -> None:
        self.times: dict[int, Callable[[], float]] = {}
        self.measured: list[int] = []
        self._launched = 0

    def set_times(self, **times: float | Iterator[float]) -> None:
        for name, time in times.items():
            upcoming = time if isinstance(time, Iterator) else repeat(time)
            self.times[int(name[1:])] = partial(next, upcoming)

    def note(self, arguments: dict[str, Any], reset_only: bool = False) -> None:
        self._launched = arguments["LIMIT"]

    def bench(self, kernel_call: Callable[[], Any], quantiles: Any) -> list[float]:
        kernel_call()
        self.measured.append(self._launched)
        return [self.times[self._launched]()] * 3


@triton.jit  # type: ignore[untyped-decorator]
def total(x_ptr: Any, out_ptr: Any, n: Any, LIMIT: tl.constexpr) -> None:
    """Sum n numbers; a config whose LIMIT is less than n leaves some out."""
    accumulator = 0.0
    for start in range(0, LIMIT, 32):
        at = start + tl.arange(0, 32)
        accumulator += tl.sum(tl.load(x_ptr + at, mask=at < n, other=0.0))
    tl.store(out_ptr, accumulator)


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def case(device: Device) -> Case:
    configs = [triton.Config({"LIMIT": limit}) for limit in LIMITS]
    kernel = cached_autotune(configs, ["n"], do_bench=device.bench, pre_hook=device.note)(total)
    arguments = {"x_ptr": torch.rand(1000), "out_ptr": torch.zeros(1), "n": 1000}
    return Case("n=1000", kernel, (1,), lambda: arguments)


def write(store: FileStore, case: Case, **recorded: float) -> dict[int, Config]:
    """Record a time for each LIMIT, and return the configs."""
    request = make_request(case)
    configs = {
        limit: config
        for limit in LIMITS
        for config in request.declared
        if config.params["LIMIT"] == limit
    }
    measurements = [
        Measurement(config=configs[int(name[1:])], median=time, at=now())
        for name, time in recorded.items()
    ]
    store.put(
        request.context, [Record(scenario=request.scenario, measurements=tuple(measurements))]
    )
    return configs


def verify(store: FileStore, case: Case) -> VerifiedWinner:
    (verified,) = verify_winners([case], store, 5, random.Random(0))
    return verified


def winner_in(store: FileStore, case: Case) -> str:
    request = make_request(case)
    stored = store.get(request.context, request.scenario, fresh=True)
    assert stored is not None
    return "" if stored.record.winner is None else str(stored.record.winner.config)


def test_a_winner_that_is_still_the_fastest_holds(
    tmp_path: Path, device: Device, case: Case
) -> None:
    store = FileStore(tmp_path)
    configs = write(store, case, _2048=2.0, _1024=1.0, _4096=3.0)
    device.set_times(_2048=2.4, _1024=1.2)
    verified = verify(store, case)
    assert (verified.outcome, verified.recorded, verified.again) == ("holds", 1.0, 1.2)
    assert verified.rival == str(configs[2048])
    assert device.measured == [1024, 2048]
    assert winner_in(store, case) == ""  # nothing was written


def test_a_winner_that_became_slower_is_replaced_by_the_fastest(
    tmp_path: Path, device: Device, case: Case
) -> None:
    store = FileStore(tmp_path)
    configs = write(store, case, _2048=2.0, _1024=1.0, _4096=1.9)
    device.set_times(_2048=2.0, _1024=3.0, _4096=2.1)
    verified = verify(store, case)
    assert verified.outcome == "set aside"
    assert verified.cost == pytest.approx(1.5)
    assert verified.winner == winner_in(store, case) == str(configs[2048])
    assert verify(store, case).outcome == "holds"


def test_one_slow_look_is_no_evidence(tmp_path: Path, device: Device, case: Case) -> None:
    store = FileStore(tmp_path)
    write(store, case, _2048=2.0, _1024=1.0)
    device.set_times(_2048=2.0, _1024=iter([9.0, 1.0]))
    verified = verify(store, case)
    assert (verified.outcome, verified.reason) == ("holds", "")


def test_what_takes_its_place_is_measured_now_and_right(
    tmp_path: Path, device: Device, case: Case
) -> None:
    """Of two configs with old timings, one has become slow as well and one is wrong."""
    store = FileStore(tmp_path)
    configs = write(store, case, _2048=5.0, _1024=1.0, _32=1.2, _4096=1.1)
    device.set_times(_2048=5.0, _1024=9.0, _32=1.2, _4096=8.0)
    verified = verify(store, case)
    assert verified.winner == winner_in(store, case) == str(configs[2048])
    request = make_request(case)
    stored = store.get(request.context, request.scenario, fresh=True)
    assert stored is not None
    assert stored.record.by_config[configs[32]].is_wrong
    assert stored.record.by_config[configs[4096]].median == 8.0


def test_a_tie_is_no_reason(tmp_path: Path, device: Device, case: Case) -> None:
    store = FileStore(tmp_path)
    write(store, case, _2048=2.0, _1024=1.0)
    device.set_times(_2048=1.0, _1024=1.005)
    assert verify(store, case).outcome == "holds"


def test_a_winner_that_fails_now_is_replaced(tmp_path: Path, device: Device, case: Case) -> None:
    store = FileStore(tmp_path)
    configs = write(store, case, _2048=2.0, _1024=1.0)
    device.set_times(_2048=2.0)
    device.times[1024] = fail
    verified = verify(store, case)
    assert (verified.outcome, verified.winner) == ("set aside", str(configs[2048]))
    assert "out_of_resources" in verified.reason


def fail() -> float:
    raise triton.runtime.errors.OutOfResources(3, 2, "shared memory")


def test_the_command_exits_with_1_for_what_does_not_hold(tmp_path: Path) -> None:
    for case in load_suite(str(SUITE)).load_cases({}):
        write(FileStore(tmp_path), case, _2048=2.0, _1024=1.0)
    arguments = ("verify", "--winners", "5", "--store", tmp_path)
    changed = dejavu(*arguments, "--json", SUITE, SLOWER="1024")
    assert changed.returncode == 1, changed.stderr
    assert json.loads(changed.stdout)["set aside"] == 2
    holding = dejavu(*arguments, SUITE, SLOWER="1024")
    assert holding.returncode == 0, holding.stderr
    assert holding.stdout.endswith("2 winners measured again: 2 hold, 0 set aside, 0 unchecked\n")
