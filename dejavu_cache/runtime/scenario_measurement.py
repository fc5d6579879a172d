"""Measure the configs of a scenario whose lease is held, compare results, record the winner.

The configs that a tune measures, in their order, and the earlier measurements that it uses.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ..model.merge import date_after, merge_records
from ..model.record import Measurement, Record, Results
from ..model.scenario import Config
from ..system.notices import warn_once, whoami
from ..triton_internals.compilation import LoadedKernels, compile_config, release_outdated
from ..triton_internals.config_names import describe
from ..triton_internals.generated_code import tuned_launches
from ..triton_internals.identity import find_jit_function
from ..tuning.benchmark_methods import is_called_once
from ..tuning.measurement_marks import MeasurementMark, find_suspects
from ..tuning.search import Exhaustive, OptunaSearch, Search
from ..tuning.tuner import MeasurementWriter, Tuner, progress
from . import rules
from .known_records import KnownRecords
from .launch_recorder import pause_recording
from .request import Request
from .winner_check import WinnerCheck, recording_crash, refuse_uncompared

__all__ = [
    "ScenarioMeasurement",
    "make_search",
]


def make_search(request: Request, record: Record, due: list[Config]) -> Search:
    """Return the search through the configs to measure, as far as the budget goes.

    Args:
        request: the scenario and its budget.
        record: what is known of it.
        due: the configs left to measure, in order.
    """
    limit = rules.budgeted_count(request, len(due))
    if request.budget.strategy != "optuna" or not _has_optuna():
        return Exhaustive(due[:limit])
    unmeasured = {*rules.unmeasured_configs(request, record)}
    measured = [entry for entry in record.measurements if entry.config not in unmeasured]
    default = describe(request.default)
    return OptunaSearch(
        request.declared, measured, [default] if due[:1] == [default] else [], limit
    )


def _has_optuna() -> bool:
    is_installed = importlib.util.find_spec("optuna") is not None
    if not is_installed:
        warn_once(
            "optuna",
            "optuna is not installed, so the first configs are measured: "
            "pip install 'dejavu-cache[sweep]'",
        )
    return is_installed


class ScenarioMeasurement:
    """Measures configs of one scenario, and records each measurement and then the winner.

    Args:
        request: the scenario.
        record: what is recorded of it.
        records: where measurements and the winner are recorded, also as this process's findings.
        mark: names the config being measured for the next process, if this one dies.
        before: is called with each config before it is measured, once all earlier measurements are
            recorded.
        show_progress: whether a long search shows a bar on a terminal.

    Attributes:
        record: what is known of the scenario.
        measured: the number of configs measured.
    """

    def __init__(
        self,
        request: Request,
        record: Record,
        records: KnownRecords,
        mark: MeasurementMark,
        *,
        before: Callable[[Config], None] | None,
        show_progress: bool,
    ) -> None:
        """Measure nothing yet; the arguments are described at the class."""
        self.record = record
        self.measured = 0
        self._request = request
        self._records = records
        self._findings = records.findings(request.context, request.scenario)
        self._mark = mark
        self._before = before
        self._show_progress = show_progress
        options = request.check if rules.may_launch_default(request, record) else None
        self._check = WinnerCheck(request, options, mark.around)
        function = find_jit_function(request.autotuner)
        if function is not None:
            release_outdated(function, request.context.environment.variables)
        self._loaded = LoadedKernels(function)

    def close(self) -> None:
        """Let go of the launch's arguments and of all copies of them, whatever has happened."""
        self._check.close()

    @property
    def best(self) -> Config | None:
        """The best config by the measurements, or None if none has a usable timing."""
        return rules.best_config(self._request, self.record)

    def measure_due(self, due: list[Config]) -> None:
        """Measure due configs as far as the budget goes; an unfinished race goes on."""
        search = make_search(self._request, self.record, due)
        self._run_search(search, len(due), rules.earlier_timings(self._request, self.record))

    def measure(self, configs: list[Config]) -> None:
        """Measure configs in order."""
        if configs:
            self._run_search(Exhaustive(configs), len(configs))

    def find_winner(self) -> tuple[Config | None, Results]:
        """Return the best config whose results are not wrong, and what comparing it has shown.

        The config is None if none is left.

        Raises:
            NothingComparedError: nothing shows whether the best config's results are right.
        """
        results: Results = {}
        confirmed: set[Config] = set()
        while (best := self.best) is not None:
            by = self.record.by_config[best].by
            if self.measured and by != whoami() and best not in confirmed:
                # Another machine's timing must not win a tune here without being measured here.
                confirmed.add(best)
                self.measure([best])
                continue
            with recording_crash(best, lambda crash: self._write([crash])):
                results, wrong = self._check.compare(best)
            if wrong is None:
                refuse_uncompared(results)
                break
            self._write([wrong])
        return best, results

    def record_winner(self, best: Config, results: Results) -> None:
        """Record the winner and its launches, and release the kernels that lost.

        Args:
            best: the best config of this launch.
            results: what comparing it has shown.
        """
        request = self._request
        addition = Record(
            scenario=request.scenario,
            winner=rules.winner_to_record(
                request, self.record, best, results, measured=bool(self.measured)
            ),
            launches=tuned_launches(
                request.autotuner, request.declared[best], request.args, request.kwargs
            ),
        )
        self._records.put(request.context, date_after(addition, self.record))
        self._release_losers(best)

    def _write(self, measurements: Sequence[Measurement]) -> None:
        context, scenario = self._request.context, self._request.scenario
        # After what they replace, which else stands if another clock dated it, and is due again.
        addition = date_after(
            Record(scenario=scenario, measurements=tuple(measurements)), self.record
        )
        self._findings.add_trials(addition.measurements)
        self.record = rules.corrected_record(merge_records(self.record, addition), self._findings)
        # A process whose device is lost may not live to write what is queued.
        is_last = any(measurement.has_crashed for measurement in measurements)
        self._records.put(context, addition, now=is_last)

    def _run_search(self, search: Search, total: int, earlier: Sequence[Measurement] = ()) -> None:
        """Measure what a search proposes, at most `total` configs, within the budget's time."""
        request = self._request
        title = f"{request.context.kernel.name}{request.scenario}"
        bar = progress(title, total, wanted=self._show_progress)
        recording_paused = pause_recording(request.autotuner, self._records.tiers)
        with (
            MeasurementWriter(self._write) as writer,
            bar as advance,
            recording_paused,
            self._check.restoring_arguments(),
        ):
            self.measured += self._make_tuner(writer, advance, earlier).tune(search)

    def _make_tuner(
        self,
        writer: MeasurementWriter,
        advance: Callable[[], None],
        earlier: Sequence[Measurement],
    ) -> Tuner:
        """Return a tuner for the launch.

        Args:
            writer: records the measurements.
            advance: is called after each of them.
            earlier: measurements of a tune that ended before its race.
        """
        request, launch = self._request, self._request.candidate_launch()
        marked = find_suspects(request.context, request.scenario)
        suspects = {suspect.config: suspect for suspect in marked}

        def keep(measurement: Measurement) -> None:
            writer(measurement)
            suspect = suspects.pop(measurement.config, None)
            if suspect is not None and measurement.median is not None:
                suspect.forget()
            advance()

        def compute_expected() -> None:
            with recording_crash(launch.default, writer):
                self._check.prepare()
            self._check.refuse_tune()

        def announce(config: Config) -> None:
            compute_expected()
            if self._before is not None:
                writer.drain()
                self._before(config)

        seconds = request.budget.seconds
        return Tuner(
            launch,
            keep,
            race=request.budget.race and not is_called_once(request.context.problem.method),
            until=math.inf if seconds is None else time.monotonic() + seconds,
            launch_default=compute_expected,
            before=announce,
            mark=self._mark.around,
            earlier=earlier,
        )

    def _release_losers(self, winner: Config) -> None:
        """Release the kernels compiled since the beginning, except the winner's and default's."""
        if not self._loaded.later():
            return
        request, measurements = self._request, self.record.by_config
        needed = []
        for config in {winner, describe(request.default)}:
            if config in measurements and measurements[config].median is not None:
                with suppress(Exception):  # Without the kernel, the next launch compiles it.
                    chosen = request.declared[config]
                    needed.append(
                        compile_config(request.autotuner, chosen, request.args, request.kwargs)
                    )
        self._loaded.release_later(needed)
