"""How long a launch takes on the device, however long the host takes to queue it."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from dejavu_cache.tuning.device_timer import FULL, SCREENING, DeviceTimer, TimedLaunch

KERNEL, CLEAR = 0.007, 0.08
"""Milliseconds of the device for the kernel, and for clearing its cache."""


class Event:
    """A moment of a simulated device's queue."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self.time = machine, 0.0

    def record(self) -> None:
        self.time = self._machine.work(0.001, 0.0)

    def query(self) -> bool:
        return self._machine.host >= self.time

    def elapsed_time(self, end: Event) -> float:
        return end.time - self.time


class Machine:
    """A host and a device that works through what the host has queued; both have a clock.

    Attributes:
        slots: what the device takes longer for each kernel, in turn, in milliseconds.
    """

    def __init__(self) -> None:
        self.host = self.device = 0.0
        self.slots = [0.0]
        self._kernels = 0

    def work(self, host: float, device: float) -> float:
        """Queue work, and return when the device has done it; times in milliseconds."""
        self.host += host
        if device:
            self._kernels += 1
            device += self.slots[self._kernels % len(self.slots)]
        self.device = max(self.device, self.host) + device
        return self.device

    def Event(self, enable_timing: bool) -> Event:
        return Event(self)

    def synchronize(self) -> None:
        self.host = max(self.host, self.device)

    def clear_cache(self, cache: bytes) -> None:
        self.work(0.005, CLEAR if len(cache) > 1 else 0.002)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def timer(machine: Machine) -> DeviceTimer:
    timer = DeviceTimer("events-cold")
    timer.__dict__ |= {"_device": machine, "_driver": machine, "_cache": bytes(256)}
    return timer


@pytest.mark.parametrize("effort", [SCREENING, FULL])
@pytest.mark.parametrize("host", [0.005, 0.05, 0.12, 0.2, 0.29])
def test_a_slow_host_lengthens_no_timing(
    host: float, effort: Any, machine: Machine, timer: DeviceTimer
) -> None:
    """Most launches are queued before the device is done with what came before."""
    sample = timer.sample(TimedLaunch(lambda: machine.work(host, KERNEL)), effort)
    assert sample.steady
    assert sample.times == pytest.approx([KERNEL] * len(sample.times))


def test_a_host_that_is_too_slow_is_reported(machine: Machine, timer: DeviceTimer) -> None:
    assert not timer.sample(TimedLaunch(lambda: machine.work(5.0, KERNEL)), FULL).steady


def test_work_around_the_timed_part_is_not_measured(machine: Machine, timer: DeviceTimer) -> None:
    class Launch(TimedLaunch):
        def begin(self) -> None:
            machine.work(0.02, 0.05)

        def end(self) -> None:
            machine.work(0.02, 0.05)

    sample = timer.sample(Launch(lambda: machine.work(0.03, KERNEL)), FULL)
    assert sample.steady
    assert sample.times == pytest.approx([KERNEL] * len(sample.times))


@pytest.mark.parametrize("around", range(4))
@pytest.mark.parametrize("slots", [(0.0, 0.5), (0.0, 0.5, 0.0, 1.0), (0.0, 0.3, 0.1, 0.6) * 2])
def test_what_ran_before_does_not_decide_a_timing(
    slots: tuple[float, ...], around: int, machine: Machine, timer: DeviceTimer
) -> None:
    """A device with slots of unequal speed gives a config all of them, whatever runs around it."""
    machine.slots = [microseconds / 1000 for microseconds in slots]

    class Launch(TimedLaunch):
        def end(self) -> None:
            for _ in range(around):  # as restoring arguments takes
                machine.work(0.01, 0.003)

    launch = Launch(lambda: machine.work(0.02, KERNEL))
    means = set()
    for before in range(16):
        times = timer.sample(launch, FULL).times
        means.add(statistics.mean(times))
        for _ in range(before):
            machine.work(0.01, 0.1)
    assert max(means) - min(means) < 0.0001
