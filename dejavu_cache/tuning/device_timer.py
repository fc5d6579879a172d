"""Time a launch on the device: by events or CUDA graphs, with a cold or a warm L2 cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

__all__ = [
    "FULL",
    "SCREENING",
    "TURN",
    "DeviceTimer",
    "Effort",
    "GraphCapture",
    "Sample",
    "TimedCall",
    "do_nothing",
    "time_all",
]


TimedCall = Callable[[Callable[[], object], Callable[[], object]], Any]
"""A call; it calls the first argument where the timed part begins, the second where it ends."""


def do_nothing() -> None:
    """Mark the begin or the end of a call that nobody times."""


def time_all(call: Callable[[], Any]) -> TimedCall:
    """Return a call of which all is timed."""

    def run(begin: Callable[[], object], end: Callable[[], object]) -> Any:
        begin()
        result = call()
        end()
        return result

    return run


class GraphCapture:
    """A stream on which graphs of the current device are captured, and the latest one of them.

    PyTorch frees the memory of a graph that is gone only where an allocation fails, and never
    during a capture: graphs with memory of their own would fill the device. They share the memory
    as long as one of them exists, so the latest one is kept.
    """

    def __init__(self) -> None:
        """Take a stream of the current device."""
        import torch  # here, since a program that never tunes need not wait for it

        self._stream = torch.cuda.Stream()
        self._latest: Any = None

    def capture(self, call: Callable[[], object], times: int) -> Any:
        """Capture calls, without the garbage collection of `torch.cuda.graph`.

        Returns:
            The graph; it serves until the next one is captured.

        Raises:
            Exception: what the call raises, and what PyTorch does where it cannot be captured.
        """
        import torch

        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            pool = None if self._latest is None else self._latest.pool()
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                for _ in range(times):
                    call()
            except BaseException:
                with suppress(RuntimeError):
                    self._end(graph)
                graph.reset()
                raise
            self._end(graph)
        torch.cuda.current_stream().wait_stream(self._stream)
        self.release()
        self._latest = graph
        return graph

    def _end(self, graph: Any) -> None:
        """End a capture; after a failure, leave the memory that PyTorch may still take for its."""
        try:
            graph.capture_end()
        except RuntimeError:
            graph.reset()
            self.release()
            raise

    def release(self) -> None:
        """Let PyTorch have the memory."""
        if self._latest is not None:
            self._latest.reset()
            self._latest = None


class _Load(NamedTuple):
    """Cache clears that keep the device busy while the host queues the timed launches."""

    before_all: int
    before_each: int


LOADS = (_Load(4, 1), _Load(64, 1), _Load(64, 4))
"""Loads, of which a later one is tried if the device has waited for the host in spite of one.

A clear takes some 0.1 ms, so with the last load a host may need 0.3 ms for a launch.
"""

GRAPH_REPLAYS = 5
"""Replays of a graph of many launches for one timing."""

GRAPH_MILLISECONDS = 0.3
"""Least duration of a graph of launches.

A graph takes 4 us to start, which must not weigh more in a short measurement than in a long one.
"""


CONFIRMATIONS = 2
"""Timings that confirm that a launch is slow: one may have met another process's load."""


class Effort(NamedTuple):
    """The length of a measurement: repetitions that fill some milliseconds, within bounds."""

    milliseconds: float
    least: int
    most: int

    def repetitions(self, estimate: float) -> int:
        """Return the number of launches for an estimated duration of one, in milliseconds."""
        wanted = math.ceil(self.milliseconds / max(estimate, 1e-4))
        return min(max(wanted, self.least), self.most)


SCREENING = Effort(1.5, least=3, most=10)
FULL = Effort(8.0, least=6, most=80)
TURN = Effort(1.5, least=5, most=15)
"""A turn of a race: short, so that one burst of load meets a whole round."""


class Sample(NamedTuple):
    """Durations of single launches, in milliseconds.

    Attributes:
        steady: whether the device never waited for the host in between; else the times may be
            too long.
    """

    times: list[float]
    steady: bool

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Return quantiles of the durations, in milliseconds, interpolated linearly."""
        ordered = sorted(self.times)
        positions = [share * (len(ordered) - 1) for share in shares]
        return [
            ordered[int(position)]
            + (ordered[math.ceil(position)] - ordered[int(position)]) * (position % 1)
            for position in positions
        ]


@dataclass
class _QueuedLaunch:
    """Events around a launch.

    Attributes:
        start: the event before it.
        stop: the event after it.
        in_time: whether the launch was queued before the device reached it.
    """

    start: Any
    stop: Any
    in_time: bool = False

    def end(self) -> None:
        """Note the end of the launch."""
        self.stop.record()
        self.in_time = not self.start.query()

    @property
    def milliseconds(self) -> float:
        return float(self.start.elapsed_time(self.stop))


class DeviceTimer:
    """A benchmark function like Triton's `do_bench`, with an adjustable effort.

    Events around a launch also measure the time in which the device waits for the host. So the
    device gets other work first, and launches that it reached before they were queued do not count.

    Args:
        method: `events-cold`, `events-warm`, `cudagraph-cold` or `cudagraph-warm`.
    """

    def __init__(self, method: str) -> None:
        """Set up a timer for a method."""
        self.by_graph = method.startswith("cudagraph")
        self.cold = method.endswith("-cold")
        self._captures: GraphCapture | None = None

    def __call__(
        self, kernel_call: Callable[[], Any], quantiles: Sequence[float] = (0.5, 0.2, 0.8)
    ) -> list[float]:
        """Return quantiles of a launch's duration, in milliseconds, measured with full effort."""
        return self.sample(kernel_call, FULL).quantiles(quantiles)

    def sample(self, launch: Callable[[], Any], effort: Effort, limit: float = math.inf) -> Sample:
        """Time all that a function does which launches a kernel once, as `sample_part` does."""
        return self.sample_part(time_all(launch), effort, limit)

    def sample_part(self, launch: TimedCall, effort: Effort, limit: float = math.inf) -> Sample:
        """Time the part of a launch that it marks; all of it where it runs in a graph.

        Args:
            launch: launches the kernel once, and calls its arguments around the timed part.
            effort: the length of the measurement.
            limit: milliseconds; a launch that takes longer, three times in a row, is not timed
                further.
        """
        launch(do_nothing, do_nothing)  # loads the binary, and raises at once if it cannot run
        self._device.synchronize()
        first = self._events(launch, 1)
        for _ in range(CONFIRMATIONS):
            if first.times[0] <= limit:
                break
            first = self._events(launch, 1)
        if first.times[0] > limit:
            return first
        repetitions = effort.repetitions(first.times[0])
        if not self.by_graph:
            return self._events(launch, repetitions)
        if self.cold:
            return self._events(time_all(self._graph(launch, 1).replay), repetitions)
        launches = math.ceil(
            max(repetitions / GRAPH_REPLAYS, GRAPH_MILLISECONDS / max(first.times[0], 1e-4))
        )
        replays = self._events(time_all(self._graph(launch, launches).replay), GRAPH_REPLAYS)
        return Sample([time / launches for time in replays.times], replays.steady)

    def warm_up(self) -> None:
        """Keep the device busy for some milliseconds, so that its clock is up."""
        self._clear(256)
        self._device.synchronize()

    def release(self) -> None:
        """Free the memory that clears the L2 cache, and that of graphs."""
        self.__dict__.pop("_cache", None)
        if self._captures is not None:
            self._captures.release()
            self._captures = None

    def _events(self, launch: TimedCall, repetitions: int) -> Sample:
        sample = Sample([], False)
        for load in LOADS:
            sample = self._queue(launch, repetitions, load)
            if sample.steady:
                break
        return sample

    def _queue(self, launch: TimedCall, repetitions: int, load: _Load) -> Sample:
        launches = [
            _QueuedLaunch(
                self._device.Event(enable_timing=True), self._device.Event(enable_timing=True)
            )
            for _ in range(repetitions)
        ]
        self._clear(load.before_all)
        if not self.cold:
            launch(do_nothing, do_nothing)
        for number, queued in enumerate(launches):
            if number % 2:
                self._shift_position()
            launch(partial(self._begin, queued, load.before_each), queued.end)
        self._device.synchronize()
        times = [queued.milliseconds for queued in launches]
        counted = [queued.milliseconds for queued in launches if queued.in_time]
        steady = 2 * len(counted) >= repetitions
        return Sample(counted if steady else times, steady)

    def _shift_position(self) -> None:
        """Give the device one more thing to do, which takes it some two microseconds.

        On an H200, a launch takes half a microsecond longer or less by the number of kernels before
        it, as if kernels were started from a few slots in turn. If all cycles of a timing had an
        even number of kernels, chance would give one config the fast slots and the next one the
        slow ones. Each second cycle has one more, so that a timing goes through all of them: the
        kernel that clears the cache, which is loaded already, on one element.
        """
        self._driver.clear_cache(self._cache[:1])

    def _begin(self, queued: _QueuedLaunch, clears: int) -> None:
        if self.cold:
            self._clear(clears)
        queued.start.record()

    def _graph(self, launch: TimedCall, launches: int) -> Any:
        """Return a graph of launches, which serves until the next one is made."""
        if self._captures is None:
            self._captures = GraphCapture()
        return self._captures.capture(partial(launch, do_nothing, do_nothing), launches)

    @cached_property
    def _driver(self) -> Any:
        from ..triton_internals.versions import driver

        return driver.active

    @cached_property
    def _device(self) -> Any:
        return self._driver.get_device_interface()

    @cached_property
    def _cache(self) -> Any:
        return self._driver.get_empty_cache_for_benchmark()

    def _clear(self, times: int) -> None:
        for _ in range(times):
            self._driver.clear_cache(self._cache)
