"""Tune one scenario at a time, under a lease, unless another process has done so meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

from ..errors import NoValidConfigError, UncomparedResultsError
from ..model.record import (
    NO_DEFAULT,
    NO_MEMORY,
    Record,
    Results,
    are_compared,
    reasons_not_compared,
)
from ..model.resolution import How, Resolution
from ..model.scenario import Config, Context, Scenario
from ..stores import Found
from ..system.fork_lock import ForkLock
from ..system.notices import warn_once
from ..triton_internals.config_names import describe
from ..tuning.measurement_marks import MeasurementMark, find_suspects
from .own_trials import MOST_SCENARIOS, OwnTrials
from .record_lookup import is_trusted, resolve_from_record, resolve_trusted
from .request import Request
from .scenario_measurement import ScenarioMeasurement
from .suspects import leave_out_suspects
from .tolerant_store import TolerantStore

__all__ = ["ScenarioTuner"]

_tuning = ForkLock()
"""Held while this process tunes: two benchmarks at once would time each other."""


class _ThreadActivity(threading.local):
    """What a thread is doing: it tunes several scenarios if a hook of one kernel launches another.

    Attributes:
        tunes: the number of scenarios that the thread tunes.
    """

    tunes = 0

    @contextmanager
    def tuning(self) -> Iterator[None]:
        """Count a scenario that the thread tunes."""
        self.tunes += 1
        try:
            yield
        finally:
            self.tunes -= 1


_this_thread = _ThreadActivity()


class ScenarioTuner:
    """Tunes scenarios one at a time, each under a lease, so that no other process tunes it too.

    Args:
        store: where measurements and winners are recorded.
        show_progress: whether a long tune shows a bar on a terminal.
        before: is called with each config before it is measured, once all earlier measurements are
            recorded.
        expendable: whether this process may measure configs during which another one has died.
    """

    def __init__(
        self,
        store: TolerantStore,
        *,
        show_progress: bool = True,
        before: Callable[[Config], None] | None = None,
        expendable: bool = False,
    ) -> None:
        """Set up the tuner; the arguments are described at the class."""
        self._store = store
        self._trials = OwnTrials()
        self._compared: dict[tuple[Context, Scenario], dict[Config, Results]] = {}
        self._show_progress = show_progress
        self._before = before
        self._expendable = expendable

    def tune(self, request: Request, wait: float) -> tuple[Resolution | None, int]:
        """Tune a scenario, or take over what another process has recorded of it meanwhile.

        Args:
            request: the scenario.
            wait: seconds to wait for the lease of a process that tunes the same scenario.

        Returns:
            The resolution, and how many configs were benchmarked for it. The resolution is None
            where another process still tunes, the device had no memory left for any config, or the
            machine could not launch the default config. It is the default config where only other
            machines' failures rule out the others.

        Raises:
            NoValidConfigError: every config failed in this process.
            UncomparedResultsError: a sweep's machine could not launch the default config.
        """
        # A process that hangs keeps its lease for ever. A hook of a kernel that is tuned waits for
        # none: its holder may be this thread, or another one that waits for this tune.
        wait = 0.0 if _is_hung(request) or _this_thread.tunes else wait
        lease = self._store.tiers.lease(request.context, request.scenario, wait=wait)
        # The lease first: while this thread waits for another process, other kernels may be tuned.
        with lease as is_leased, _tuning, _this_thread.tuning():
            return self._tune_in_turn(request, is_leased=is_leased)

    def _tune_in_turn(self, request: Request, *, is_leased: bool) -> tuple[Resolution | None, int]:
        """Tune a scenario as `tune` does, while no other thread of this process tunes."""
        # The lease's last holder may have finished this work, or died halfway through it.
        found = self.look_up(request, fresh=True)
        request = self._without_suspects(request, found)
        settled = self.resolve_settled(request, found)
        if settled is not None:
            return settled, 0
        record = found.record if found else Record(scenario=request.scenario)
        due = request.due_configs(record)
        has_work = due or self._untried_failures(request, record)
        if (has_work or resolve_from_record(request, found)) and not (
            is_leased or _is_hung(request)
        ):
            # Until the process that tunes now has ended, a config runs if it was compared.
            return resolve_trusted(request, found), 0
        return self._measure(request, record, due)

    def _without_suspects(self, request: Request, found: Found | None) -> Request:
        """Leave out the configs during which processes have died, unless this one may measure them.

        Raises:
            NoValidConfigError: no other config is left.
        """
        suspects = find_suspects(request.context, request.scenario)
        if self._expendable or not suspects:
            return request
        remaining = leave_out_suspects(request, found.record if found else None, suspects)
        if not remaining.declared:
            reasons = {str(suspect.config): suspect.reason for suspect in suspects}
            raise NoValidConfigError(request.context.kernel.name, str(request.scenario), reasons)
        return remaining

    def look_up(self, request: Request, *, fresh: bool = False) -> Found | None:
        """Return the record of a request's scenario, corrected by what this process measured.

        Args:
            request: the scenario.
            fresh: whether every store reads again what may have changed since it was last read.
        """
        found = self._store.get(request.context, request.scenario, fresh=fresh)
        if found is None:
            return None
        return found._replace(record=self._trials.correct(request.context, found.record.proven))

    def resolve_settled(self, request: Request, found: Found | None) -> Resolution | None:
        """Return what a recorded scenario's launch runs, or None if a tune or a comparison is due.

        A pinned scenario is settled. A race and its winner are worth a tune only if they outlive
        this process; a config is compared in any case before it runs.
        """
        recorded = resolve_from_record(request, found)
        if recorded is None or found is None or recorded.how == "pinned":
            return recorded
        fastest, record = describe(recorded.config), found.record
        has_more = request.has_work if self._store.is_lasting else request.due_configs
        if self._may_run(request, record, fastest):
            return None if has_more(record) else recorded
        results = self._comparisons(request).get(fastest)
        if results is None or _lacked_memory(results) or request.due_configs(record):
            return None
        return self._without_comparison(request, found, fastest, results)

    def _may_run(self, request: Request, record: Record, config: Config) -> bool:
        """Return whether a config may run here without another comparison.

        One that nobody could compare runs only in the process that has timed it, as without a
        cache, and where the default config cannot run either.
        """
        if is_trusted(request, record, config):
            return True
        results = self._comparisons(request).get(config)
        if results is None:
            return False
        is_own = config in self._trials.of(request.context, request.scenario)
        return is_own or are_compared(results) or _lacks_default(results)

    def _comparisons(self, request: Request) -> dict[Config, Results]:
        """Return what this process has found by comparing a scenario's configs."""
        return self._compared.get((request.context, request.scenario), {})

    def _without_comparison(
        self, request: Request, found: Found, config: Config, results: Results
    ) -> Resolution:
        """Return what runs in the place of a recorded config that cannot be compared here."""
        name, reasons = request.context.kernel.name, reasons_not_compared(results)
        warn_once(
            f"uncompared {name}",
            f"{name}{request.scenario}: ({config}) is recorded as the fastest, and its results "
            f"cannot be compared with the default config's ({'; '.join(reasons)}), so it does not "
            "run; declare the kernel's outputs, or have nothing compared by check=False",
        )
        instead = resolve_trusted(request, found) or request.resolution("default", request.default)
        return replace(instead, not_compared=[f"({config}): {reason}" for reason in reasons])

    def _untried_failures(self, request: Request, record: Record) -> list[Config]:
        """Return the configs that are recorded as failed and that this process did not try."""
        tried = {*self._trials.of(request.context, request.scenario)}
        if not self._expendable:
            suspects = find_suspects(request.context, request.scenario)
            tried.update(suspect.config for suspect in suspects)
        return [config for config in request.disputable_configs(record) if config not in tried]

    def _measure(
        self, request: Request, record: Record, due: list[Config]
    ) -> tuple[Resolution | None, int]:
        """Measure due configs, or else those whose failure is disputable, and select the winner."""
        with closing(MeasurementMark(request.context, request.scenario)) as mark:
            measurement = ScenarioMeasurement(
                request,
                record,
                self._store,
                self._trials,
                mark,
                before=self._before,
                show_progress=self._show_progress,
            )
            try:
                if due or record.winner is None:
                    measurement.measure_due(due)
                if measurement.best is None:
                    measurement.measure(self._untried_failures(request, measurement.record))
                winner, results = measurement.find_winner()
            except UncomparedResultsError as error:
                if self._expendable:  # a sweep has no launch to serve, and says what it lacked
                    raise
                name = request.context.kernel.name
                warn_once(
                    f"uncompared {name}",
                    f"{name}{request.scenario}: {error}; the launch takes a fallback, and a later "
                    "one tunes",
                )
                return None, measurement.measured
            if winner is None:
                return self._without_valid_config(request, measurement.record), measurement.measured
            # Noted here too: the recorded winner may be that of a launch with other configs.
            if len(self._compared) >= MOST_SCENARIOS:
                self._compared.clear()
            self._compared.setdefault((request.context, request.scenario), {})[winner] = results
            measurement.record_winner(winner, results)
        if not self._may_run(request, measurement.record, winner):
            found = Found(measurement.record, self._store.url)
            return self._without_comparison(request, found, winner, results), measurement.measured
        how: How = "tuned" if due or measurement.measured else "exact"
        missing = len(request.unmeasured_configs(measurement.record))
        resolution = request.resolution(
            how,
            request.declared[winner],
            store=self._store.url,
            missing=missing,
            not_compared=reasons_not_compared(results),
        )
        return resolution, measurement.measured

    def _without_valid_config(self, request: Request, record: Record) -> Resolution | None:
        """Return the default config's resolution, or None where memory lacked for any config.

        Raises:
            NoValidConfigError: every config failed in this process, not only by somebody's record.
        """
        kernel = request.context.kernel.name
        measured = record.by_config
        if any(config in measured and measured[config].skipped for config in request.declared):
            warn_once(f"memory {kernel}", _out_of_memory_text(request))
            return None
        trials = self._trials.of(request.context, request.scenario)
        if all(config in trials and trials[config].failure for config in request.declared):
            self._trials.forget(request.context, request.scenario)  # a later launch may succeed
            raise NoValidConfigError(
                kernel, str(request.scenario), _failure_reasons(request, record)
            )
        warn_once(
            f"failures {kernel}",
            f"{kernel}{request.scenario}: no config has a usable timing, partly by other records "
            "than this process's; the default config runs. `dejavu-cache show` lists the failures, "
            "and `dejavu-cache clear` deletes the record",
        )
        return request.resolution("default", request.default)


def _is_hung(request: Request) -> bool:
    """Return whether a process hangs while it tunes a scenario."""
    suspects = find_suspects(request.context, request.scenario)
    return any(suspect.is_hung for suspect in suspects)


def _lacked_memory(results: Results) -> bool:
    return any(verdict.reason.startswith(NO_MEMORY) for verdict in results.values())


def _lacks_default(results: Results) -> bool:
    return any(verdict.reason.startswith(NO_DEFAULT) for verdict in results.values())


def _out_of_memory_text(request: Request) -> str:
    return (
        f"{request.context.kernel.name}{request.scenario}: the device has no memory left to "
        "measure any config; the launch takes a fallback, and a later one tries again"
    )


def _failure_reasons(request: Request, record: Record) -> dict[str, str]:
    measurements = record.by_config
    reasons = {}
    for config in request.declared:
        failure = measurements[config].failure if config in measurements else None
        reasons[str(config)] = f"{failure.kind}: {failure.reason}" if failure else "not measured"
    return reasons
