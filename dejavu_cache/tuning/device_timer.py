"""Time a launch on the device: by events or CUDA graphs, with a cold or a warm L2 cache."""

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from time import perf_counter
from typing import Any, NamedTuple


class TimedLaunch:
    """A call of which all is timed; derived classes have parts before and after that are not.

    Attributes:
        estimate: milliseconds that it takes; None before it was timed.
        graph: replays a graph of such launches, and their number; None before one is captured.
    """

    estimate: float | None = None
    graph: tuple[Callable[[], object], int] | None = None

    def __init__(self, call: Callable[[], object]) -> None:
        """Call nothing yet."""
        self.run = call

    def begin(self) -> None:
        """Do what precedes the timed part."""

    def end(self) -> None:
        """Do what follows the timed part."""

    def __call__(self) -> None:
        """Run all parts."""
        self.begin()
        self.run()
        self.end()


class GraphCapture:
    """A stream on which graphs of the current device are captured, and the latest one of them.

    PyTorch frees the memory of a graph that is gone only where an allocation fails, and never
    during a capture: graphs with memory of their own would fill the device. They share the memory
    as long as one of them exists, so the latest one is kept. They run one at a time, and each
    writes what it reads of that memory.
    """

    def __init__(self) -> None:
        """Take a stream of the current device."""
        import torch  # here, since a program that never tunes need not wait for it

        self._stream = torch.cuda.Stream()
        self._latest: Any = None

    def capture(self, launch: TimedLaunch, times: int) -> Any:
        """Capture launches in a graph, without the garbage collection of `torch.cuda.graph`.

        Raises:
            Exception: what the launch raises, and what PyTorch does where it cannot be captured.
        """
        import torch

        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            launch()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            pool = None if self._latest is None else self._latest.pool()
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                for _ in range(times):
                    launch()
            except BaseException:
                with suppress(RuntimeError):
                    self._end(graph)
                graph.reset()
                raise
            self._end(graph)
        torch.cuda.current_stream().wait_stream(self._stream)
        self._latest = graph
        return graph

    def _end(self, graph: Any) -> None:
        """End a capture; after a failure, leave the memory that PyTorch may still take for its."""
        try:
            graph.capture_end()
        except RuntimeError:
            graph.reset()
            self._latest = None
            raise


LOADS = ((4, 1), (64, 1), (64, 4))
"""Cache clears before all launches and before each, which keep the device busy while the host
queues those. Later loads are tried if the device has waited in spite of one. A clear takes some
0.1 ms, so with the last load a host may need 0.3 ms for a launch."""

GRAPH_REPLAYS = 5
"""Most replays of a graph of launches for one timing."""

GRAPH_MILLISECONDS = 0.3
"""Least duration of a graph of launches.

A graph takes 4 us to start, which must not weigh more in a short measurement than in a long one.
"""


CONFIRMATIONS = 2
"""Timings that confirm that a launch is slow: one may have met another process's load."""

UNGRAPHED = 2.0
"""Milliseconds from which a launch is timed without a graph, which saves some microseconds, and
without another launch before, which fills the cache in some twenty."""

SAME = 0.15
"""Share by which a launch's time may change from one timing to the next before it gets another
graph: the shorter a launch, the more of them share what a graph takes to start."""

LONG = 16.0
"""Milliseconds at which a launch needs half of the repetitions of a short one: what disturbs the
device is averaged within it."""


class Effort(NamedTuple):
    """The length of a measurement: repetitions that fill some milliseconds, within bounds.

    The least is that of short launches; the longer one takes, the fewer need to be timed.
    """

    milliseconds: float
    least: int
    most: int

    def repetitions(self, estimate: float) -> int:
        """Return the number of launches for an estimated duration of one, in milliseconds."""
        wanted = math.ceil(self.milliseconds / max(estimate, 1e-4))
        least = math.ceil(self.least / (1 + estimate / LONG))
        return min(max(wanted, least), self.most)


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


class DeviceTimer:
    """A benchmark function like Triton's `do_bench`, with an adjustable effort.

    Its method is `events-cold`, `events-warm`, `cudagraph-cold` or `cudagraph-warm`. Events around
    a launch also measure the time in which the device waits for the host. So the device gets other
    work first, and launches that it reached before they were queued do not count.
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
        return self.sample(TimedLaunch(kernel_call), FULL).quantiles(quantiles)

    def sample(self, launch: TimedLaunch, effort: Effort, limit: float = math.inf) -> Sample:
        """Time a launch: its timed part, or all of it where it runs in a graph, which it keeps.

        One that takes longer than a limit of milliseconds, three times in a row, is not timed
        further.
        """
        timed = TimedLaunch(launch) if self.by_graph else launch  # a graph has all parts
        sample = Sample([], True)
        if (expected := launch.estimate) is None:
            sample = self._first(launch, timed, limit)
            if (expected := sample.times[0]) > limit:
                return sample
        repetitions = effort.repetitions(expected)
        if expected > UNGRAPHED:
            more = self._events(timed, repetitions - len(sample.times), warms=False)
            sample = Sample([*sample.times, *more.times], sample.steady and more.steady)
        elif self.by_graph:
            sample = self._in_graph(launch, repetitions, max(expected, 1e-4))
        else:
            sample = self._events(launch, repetitions)
        launch.estimate = statistics.median(sample.times)
        if abs(launch.estimate - expected) > SAME * expected:
            launch.graph = None
        return sample

    def _first(self, launch: TimedLaunch, timed: TimedLaunch, limit: float) -> Sample:
        """Load a launch's binary and time it once, and again where it exceeds the limit."""
        start = perf_counter()
        launch()  # raises at once if it cannot run
        self._device.synchronize()
        sample = self._events(timed, 1, warms=perf_counter() - start < UNGRAPHED / 1e3)
        for _ in range(CONFIRMATIONS):
            if sample.times[0] <= limit:
                break
            sample = self._events(timed, 1, warms=sample.times[0] < UNGRAPHED)
        return sample

    def _in_graph(self, launch: TimedLaunch, repetitions: int, expected: float) -> Sample:
        """Time replays of a launch's graph, which is captured first if it has none."""
        if launch.graph is None:
            share = max(repetitions / GRAPH_REPLAYS, GRAPH_MILLISECONDS / expected)
            count = 1 if self.cold else math.ceil(share)
            self._captures = self._captures or GraphCapture()
            launch.graph = self._captures.capture(launch, count).replay, count
        replay, count = launch.graph
        most = repetitions if self.cold else min(GRAPH_REPLAYS, repetitions)
        sample = self._events(TimedLaunch(replay), most)
        return Sample([time / count for time in sample.times], sample.steady)

    def warm_up(self) -> None:
        """Keep the device busy for some milliseconds, so that its clock is up."""
        self._clear(256)
        self._device.synchronize()

    def release(self) -> None:
        """Free the memory that clears the L2 cache, and that of graphs that no launch keeps."""
        self.__dict__.pop("_cache", None)
        self._captures = None

    def _events(self, launch: TimedLaunch, repetitions: int, warms: bool = True) -> Sample:
        sample = Sample([], False)
        for load in LOADS:
            sample = self._queue(launch, repetitions, load, warms)
            if sample.steady:
                break
        return sample

    def _queue(
        self, launch: TimedLaunch, repetitions: int, load: tuple[int, int], warms: bool
    ) -> Sample:
        """Queue launches between events; those count that the device reached after that."""
        new_event = partial(self._device.Event, enable_timing=True)
        events = [(new_event(), new_event()) for _ in range(repetitions)]
        in_time, stream = [], self._device.current_stream()
        before_all, before_each = load
        self._clear(before_all)
        if warms and not self.cold:
            launch()
        for number, (start, stop) in enumerate(events):
            if number % 2:
                self._shift_position()
            launch.begin()
            if self.cold:
                self._clear(before_each)
            start.record(stream)
            launch.run()
            stop.record(stream)
            in_time.append(not start.query())
            launch.end()
        self._device.synchronize()
        times = [float(start.elapsed_time(stop)) for start, stop in events]
        counted = [time for time, is_in_time in zip(times, in_time, strict=True) if is_in_time]
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
