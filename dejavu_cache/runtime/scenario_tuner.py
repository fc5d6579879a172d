"""Tune one scenario: measure the due configs, record each measurement, and then the winner."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ..errors import NoValidConfigError
from ..model.merge import merge_records
from ..model.record import Measurement, Record, Winner
from ..model.resolution import How, Resolution
from ..model.scenario import Config, Context, Scenario, now
from ..stores import Found
from ..system.notices import warn_once
from ..system.provenance import whoami
from ..triton_internals.compilation import find_jit_function, tuned_launches
from ..triton_internals.config_names import describe
from ..triton_internals.loaded_kernels import LoadedKernels, compile_config
from ..tuning.measurement_marks import MeasurementMark, find_suspects
from ..tuning.measurement_writer import MeasurementWriter
from ..tuning.progress_bar import progress
from ..tuning.search import Exhaustive, Search
from ..tuning.tuner import CandidateLaunch, Tuner
from .launch_recorder import pause_recording
from .own_trials import OwnTrials
from .record_lookup import best_config, note_timings, resolve_from_record, winner_to_record
from .request import Request
from .suspects import leave_out_suspects
from .tolerant_store import TolerantStore
from .tune_search import earlier_measurements, make_search, may_launch_default
from .winner_check import WinnerCheck, find_wrong_results, recording_crash

__all__ = ["ScenarioTuner"]

_tuning = threading.RLock()
"""Held while this process tunes: two benchmarks at once would time each other."""


class _OwnScenarios(threading.local):
    """The scenarios that a thread tunes; several if a hook of one kernel launches another."""

    def __init__(self) -> None:
        self._tuned: list[tuple[Context, Scenario]] = []

    def are_tuned(self, request: Request) -> bool:
        """Return whether this thread tunes a request's scenario."""
        return (request.context, request.scenario) in self._tuned

    @contextmanager
    def tuning(self, request: Request) -> Iterator[None]:
        """Count a request's scenario among those that this thread tunes."""
        self._tuned.append((request.context, request.scenario))
        try:
            yield
        finally:
            self._tuned.pop()


_scenarios = _OwnScenarios()


def _renew_lock_in_child() -> None:
    """Replace the lock: a thread that held it is not part of a forked child."""
    global _tuning
    _tuning = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_lock_in_child)


class ScenarioTuner:
    """Tunes scenarios one at a time, each under a lease, so that no other process tunes it too.

    Args:
        store: where measurements and winners are recorded.
        show_progress: whether a long tune shows a bar on a terminal.
        before: is called with each config before it is measured, once all earlier measurements are
            recorded.
        expendable: whether this process may measure configs of which another one has died.
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
            where another process still tunes, or the device had no memory left for any config. It
            is the default config where only other machines' failures rule out the others.

        Raises:
            NoValidConfigError: every config failed in this process.
        """
        # A process that hangs keeps its lease for ever, and this thread would wait for itself if a
        # hook of the kernel launches it.
        wait = 0.0 if _is_hung(request) or _scenarios.are_tuned(request) else wait
        lease = self._store.tiers.lease(request.context, request.scenario, wait=wait)
        # The lease first: while this thread waits for another process, other kernels may be tuned.
        with lease as is_leased, _tuning, _scenarios.tuning(request):
            # The lease's last holder may have finished this work, or died halfway through it.
            found = self.look_up(request, fresh=True)
            request = self._without_suspects(request, found)
            resolution = resolve_from_record(request, found)
            if resolution and not self.has_work(request, resolution, found):
                return resolution, 0
            record = found.record if found else Record(scenario=request.scenario)
            due = request.due_configs(record)
            has_work = due or resolution or self._untried_failures(request, record)
            if has_work and not (is_leased or _is_hung(request)):
                return resolution, 0
            mark = MeasurementMark(request.context, request.scenario)
            try:
                return self._measure(request, record, due, mark)
            finally:
                mark.close()

    def _without_suspects(self, request: Request, found: Found | None) -> Request:
        """Leave out the configs of which processes have died, unless this one may.

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
        return found and found._replace(record=self._trials.correct(request.context, found.record))

    def has_work(self, request: Request, resolution: Resolution, found: Found | None) -> bool:
        """Return whether a recorded scenario is worth another tune.

        A pinned one never is. A race and its winner are worth it only if they outlive this process.
        """
        if resolution.how == "pinned" or found is None:
            return False
        if self._store.is_lasting:
            return request.has_work(found.record)
        return bool(request.due_configs(found.record))

    def _untried_failures(self, request: Request, record: Record) -> list[Config]:
        """Return the configs that another machine found to fail and this process did not try."""
        tried = {*self._trials.of(request.context, request.scenario)}
        if not self._expendable:
            suspects = find_suspects(request.context, request.scenario)
            tried.update(suspect.config for suspect in suspects)
        return [config for config in request.disputable_configs(record) if config not in tried]

    def _measure(
        self, request: Request, record: Record, due: list[Config], mark: MeasurementMark
    ) -> tuple[Resolution | None, int]:
        def write(measurements: Sequence[Measurement]) -> None:
            nonlocal record
            addition = Record(scenario=request.scenario, measurements=tuple(measurements))
            self._trials.add(request.context, request.scenario, measurements)
            record = self._trials.correct(request.context, merge_records(record, addition))
            # A process whose device is lost may not live to write what is queued.
            is_last = any(_has_crashed(measurement) for measurement in measurements)
            put = self._store.put_now if is_last else self._store.put
            put(request.context, addition)

        def measure(search: Search, total: int, earlier: Sequence[Measurement] = ()) -> int:
            return self._run_search(request, write, search, total, earlier, check, mark)

        options = request.check if may_launch_default(request, record) else None
        check = WinnerCheck(request, options, mark.around)
        search = make_search(request, record, due)
        loaded = LoadedKernels(find_jit_function(request.autotuner))
        measured = measure(search, len(due), earlier_measurements(request, record))
        if best_config(request, record) is None:
            retried = self._untried_failures(request, record)
            measured += measure(Exhaustive(retried), len(retried)) if retried else 0
        confirmed: set[Config] = set()
        while (best := best_config(request, record)) is not None:
            if measured and record.by_config[best].by != whoami() and best not in confirmed:
                # Another machine's timing must not win a tune here without being measured here.
                confirmed.add(best)
                measured += measure(Exhaustive([best]), 1)
                continue
            with recording_crash(best, lambda crash: write([crash])):
                wrong = find_wrong_results(check, request, best)
            if wrong is None:
                break
            write([wrong])
        if best is None:
            return self._without_valid_config(request, record), measured
        config = request.declared[best]
        note_timings(request, record)
        self._store.put(
            request.context,
            Record(
                scenario=request.scenario,
                winner=Winner(config=winner_to_record(request, record, best), at=now()),
                launches=tuned_launches(request.autotuner, config, request.args, request.kwargs),
            ),
        )
        _release_losers(loaded, request, record, best)
        missing = len(request.unmeasured_configs(record))
        how: How = "tuned" if due or measured else "exact"
        return request.resolution(how, config, store=self._store.url, missing=missing), measured

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

    def _run_search(
        self,
        request: Request,
        write: Callable[[Sequence[Measurement]], None],
        search: Search,
        total: int,
        earlier: Sequence[Measurement],
        check: WinnerCheck,
        mark: MeasurementMark,
    ) -> int:
        """Measure what a search proposes within the budget's time; return the number of configs."""
        budget = request.budget
        launch = CandidateLaunch(
            request.autotuner,
            request.declared,
            describe(request.default),
            request.args,
            request.kwargs,
        )
        # A caller's own benchmark is called once per config; the device timer may measure again.
        method = request.context.problem.method
        race = budget.race and not method.startswith(("custom:", "wall"))
        until = math.inf if budget.seconds is None else time.monotonic() + budget.seconds
        marked = find_suspects(request.context, request.scenario)
        suspects = {suspect.config: suspect for suspect in marked}
        title = f"{request.context.kernel.name}{request.scenario}"
        bar = progress(title, total, wanted=self._show_progress)
        recording_paused = pause_recording(request.autotuner, self._store.tiers)
        with MeasurementWriter(write) as writer, bar as advance, recording_paused:

            def note(measurement: Measurement) -> None:
                writer(measurement)
                suspect = suspects.pop(measurement.config, None)
                if suspect is not None and measurement.median is not None:
                    suspect.forget()
                advance()

            def announce(config: Config) -> None:
                with recording_crash(launch.default, writer):
                    check.prepare()
                if self._before is not None:
                    writer.drain()
                    self._before(config)

            return Tuner(
                launch,
                note,
                race=race,
                until=until,
                before=announce,
                mark=mark.around,
                earlier=earlier,
            ).tune(search)


def _release_losers(
    loaded: LoadedKernels, request: Request, record: Record, winner: Config
) -> None:
    """Release the kernels that a tune has compiled, except the winner's and the default's."""
    if not loaded.later():
        return
    measurements = record.by_config
    needed = []
    for config in {winner, describe(request.default)}:
        if config in measurements and measurements[config].median is not None:
            with suppress(Exception):  # Without the kernel, the next launch compiles it.
                chosen = request.declared[config]
                needed.append(
                    compile_config(request.autotuner, chosen, request.args, request.kwargs)
                )
    loaded.release_later(needed)


def _is_hung(request: Request) -> bool:
    """Return whether a process hangs while it tunes a scenario."""
    suspects = find_suspects(request.context, request.scenario)
    return any(suspect.is_hung for suspect in suspects)


def _has_crashed(measurement: Measurement) -> bool:
    return measurement.failure is not None and measurement.failure.kind == "crash"


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
