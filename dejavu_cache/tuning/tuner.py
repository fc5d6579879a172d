"""Find the best of many configs: compile them together, screen each, race the close ones."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from ..model.record import Failure, Measurement, Resources
from ..model.scenario import Config, now
from ..system.background_threads import dropping_errors
from ..system.notices import warn_once, whoami
from ..triton_internals.config_names import DeclaredConfigs
from .benchmark_methods import Quantiles, quantiles_of
from .compile_ahead import (
    Candidate,
    compile_ahead,
    compile_failure_of,
    failed_measurement,
    failure_of,
    forget_frames,
    is_out_of_memory,
    threads_for,
)
from .device_timer import SCREENING, TURN, DeviceTimer, Effort, TimedLaunch
from .expected_results import load_comparison
from .measurement_marks import MeasurementMark
from .race import HOPELESS, Race
from .search import PredictedSearch

if TYPE_CHECKING:
    from .result_check import ResultCheck

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

    def programs_of(self, config: Config) -> int | None:
        """Return how many programs a launch of a config runs; None where only a launch can tell."""
        return ConfigLaunch(self, self.declared[config]).programs


class ConfigLaunch(TimedLaunch):
    """A launch with one `triton.Config`, all hooks included.

    The autotuner's hooks, which save, zero and restore arguments, run at benchmarks alone, and
    their time would hide the difference of two short configs. So only what an ordinary launch runs
    is timed.
    """

    def __init__(self, launch: CandidateLaunch, config: Any) -> None:
        """Launch nothing yet."""
        self._autotuner, self.config, self._args = launch.autotuner, config, launch.args
        self._current = {**launch.kwargs, **config.all_kwargs()}
        self._named = {**launch.autotuner.nargs, **self._current}
        self._kernel: Any = None

    def begin(self) -> None:
        """Run the hooks that precede a benchmark's launch."""
        self._autotuner.pre_hook(self._named)

    def run(self) -> None:
        """Launch as a program does."""
        if self.config.pre_hook is not None:
            self.config.pre_hook(self._named)
        self._launch()

    def end(self, error: Exception | None = None) -> None:
        """Run the hooks that follow a benchmark's launch."""
        self._autotuner.post_hook(self._named, exception=error)

    @property
    def programs(self) -> int | None:
        """The programs of the grid; None where it cannot be told without a launch."""
        grid = self._current.get("grid")
        with dropping_errors():  # whatever it raises, the launch raises too
            sizes: Any = grid(dict(self._named)) if callable(grid) else grid
            return max(math.prod(map(int, sizes)), 0)
        return None

    @property
    def resources(self) -> Resources | None:
        """What the launch takes of the GPU; None where the compiler does not say."""
        kernel, metadata = self._kernel, getattr(self._kernel, "metadata", None)
        with suppress(ValidationError):
            return Resources(
                programs=self.programs,
                registers=getattr(kernel, "n_regs", None),
                spills=getattr(kernel, "n_spills", None),
                shared=getattr(metadata, "shared", None),
            )
        return None

    def __call__(self) -> None:
        """Launch as Triton does at a benchmark: the config's hook comes before the autotuner's."""
        if self.config.pre_hook is not None:
            self.config.pre_hook(self._named)
        self.begin()
        self._launch()
        self.end()

    def _launch(self) -> None:
        try:
            self._kernel = self._autotuner.fn.run(*self._args, **self._current)
        except Exception as error:
            self.end(error)
            raise


@dataclass(eq=False)
class Tuner:
    """Measures a launch's configs as Triton's own `Autotuner._bench` does, hooks and all.

    On a device, the configs compile in the background. Each is screened when it is ready, and those
    close to the best are compared again, as `Race` describes. A caller's own benchmark is
    called once per config, one after the other, and again only where the machine lacked something.

    Args:
        mark: says which config touches the device.
        check: computes what is expected of the others as soon as the default config is compiled.
        until: when to stop, in seconds of `time.monotonic`.
        loss: the share by which the race's winner may be slower than another config.
        earlier: measurements of a tune that ended before its race; they take part in this one.

    Attributes:
        tried: the configs that were measured.
    """

    launch: CandidateLaunch
    mark: MeasurementMark
    check: ResultCheck | None = None
    until: float = math.inf
    loss: float = 0.0
    earlier: Iterable[Measurement] = ()
    tried: set[Config] = field(default_factory=set, init=False)
    _launches: dict[Config, ConfigLaunch] = field(default_factory=dict, init=False)
    _measured: dict[Config, Measurement] = field(default_factory=dict, init=False)
    _timer: DeviceTimer | None = field(default=None, init=False)
    _best: float = field(default=math.inf, init=False)
    _since: float = field(default_factory=time.perf_counter, init=False)

    def tune(
        self, configs: Sequence[Config], search: PredictedSearch | None = None
    ) -> Iterator[list[Measurement]]:
        """Measure configs, or those that a search proposes in their place, and race the best.

        Yields:
            Measurements, each of which replaces what was yielded of its config before.
        """
        benchmark, screened = self.launch.autotuner.do_bench, dict[Config, Measurement]()
        self._timer = benchmark if isinstance(benchmark, DeviceTimer) else None
        for measurement in self.earlier:
            if measurement.config in self.launch.declared:
                screened[measurement.config] = measurement
                self._best = min(self._best, measurement.median or math.inf)
        try:
            begun = 0
            while batch := search.ask() if search else configs[begun : begun + TOGETHER]:
                begun += len(batch)
                for measurement in self._screen(batch):
                    yield [measurement]
                    if search is not None:
                        search.tell([measurement])
                if self._must_stop:
                    break
            if self._timer is not None:
                self._best = math.inf  # No timing is cut short: all of these configs are fast.
                screened |= self._measured
                race = Race(screened, self.launch.default, self.until, self.loss)
                for config in race.turns():
                    race.note(self._measure(config, TURN))
                if refined := race.conclude():
                    yield refined
        finally:
            if self._timer is not None:
                self._timer.release()

    @property
    def _must_stop(self) -> bool:
        """Whether the time is over, and has sufficed for a config."""
        return time.monotonic() > self.until and bool(self._measured)

    def _screen(self, configs: Sequence[Config]) -> Iterator[Measurement]:
        """Measure each config shortly, in the order in which they are compiled.

        The first one is measured even if the time is over.
        """
        most = QUIET if self._timer is not None else 0
        with compile_ahead(self.launch, configs) as waiting:
            if self._timer is not None and self.check is not None and self.check.options:
                load_comparison({**self.launch.autotuner.nargs, **self.launch.kwargs})
            if candidate := waiting.get(self.launch.default):
                candidate.finish()
            if self.check is not None:
                # What is expected of the others is computed while they compile.
                self.check.compare(self.check.default)
            if self._timer is not None and not self._measured:
                try:
                    self._timer.warm_up()
                except Exception as error:
                    # Without memory every config fails likewise and is recorded as skipped.
                    if not is_out_of_memory(error):
                        raise
            while waiting and not self._must_stop:
                # Measure the first one that is compiled, once few compilers may disturb that.
                config, compiling = self._next_compiled(waiting, most)
                candidate = waiting.pop(config)
                measurement = self._measure(config, SCREENING, candidate, patient=not compiling)
                if measurement is None:  # measure it again when the compilers are done
                    waiting[config] = candidate
                    self._next_compiled(waiting, 0)
                    continue
                self._measured[config] = measurement
                if len(self._measured) > TOGETHER:  # the graphs of many would fill the memory
                    self._launches[config].graph = None
                if measurement.median is not None:
                    self._best = min(self._best, measurement.median)
                elif measurement.skipped and measurement.failure is not None:
                    warn_once(
                        f"memory {config}",
                        f"({config}) is skipped for now: {measurement.failure.reason}",
                    )
                yield measurement

    def _next_compiled(
        self, waiting: Mapping[Config, Candidate | None], most: int
    ) -> tuple[Config, int]:
        """Wait until few threads compile, or the time is over.

        Returns:
            The first config that is compiled, or the first of all, and how many threads compile.
        """
        while True:
            compiled = [config for config, made in waiting.items() if made is None or made.is_done]
            compiling = min(len(waiting) - len(compiled), threads_for(len(waiting)))
            if compiling <= most or self._must_stop:
                return (compiled or list(waiting))[0], compiling
            time.sleep(0.005)

    def _measure(
        self,
        config: Config,
        effort: Effort,
        candidate: Candidate | None = None,
        *,
        patient: bool = True,
    ) -> Measurement | None:
        """Measure one config; return None if it was disturbed and the caller is not `patient`.

        PyTorch keeps the memory of tensors that are gone. The driver, which loads binaries, cannot
        have it, and neither can a graph while it is captured. So where the machine lacked
        something, that memory is freed and the config is measured again.
        """
        self.tried.add(config)
        new = ConfigLaunch(self.launch, self.launch.declared[config])
        launch = self._launches.setdefault(config, new)
        with self.mark.around(config):
            outcome = self._time(launch, effort, candidate, patient)
            if isinstance(outcome, Failure) and outcome.kind == "skipped":
                import torch

                if self._timer is not None:
                    for each in self._launches.values():
                        each.graph = None
                    self._timer.release()
                torch.cuda.empty_cache()
                outcome = self._time(launch, effort, candidate, patient)
        if outcome is None:
            return None
        # Also what was waited for since the last one: compilers, and the results to compare with.
        since, self._since = self._since, time.perf_counter()
        seconds = self._since - since
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
            resources=launch.resources,
        )

    def _time(
        self, launch: ConfigLaunch, effort: Effort, candidate: Candidate | None, patient: bool
    ) -> Quantiles | Failure | None:
        """Return a config's timing or failure; None as `_measure` does."""
        try:
            if candidate is not None and (failure := self._load(candidate, launch)) is not None:
                return failure
            if self.check is not None:
                self.check.keep(launch.config)
            if self._timer is None:
                return quantiles_of(
                    self.launch.autotuner.do_bench(launch, quantiles=(0.5, 0.2, 0.8))
                )
            sample = self._timer.sample(launch, effort, self._best * HOPELESS)
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
            forget_frames(error)
            return failure
        if not (patient or sample.steady):
            return None
        return quantiles_of(sample.quantiles((0.5, 0.2, 0.8)))

    def _load(self, candidate: Candidate, launch: ConfigLaunch) -> Failure | None:
        """Wait for a config's compiler and load its binary; return its failure, if it has one."""
        try:
            candidate.check()
        except Exception as error:
            autotuner = self.launch.autotuner
            if autotuner.user_defined_pre_hook or autotuner.user_defined_post_hook:
                launch.begin()  # as Triton does around a launch that raises
                launch.end(error)
            # Of the launch's keywords, those that are neither parameters nor the config's.
            known = {*autotuner.arg_names, *candidate.config.all_kwargs(), "grid", "warmup"}
            failure = compile_failure_of(error, set(self.launch.kwargs) - known)
            if failure is None:
                raise
            forget_frames(error)
            return failure
        return None
