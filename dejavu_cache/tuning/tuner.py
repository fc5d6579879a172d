"""Find the best of many configs: compile them together, screen each, race the close ones."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

from ..model.record import Failure, Measurement
from ..model.scenario import Config, now
from ..system.background_threads import WriterThread, uninterrupted
from ..system.notices import logger, warn_once, whoami
from ..triton_internals.config_names import DeclaredConfigs
from .benchmark_methods import quantiles_of
from .compile_ahead import (
    Candidate,
    compile_ahead,
    compile_failure_of,
    device_failure_of,
    failed_measurement,
    failure_of,
    forget_frames,
    is_out_of_memory,
    threads_for,
)
from .device_timer import SCREENING, DeviceTimer, Effort, do_nothing
from .race import HOPELESS, Race
from .search import OptunaSearch

__all__ = [
    "CandidateLaunch",
    "MeasurementWriter",
    "Tuner",
    "call_with_memory",
    "progress_lines",
]


Result = TypeVar("Result")


def call_with_memory(call: Callable[[], Result], timer: DeviceTimer | None = None) -> Result:
    """Return what a call returns; if the device has no memory left, free some and call again.

    PyTorch keeps the memory of tensors that are gone. The driver, which loads binaries, cannot have
    it, and neither can a graph while it is captured.

    Args:
        call: the call.
        timer: holds memory that the second call can do without.

    Raises:
        Exception: what the second call raises, or the first one for another reason.
    """
    try:
        return call()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    import torch

    if timer is not None:
        timer.release()
    torch.cuda.empty_cache()
    return call()


LINE_EVERY = 10.0
"""Seconds between two lines in the log."""


def progress_lines(title: str, total: int) -> Callable[[], None]:
    """Return a function to call after each step, which logs now and then how far a tune is."""
    start, done, lines = time.monotonic(), 0, 0

    def advance() -> None:
        nonlocal done, lines
        done += 1
        seconds = time.monotonic() - start
        if seconds // LINE_EVERY > lines:
            lines = int(seconds // LINE_EVERY)
            logger.info("tuning %s: %d of %d configs after %.0f s", title, done, total, seconds)

    return advance


PATIENCE = 40.0
"""Seconds that a tune waits for its store, whose locks are waited for 30 s."""


class MeasurementWriter(WriterThread[Measurement]):
    """Passes measurements to a function in a thread, so that no benchmark waits for a disk.

    Measurements that arrive while the function runs are passed on together.

    Args:
        keep: is called with measurements; `drain` raises its errors.
    """

    def __init__(self, keep: Callable[[Sequence[Measurement]], None]) -> None:
        """Begin without a measurement."""
        super().__init__("dejavu-cache writer")
        self._keep = keep
        self._error: Exception | None = None

    def drain(self) -> None:
        """Wait until all measurements have been passed on."""
        self.finish(PATIENCE)
        if not self.is_done:
            logger.warning(
                "measurements are not written: the store has not answered for %g s", PATIENCE
            )
        if self._error is not None:
            raise self._error

    def write(self, items: list[Measurement]) -> None:
        """Pass measurements on; the later of two of one config counts."""
        latest = {measurement.config: measurement for measurement in items}
        try:
            with uninterrupted():
                self._keep(list(latest.values()))
        except Exception as error:
            self._error = error


QUIET = 4
"""Concurrent compilations that do not disturb a measurement.

Each holds the interpreter's lock for about a tenth of its time.
"""

TOGETHER = 64
"""Configs that are compiled together; some of them in vain where a budget of time ends."""


class CandidateLaunch(NamedTuple):
    """The launch for which configs are measured.

    Attributes:
        autotuner: a `triton.runtime.Autotuner` whose `nargs` are this launch's.
        declared: its configs, by their descriptions in records.
        default: the config that runs without a record; it takes part in every race.
        args: the positional arguments.
        kwargs: the keyword arguments, `grid` and `warmup` included.
    """

    autotuner: Any
    declared: DeclaredConfigs
    default: Config
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @contextmanager
    def launched(
        self,
        config: Any,
        begin: Callable[[], object] = do_nothing,
        end: Callable[[], object] = do_nothing,
    ) -> Iterator[None]:
        """Launch a `triton.Config` with all hooks; its results stand while the context is open.

        The autotuner's hooks, which save, zero and restore arguments, run at benchmarks alone, and
        their time would hide the difference of two short configs. So only what an ordinary launch
        runs is between `begin` and `end`. A hook that restores arguments would erase the results,
        so it runs when the context ends; any other one may complete them, so it runs before.
        """
        autotuner = self.autotuner
        current = {**self.kwargs, **config.all_kwargs()}
        arguments = {**autotuner.nargs, **current}
        autotuner.pre_hook(arguments)
        begin()
        try:
            if config.pre_hook is not None:
                config.pre_hook(arguments)
            autotuner.fn.run(*self.args, **current)
        except Exception as error:
            autotuner.post_hook(arguments, exception=error)
            raise
        end()
        if not autotuner.restore_value:
            autotuner.post_hook(arguments, exception=None)
        try:
            yield
        finally:
            if autotuner.restore_value:
                autotuner.post_hook(arguments, exception=None)


class Tuner:
    """Measures a launch's configs as Triton's own `Autotuner._bench` does, hooks and all.

    On a device, the configs compile in the background. Each is screened when it is ready, and those
    close to the best are compared again, as `Race` describes. A caller's own benchmark is
    called once per config, one after the other.

    Args:
        launch: the launch to tune.
        keep: is called with each measurement, and again with those that a race has refined.
        around: returns a context that is open while a config may touch the device. It is opened for
            the default config before all others, as soon as that is compiled, and closed again.
        race: whether close configs may be measured again.
        until: when to stop, in seconds of `time.monotonic`.
        earlier: measurements of a tune that ended before its race; they take part in this one.
    """

    def __init__(
        self,
        launch: CandidateLaunch,
        keep: Callable[[Sequence[Measurement]], None],
        *,
        race: bool = True,
        until: float = math.inf,
        around: Callable[[Config], AbstractContextManager[None]] = lambda config: nullcontext(),
        earlier: Iterable[Measurement] = (),
    ) -> None:
        """Set up the tuner; the arguments are described at the class."""
        self._launch = launch
        self._keep = keep
        self._race = race
        self._until = until
        self._around = around
        self._benchmark = launch.autotuner.do_bench
        self._timer = self._benchmark if isinstance(self._benchmark, DeviceTimer) else None
        self._measured: dict[Config, Measurement] = {}
        self._tried: set[Config] = set()
        self._earlier = {one.config: one for one in earlier if one.config in launch.declared}
        times = [one.median for one in self._earlier.values() if one.median is not None]
        self._best = min(times, default=math.inf)

    def tune(self, configs: Sequence[Config], search: OptunaSearch | None = None) -> int:
        """Measure configs and race the best; return how many were measured.

        Args:
            configs: the configs to measure, in order.
            search: proposes configs in place of these.
        """
        try:
            if self._timer is not None:
                try:
                    self._timer.warm_up()
                except Exception as error:
                    # Without memory every config fails likewise and is recorded as skipped.
                    if not is_out_of_memory(error):
                        raise
            if search is None:
                for start in range(0, len(configs), TOGETHER):
                    self._screen(configs[start : start + TOGETHER])
            while search is not None and not self._must_stop and (proposed := search.ask()):
                before = len(self._measured)
                self._screen(proposed)
                search.tell(list(self._measured.values())[before:])
            if self._race:
                self._best = math.inf  # No timing is cut short: all of these configs are fast.
                screened = {**self._earlier, **self._measured}
                race = Race(screened, self._launch.default, self._measure, self._until)
                if refined := race.run():
                    self._keep(refined)
        finally:
            if self._timer is not None:
                self._timer.release()
        return len(self._tried)

    @property
    def _must_stop(self) -> bool:
        """Whether the time is over, and has sufficed for a config."""
        return time.monotonic() > self._until and bool(self._measured)

    def _screen(self, configs: Sequence[Config]) -> None:
        """Measure each config shortly, in the order in which they are compiled.

        The first one is measured even if the time is over.
        """
        launch = self._launch
        declared = [launch.declared[config] for config in configs]
        first = launch.declared[launch.default]
        with compile_ahead(launch.autotuner, declared, launch.args, launch.kwargs, first) as begun:
            waiting = dict(zip(configs, begun, strict=True))
            if launch.default in waiting:
                waiting[launch.default].finish()
                with self._around(launch.default):
                    pass  # what is expected of the others may be computed while these compile
            while waiting and not self._must_stop:
                # Measure the first one that is compiled, once few compilers may disturb that.
                self._wait_for_compilers(waiting, QUIET if self._timer else 0)
                compiled = (config for config, candidate in waiting.items() if candidate.is_done)
                config = next(compiled, next(iter(waiting)))
                disturbed = _count_compiling(waiting) > 0
                candidate = waiting.pop(config)
                measurement = self._screen_config(config, candidate, patient=not disturbed)
                if measurement is not None:
                    self._note(measurement)
                else:  # disturbed: measure it again when the compilers are done
                    waiting[config] = candidate
                    self._wait_for_compilers(waiting, 0)

    def _wait_for_compilers(self, waiting: Mapping[Config, Candidate], most: int) -> None:
        """Wait until at most so many threads compile, or the time is over."""
        while _count_compiling(waiting) > most and not self._must_stop:
            time.sleep(0.005)

    def _screen_config(
        self, config: Config, candidate: Candidate, *, patient: bool
    ) -> Measurement | None:
        start = time.perf_counter()
        with self._around(config):
            try:
                call_with_memory(candidate.check)
            except Exception as error:
                self._run_hooks_around(config, error)
                failure = compile_failure_of(error, self._options_passed(config))
                if failure is None:
                    raise
                forget_frames(error)
                self._tried.add(config)
                return failed_measurement(config, failure, time.perf_counter() - start)
            return self._time(config, SCREENING, patient=patient)

    def _options_passed(self, config: Config) -> set[str]:
        """Return the launch's keywords that are neither parameters nor the config's."""
        launch = self._launch
        known = {*launch.autotuner.arg_names, *launch.declared[config].all_kwargs()}
        return set(launch.kwargs) - known - {"grid", "warmup"}

    def _run_hooks_around(self, config: Config, error: Exception) -> None:
        """Run the user's hooks as Triton does around a launch that raises."""
        launch, autotuner = self._launch, self._launch.autotuner
        if autotuner.user_defined_pre_hook or autotuner.user_defined_post_hook:
            values = launch.declared[config].all_kwargs()
            arguments = {**autotuner.nargs, **launch.kwargs, **values}
            autotuner.pre_hook(arguments)
            autotuner.post_hook(arguments, exception=error)

    def _note(self, measurement: Measurement) -> None:
        self._measured[measurement.config] = measurement
        if measurement.median is not None:
            self._best = min(self._best, measurement.median)
        if measurement.skipped and measurement.failure is not None:
            warn_once(
                f"memory {measurement.config}",
                f"({measurement.config}) is skipped for now: {measurement.failure.reason}",
            )
        self._keep([measurement])

    def _measure(self, config: Config, effort: Effort) -> Measurement | None:
        """Measure a config that is compiled, or that its launch compiles."""
        with self._around(config):
            return self._time(config, effort)

    def _time(self, config: Config, effort: Effort, *, patient: bool = True) -> Measurement | None:
        """Measure one config; return None if it was disturbed and the caller is not `patient`."""
        self._tried.add(config)
        start = time.perf_counter()
        try:
            if self._timer is None:
                timing = self._call_benchmark(config)
            elif (timing := self._sample(self._timer, config, effort, patient)) is None:
                return None
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                if (crash := device_failure_of(error)) is not None:
                    self._keep([failed_measurement(config, crash)])
                raise
            forget_frames(error)
            return failed_measurement(config, failure, time.perf_counter() - start)
        outcome, seconds = quantiles_of(timing), time.perf_counter() - start
        if isinstance(outcome, Failure):
            return failed_measurement(config, outcome, seconds)
        median, p20, p80 = outcome
        return Measurement(
            config=config,
            median=median,
            p20=p20,
            p80=p80,
            at=now(),
            by=whoami(),
            seconds=round(seconds, 3),
        )

    def _sample(
        self, timer: DeviceTimer, config: Config, effort: Effort, patient: bool
    ) -> list[float] | None:
        """Time a launch on the device; return None if that was disturbed."""

        def launch(begin: Callable[[], object], end: Callable[[], object]) -> None:
            with self._launch.launched(self._launch.declared[config], begin, end):
                pass

        limit = self._best * HOPELESS
        sample = call_with_memory(lambda: timer.sample_part(launch, effort, limit), timer)
        return sample.quantiles((0.5, 0.2, 0.8)) if patient or sample.steady else None

    def _call_benchmark(self, config: Config) -> Any:
        """Return what the caller's benchmark returns for a config; raise what it raises.

        Triton turns some errors into an infinite time; only here can their reason be seen.
        """
        launch, autotuner = self._launch, self._launch.autotuner
        raised: list[Exception] = []

        def call(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> Any:
            try:
                return self._benchmark(kernel_call, quantiles=quantiles)
            except Exception as error:
                raised.append(error)
                raise

        autotuner.do_bench = call
        try:
            timing = autotuner._bench(*launch.args, config=launch.declared[config], **launch.kwargs)
        except Exception:
            raised.clear()  # an error that is kept here would keep this frame, and itself
            raise
        finally:
            autotuner.do_bench = self._benchmark
        if raised:
            raise raised.pop()
        return timing


def _count_compiling(waiting: Mapping[Config, Candidate]) -> int:
    """Return how many threads compile."""
    return min(
        sum(not candidate.is_done for candidate in waiting.values()), threads_for(len(waiting))
    )
