"""Tune one scenario at a time, under a lease, unless another process has done so meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

from ..errors import NothingComparedError, NoValidConfigError, UncomparedResultsError
from ..model.record import NO_MEMORY, NO_WORK, Record, Results, has_reason, reasons_not_compared
from ..model.resolution import How, Resolution
from ..model.scenario import Config, Context, Scenario
from ..stores import Found
from ..system.fork_lock import ForkLock
from ..system.notices import warn_once
from ..triton_internals.config_names import describe
from ..tuning.measurement_marks import MeasurementMark, find_suspects
from .record_lookup import is_trusted, resolve_from_record, resolve_trusted
from .request import MOST_SCENARIOS, OwnTrials, Request, leave_out_suspects
from .scenario_measurement import ScenarioMeasurement
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
        self._compared: dict[tuple[Context, Scenario], set[Config]] = {}
        self._hidden: dict[tuple[Context, Scenario], Results] = {}
        """Why nothing can be compared in any launch of a scenario."""
        self._raced: set[tuple[Context, Scenario]] = set()
        """Scenarios whose configs are all timed, and whose fastest one is yet to be compared."""
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
        if recorded is not None and recorded.how == "pinned":
            return recorded
        hidden = self._hidden.get((request.context, request.scenario))
        if hidden is not None and request.check is not None:
            return self._run_default(request, found, hidden)
        if recorded is None or found is None:
            return None
        fastest, record = describe(recorded.config), found.record
        key = request.context, request.scenario
        if fastest in self._compared.get(key, ()) or is_trusted(request, record, fastest):
            has_more = request.has_work if self._store.is_lasting else request.due_configs
            return None if has_more(record) else recorded
        return None

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
        key = request.context, request.scenario
        with ExitStack() as stack:
            mark = stack.enter_context(closing(MeasurementMark(request.context, request.scenario)))
            measurement = ScenarioMeasurement(
                request,
                record,
                self._store,
                self._trials,
                mark,
                before=self._before,
                show_progress=self._show_progress,
            )
            stack.callback(measurement.close)
            try:
                if due or (record.winner is None and key not in self._raced):
                    measurement.measure_due(due)
                    if len(self._raced) >= MOST_SCENARIOS:
                        self._raced.clear()
                    self._raced.add(key)
                if measurement.best is None:
                    measurement.measure(self._untried_failures(request, measurement.record))
                winner, results = measurement.find_winner()
            except UncomparedResultsError as error:
                if self._expendable:  # a sweep has no launch to serve, and says what it lacked
                    raise
                if isinstance(error, NothingComparedError):
                    found = Found(measurement.record, self._store.url)
                    return self._run_default(request, found, error.results), measurement.measured
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
            self._compared.setdefault(key, set()).add(winner)
            self._raced.discard(key)
            measurement.record_winner(winner, results)
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

    def _run_default(self, request: Request, found: Found | None, results: Results) -> Resolution:
        """Return what runs where nothing shows whether the fastest config's results are right.

        It is a recorded config that was compared elsewhere, or else the default.
        """
        reasons, is_idle = reasons_not_compared(results), has_reason(results, NO_WORK)
        if not is_idle and not has_reason(results, NO_MEMORY):  # no launch would show more
            if len(self._hidden) >= MOST_SCENARIOS:
                self._hidden.clear()
            self._hidden[request.context, request.scenario] = results
        trusted = resolve_trusted(request, found)
        if trusted is not None:
            return replace(trusted, not_compared=reasons, is_idle=is_idle)
        uncompared = "; ".join(reasons)
        return request.resolution(
            "default", request.default, uncompared=uncompared, is_idle=is_idle
        )

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
