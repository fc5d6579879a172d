"""Tune one scenario at a time, under a lease, unless another process has done so meanwhile."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import NamedTuple

from ..errors import NothingComparedError, NoValidConfigError, UncomparedResultsError
from ..model.record import (
    NO_MEMORY,
    NO_WORK,
    Measurement,
    Record,
    Results,
    has_reason,
    reasons_not_compared,
)
from ..model.resolution import How, Resolution
from ..model.scenario import Config
from ..stores import Found
from ..system.fork_lock import ForkLock
from ..system.notices import warn_once
from ..tuning.measurement_marks import MeasurementMark, Suspect, find_suspects
from . import rules
from .known_records import KnownRecords
from .request import Request
from .scenario_measurement import ScenarioMeasurement

__all__ = ["TuneOptions", "leave_out_suspects", "note_timings", "tune"]

_tuning = ForkLock()
"""Held while this process tunes: two benchmarks at once would time each other."""


class TuneOptions(NamedTuple):
    """What differs between the tunes of a launch and of a sweep.

    Attributes:
        show_progress: whether a long tune shows a bar on a terminal.
        before: is called with each config before it is measured, once all earlier measurements are
            recorded.
        expendable: whether this process may measure configs during which another one has died.
    """

    show_progress: bool = True
    before: Callable[[Config], None] | None = None
    expendable: bool = False


class _ThreadActivity(threading.local):
    """What a thread is doing: it tunes several scenarios if a hook of one kernel launches another.

    Attributes:
        tunes: the number of scenarios that the thread tunes.
    """

    tunes = 0

    @contextmanager
    def count_tune(self) -> Iterator[None]:
        """Count a scenario that the thread tunes."""
        self.tunes += 1
        try:
            yield
        finally:
            self.tunes -= 1


_this_thread = _ThreadActivity()


def tune(
    request: Request, records: KnownRecords, options: TuneOptions, wait: float
) -> tuple[Resolution | None, int]:
    """Tune a scenario, or take over what another process has recorded of it meanwhile.

    1. The lease is waited for, and then this process's other tunes.
    2. The record is read again: the lease's last holder may have finished the work, or died halfway
       through it. If nothing is left to do, its config runs.
    3. Without the lease, nothing is measured; a config that was compared runs.
    4. Configs are proposed, compiled, timed and compared, and the winner is written; see `_Tune`.

    Args:
        request: the scenario.
        records: where measurements and the winner are recorded.
        options: what this process wants of a tune.
        wait: seconds to wait for the lease of a process that tunes the same scenario.

    Returns:
        The resolution, and how many configs were benchmarked for it. The resolution is None where
        another process still tunes, the device had no memory left for any config, or the machine
        could not launch the default config. It is the default config where only other machines'
        failures rule out the others.

    Raises:
        NoValidConfigError: every config failed in this process.
        UncomparedResultsError: a sweep's machine could not launch the default config.
    """
    context, scenario = request.context, request.scenario
    # A process that hangs keeps its lease for ever. A nested tune must not wait for a lease: this
    # thread, or one that waits for this tune, may hold it.
    is_hung = any(suspect.is_hung for suspect in find_suspects(context, scenario))
    wait = 0.0 if is_hung or _this_thread.tunes else wait
    lease = records.tiers.lease(context, scenario, wait=wait)
    # The lease first: while this thread waits for another process, other kernels may be tuned.
    with lease as is_leased, _tuning, _this_thread.count_tune():
        suspects = find_suspects(context, scenario)
        found = records.look_up(context, scenario, fresh=True)
        record = found.record if found else Record(scenario=scenario)
        if not options.expendable:
            request = _refuse_suspects(request, record, suspects)
        findings = records.findings(context, scenario)
        settled = rules.settled_choice(request, found, findings, is_lasting=records.is_lasting)
        if settled is not None:
            return settled, 0
        due = rules.due_configs(request, record)
        avoided = () if options.expendable else suspects
        untried = rules.untried_failures(request, record, findings, avoided)
        has_work = due or untried or rules.recorded_choice(request, found)
        if has_work and not (is_leased or any(suspect.is_hung for suspect in suspects)):
            return rules.trusted_choice(request, found), 0
        return _Tune(request, record, records, options).run(due, avoided)


class _Tune:
    """One tune of one scenario whose lease is held.

    Args:
        request: the scenario.
        record: what is recorded of it.
        records: where measurements and the winner are recorded.
        options: what this process wants of a tune.
    """

    def __init__(
        self, request: Request, record: Record, records: KnownRecords, options: TuneOptions
    ) -> None:
        """Measure nothing yet."""
        self._request = request
        self._record = record
        self._records = records
        self._options = options
        self._findings = records.findings(request.context, request.scenario)

    def run(self, due: list[Config], suspects: Iterable[Suspect]) -> tuple[Resolution | None, int]:
        """Measure due configs, or else those whose failure may be over, and select the winner.

        Args:
            due: the configs left to measure.
            suspects: configs that this process must not try again.
        """
        request, record, findings = self._request, self._record, self._findings
        with ExitStack() as stack:
            mark = stack.enter_context(closing(MeasurementMark(request.context, request.scenario)))
            measurement = ScenarioMeasurement(
                request,
                record,
                self._records,
                mark,
                before=self._options.before,
                show_progress=self._options.show_progress,
            )
            stack.callback(measurement.close)
            try:
                if due or (record.winner is None and not findings.is_raced):
                    measurement.measure_due(due)
                    findings.is_raced = True
                if measurement.best is None:
                    measurement.measure(
                        rules.untried_failures(request, measurement.record, findings, suspects)
                    )
                winner, results = measurement.find_winner()
            except UncomparedResultsError as error:
                if self._options.expendable:  # a sweep serves no launch, and says what it lacks
                    raise
                if isinstance(error, NothingComparedError):
                    default = self._without_comparison(measurement.record, error.results)
                    return default, measurement.measured
                warn_once(
                    f"uncompared {request.context.kernel.name}",
                    f"{request.name}: {error}; the launch takes a fallback, and a later one tunes",
                )
                return None, measurement.measured
            if winner is None:
                return self._without_valid_config(measurement.record), measurement.measured
            # Noted here too: the recorded winner may be that of a launch with other configs.
            findings.compared.add(winner)
            findings.is_raced = False
            note_timings(request, measurement.record)
            measurement.record_winner(winner, results)
        how: How = "tuned" if due or measurement.measured else "exact"
        resolution = replace(
            request.resolution(how, request.declared[winner], self._records.url),
            missing=len(rules.unmeasured_configs(request, measurement.record)),
            not_compared=reasons_not_compared(results),
        )
        return resolution, measurement.measured

    def _without_comparison(self, record: Record, results: Results) -> Resolution:
        """Return what runs where nothing can be compared, and remember it if that is lasting."""
        if not has_reason(results, NO_WORK) and not has_reason(results, NO_MEMORY):
            self._findings.hidden = results  # no other launch would show more
        found = Found(record, self._records.url)
        return rules.uncompared_choice(self._request, found, results)

    def _without_valid_config(self, record: Record) -> Resolution | None:
        """Return the default config's resolution, or None where memory lacked for any config.

        Raises:
            NoValidConfigError: every config failed in this process, not only by somebody's record.
        """
        request, trials = self._request, self._findings.trials
        kernel, measured = request.context.kernel.name, record.by_config
        if any(config in measured and measured[config].skipped for config in request.declared):
            warn_once(
                f"memory {kernel}",
                f"{request.name}: the device has no memory left to measure any config; the launch "
                "takes a fallback, and a later one tries again",
            )
            return None
        if all(config in trials and trials[config].failure for config in request.declared):
            self._findings.trials = {}  # a later launch may succeed
            reasons = _failure_reasons(request, record)
            raise NoValidConfigError(kernel, str(request.scenario), reasons)
        warn_once(
            f"failures {kernel}",
            f"{request.name}: no config has a usable timing, partly by other records than this "
            "process's; the default config runs. `dejavu-cache show` lists the failures, and "
            "`dejavu-cache clear` deletes the record",
        )
        return request.resolution("default", request.default)


def leave_out_suspects(
    request: Request, record: Record | None, suspects: Iterable[Suspect]
) -> Request:
    """Return a request without the configs that may end or block this process.

    Nothing is said of those whose failure is recorded.
    """
    reasons = rules.suspected_configs(request, record, suspects)
    measured = record.by_config if record else {}
    for config, reason in reasons.items():
        failed = measured.get(config)
        if failed is not None and failed.failure is not None and not failed.skipped:
            continue
        warn_once(
            f"suspect {request.name} {config}",
            f"{request.name}: ({config}) is not run for a day: {reason}; to clear or convict it, "
            "measure it with `dejavu-cache sweep`, where a crash costs only a worker",
        )
    return request.without(reasons)


def _refuse_suspects(request: Request, record: Record, suspects: Sequence[Suspect]) -> Request:
    """Leave out the configs during which processes have died.

    Raises:
        NoValidConfigError: no other config is left.
    """
    remaining = leave_out_suspects(request, record, suspects)
    if suspects and not remaining.declared:
        reasons = {str(suspect.config): suspect.reason for suspect in suspects}
        raise NoValidConfigError(request.context.kernel.name, str(request.scenario), reasons)
    return remaining


def note_timings(request: Request, record: Record) -> None:
    """Give a request's autotuner Triton's `configs_timings`: infinite ones for failed configs."""
    measured = record.by_config
    request.autotuner.configs_timings = {
        request.declared[config]: _triton_timing(measured[config])
        for config in request.declared
        if config in measured
    }


def _triton_timing(measurement: Measurement) -> float | list[float | None]:
    """Return what `do_bench` returned for a config, or would have: a number, or quantiles."""
    if measurement.median is None:
        return [math.inf] * 3
    if measurement.p20 is None:
        return measurement.median
    return [measurement.median, measurement.p20, measurement.p80]


def _failure_reasons(request: Request, record: Record) -> dict[str, str]:
    measurements = record.by_config
    reasons = {}
    for config in request.declared:
        failure = measurements[config].failure if config in measurements else None
        reasons[str(config)] = f"{failure.kind}: {failure.reason}" if failure else "not measured"
    return reasons
