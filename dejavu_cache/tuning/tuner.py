"""Find the best of many configs: compile them together, screen each, race the close ones.

Meanwhile a thread records the measurements, and long tunes show how far they are.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import TracebackType
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
    is_repeatable,
    threads_for,
)
from .device_timer import FULL, SCREENING, DeviceTimer, Effort, Sample, keep_restoring_out
from .race import HOPELESS, Race
from .search import Search

__all__ = [
    "CandidateLaunch",
    "MeasurementWriter",
    "Tuner",
    "call_with_memory",
    "progress",
]


Result = TypeVar("Result")


def call_with_memory(
    call: Callable[[], Result], release: Callable[[], object] = lambda: None
) -> Result:
    """Return what a call returns; if the device has no memory left, free some and call again.

    PyTorch keeps the memory of tensors that are gone. The driver, which loads binaries, cannot have
    it, and neither can a graph while it is captured.

    Args:
        call: the call.
        release: gives up memory of the caller's own that the second call can do without.

    Raises:
        Exception: what the second call raises, or the first one for another reason.
    """
    try:
        return call()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    import torch

    release()
    torch.cuda.empty_cache()
    return call()


SHOWN_AFTER = 2.0
"""Seconds until the bar appears."""


LINE_EVERY = 10.0
"""Seconds between two lines in the log."""


@contextmanager
def progress(
    title: str, total: int, *, unit: str = "configs", wanted: bool = True
) -> Iterator[Callable[[], None]]:
    """Show a bar on standard error once two seconds are over; log lines if that is no terminal.

    Args:
        title: the text beside the bar.
        total: the number of steps.
        unit: what the steps are.
        wanted: whether to show progress at all.

    Yields:
        A function to call after each step.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    start, done, lines = time.monotonic(), 0, 0
    bar: Any = None

    def advance() -> None:
        nonlocal done, lines, bar
        done += 1
        seconds = time.monotonic() - start
        if is_terminal and seconds > SHOWN_AFTER:
            bar = bar or _bar(title, total)
            bar.update(bar.task_ids[0], completed=min(done, total))
        elif not is_terminal and seconds // LINE_EVERY > lines:
            lines = int(seconds // LINE_EVERY)
            logger.info("tuning %s: %d of %d %s after %.0f s", title, done, total, unit, seconds)

    try:
        yield advance if wanted else lambda: None
    finally:
        if bar is not None:
            bar.stop()


def _bar(title: str, total: int) -> Any:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    bar.add_task(f"tuning {escape(title)}", total=total)
    bar.start()
    return bar


PATIENCE = 40.0
"""Seconds that a tune waits for its store, whose locks are waited for 30 s.

It would wait for ever where an interrupted launch has left a lock of a library taken.
"""


class MeasurementWriter(WriterThread[Measurement]):
    """Passes measurements to a function in a thread, so that no benchmark waits for a disk.

    Measurements that arrive while the function runs are passed on together. At the end of the
    `with` block, all of them have been.

    Args:
        keep: is called with measurements; its errors are raised at the end of the `with` block.
    """

    def __init__(self, keep: Callable[[Sequence[Measurement]], None]) -> None:
        """Begin without a measurement."""
        super().__init__("dejavu-cache writer")
        self._keep = keep
        self._error: Exception | None = None

    def __call__(self, measurement: Measurement) -> None:
        """Pass a measurement on soon."""
        self.add(measurement)

    def drain(self) -> None:
        """Wait until all measurements have been passed on."""
        self.finish(PATIENCE)

    def __enter__(self) -> MeasurementWriter:
        """Begin; a thread starts with the first measurement."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Pass on what is left, and raise the function's error unless the block has raised one."""
        self.drain()
        if not self.is_done:
            logger.warning(
                "measurements are not written: the store has not answered for %g s", PATIENCE
            )
        if self._error is not None and error is None:
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


class Tuner:
    """Measures a launch's configs by Triton's own `Autotuner._bench`, hooks and all.

    On a device, the configs compile in the background. Each is screened when it is ready, and those
    close to the best are compared again, as `Race` describes. A caller's own benchmark is
    called once per config, one after the other.

    Args:
        launch: the launch to tune.
        keep: is called with each measurement, and again when a race has refined it.
        around: returns a context that is open while a config may touch the device. It is opened for
            the default config before all others, as soon as that is compiled, and closed again.
        race: whether close configs may be measured again.
        until: when to stop, in seconds of `time.monotonic`.
        earlier: measurements of a tune that ended before its race; they take part in this one.
    """

    def __init__(
        self,
        launch: CandidateLaunch,
        keep: Callable[[Measurement], None],
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
        self._benchmarked: set[Config] = set()
        self._earlier = {
            measurement.config: measurement
            for measurement in earlier
            if measurement.config in launch.declared
        }
        earlier_times = (measurement.median for measurement in self._earlier.values())
        self._best = min((time for time in earlier_times if time is not None), default=math.inf)

    def tune(self, search: Search) -> int:
        """Measure what a search proposes and race the best; return how many were measured."""
        self._warm_up()
        try:
            while not self._must_stop and (configs := search.ask()):
                before = len(self._measured)
                for start in range(0, len(configs), TOGETHER):
                    self._screen(configs[start : start + TOGETHER])
                search.tell(list(self._measured.values())[before:])
            if self._race:
                self._compare_finalists()
        finally:
            self._release()
        return len(self._launched_configs)

    def remeasure(self, config: Config) -> None:
        """Measure one config with full effort."""
        self._warm_up()
        try:
            measurement = self._measure(config, FULL)
        finally:
            self._release()
        if measurement is not None:
            self._note(measurement)

    @property
    def _launched_configs(self) -> set[Config]:
        """Configs that this process has measured, or tried to."""
        return {*self._measured, *self._benchmarked}

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self._until

    @property
    def _must_stop(self) -> bool:
        """Whether the time is over, and has sufficed for a config."""
        return self._is_over and bool(self._measured)

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.release()

    def _warm_up(self) -> None:
        if self._timer is not None:
            try:
                self._timer.warm_up()
            except Exception as error:
                # Without memory every config fails likewise and is recorded as skipped.
                if not is_out_of_memory(error):
                    raise

    def _screen(self, configs: Sequence[Config]) -> None:
        """Measure each config shortly, in the order in which they are compiled.

        The first one is measured even if the time is over. A compilation that fails is repeated at
        the end, since its failure may be the machine's.
        """
        failed: list[Config] = []

        def note_unless_repeatable(measurement: Measurement) -> None:
            if is_repeatable(measurement.failure):
                failed.append(measurement.config)
            else:
                self._note(measurement)

        self._screen_once(configs, note_unless_repeatable)
        self._screen_once(failed, self._note)

    def _screen_once(self, configs: Sequence[Config], note: Callable[[Measurement], None]) -> None:
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
                config = self._next_compiled(waiting)
                disturbed = _count_compiling(waiting) > 0
                candidate = waiting.pop(config)
                measurement = self._screen_config(config, candidate, patient=not disturbed)
                if measurement is not None:
                    note(measurement)
                else:  # disturbed: measure it again when the compilers are done
                    waiting[config] = candidate
                    self._wait_for_compilers(waiting, 0)

    def _next_compiled(self, waiting: Mapping[Config, Candidate]) -> Config:
        """Return the first compiled config, once the compilers no longer disturb a measurement."""
        self._wait_for_compilers(waiting, QUIET if self._timer else 0)
        compiled = (config for config, candidate in waiting.items() if candidate.is_done)
        return next(compiled, next(iter(waiting)))

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
        self._best = min(self._best, math.inf if measurement.median is None else measurement.median)
        if measurement.skipped:
            warn_once(
                f"memory {measurement.config}",
                f"({measurement.config}) is skipped for now: {_reason(measurement)}",
            )
        self._keep(measurement)

    def _compare_finalists(self) -> None:
        """Compare the fast configs again, with those of an earlier tune, and keep the outcome."""
        self._best = math.inf  # No timing is cut short: all of these configs are fast.
        race = Race(
            {**self._earlier, **self._measured},
            self._launch.default,
            self._measure,
            prepare=self._compile,
            is_over=lambda: self._is_over,
        )
        for measurement in race.run():
            self._keep(measurement)

    def _compile(self, configs: Sequence[Config]) -> None:
        """Compile the configs that only an earlier process has launched."""
        launch, launched = self._launch, self._launched_configs
        new = [config for config in configs if config not in launched]
        declared = [launch.declared[config] for config in new]
        with compile_ahead(launch.autotuner, declared, launch.args, launch.kwargs) as candidates:
            for config, candidate in zip(new, candidates, strict=True):
                with self._around(config):
                    candidate.finish()

    def _measure(self, config: Config, effort: Effort) -> Measurement | None:
        """Measure a config that is compiled, or that its launch compiles."""
        with self._around(config):
            return self._time(config, effort)

    def _time(self, config: Config, effort: Effort, *, patient: bool = True) -> Measurement | None:
        """Measure one config; return None if it was disturbed and the caller is not `patient`."""
        self._benchmarked.add(config)
        start = time.perf_counter()
        outcome = self._run_benchmark(config, effort, patient)
        seconds = time.perf_counter() - start
        return None if outcome is None else _measurement(config, outcome, seconds)

    def _run_benchmark(self, config: Config, effort: Effort, patient: bool) -> Any:
        """Return the quantiles or the failure; None if the benchmark was disturbed."""
        raised: list[Exception] = []
        samples: list[Sample] = []
        launch, timing = self._launch, None
        autotuner = launch.autotuner
        arguments = {**autotuner.nargs, **launch.kwargs, **launch.declared[config].all_kwargs()}

        def measure_call(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> Any:
            # Triton turns some errors into an infinite time; only here can their reason be seen.
            try:
                if self._timer is None:
                    return self._benchmark(kernel_call, quantiles=quantiles)
                with keep_restoring_out(autotuner, kernel_call, arguments) as timed:
                    limit = self._best * HOPELESS
                    sample_part = partial(self._timer.sample_part, timed, effort, limit)
                    samples.append(call_with_memory(sample_part, self._timer.release))
                return samples[-1].quantiles(quantiles)
            except Exception as error:
                raised.append(error)
                raise

        autotuner.do_bench = measure_call
        try:
            timing = autotuner._bench(*launch.args, config=launch.declared[config], **launch.kwargs)
        except Exception as error:
            raised.append(error)
        finally:
            autotuner.do_bench = self._benchmark
        if raised:
            return self._failure_or_raise(config, raised)
        return quantiles_of(timing) if patient or not samples or samples[-1].steady else None

    def _failure_or_raise(self, config: Config, raised: list[Exception]) -> Failure:
        """Return the failure to record for the last error, or raise it; keep one of the device.

        The errors are taken out of the list: they have passed the frame that holds it.
        """
        error = raised[-1]
        raised.clear()
        failure = failure_of(error)
        if failure is not None:
            forget_frames(error)
            return failure
        crash = device_failure_of(error)
        if crash is not None:
            self._keep(failed_measurement(config, crash))
        try:
            raise error
        finally:
            del error


def _reason(measurement: Measurement) -> str:
    return measurement.failure.reason if measurement.failure else ""


def _count_compiling(waiting: Mapping[Config, Candidate]) -> int:
    """Return how many threads compile."""
    return min(
        sum(not candidate.is_done for candidate in waiting.values()), threads_for(len(waiting))
    )


def _measurement(config: Config, outcome: Any, seconds: float) -> Measurement:
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
