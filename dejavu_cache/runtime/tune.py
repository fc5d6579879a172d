"""Tune one scenario: under its lease, propose, compile, time and compare configs, and write."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import NothingComparedError, NoValidConfigError, UncomparedResultsError
from ..model.merge import date_after, merge_records
from ..model.record import (
    MOST_OMISSIONS,
    NO_MEMORY,
    NO_WORK,
    Measurement,
    Record,
    Results,
    has_reason,
    reasons_not_compared,
)
from ..model.scenario import Config
from ..stores import Found, one_look
from ..system.background_threads import dropping_errors, uninterrupted
from ..system.fork_lock import ForkLock
from ..system.notices import Progress, warn_once, whoami
from ..triton_internals.compilation import (
    compile_config,
    keys_in_memory,
    release_later,
    release_outdated,
)
from ..triton_internals.config_names import describe
from ..triton_internals.generated_code import tuned_launches
from ..triton_internals.identity import find_jit_function
from ..tuning.compile_ahead import threads_for
from ..tuning.measurement_marks import MeasurementMark, Suspect, find_suspects
from ..tuning.search import BATCH, PredictedSearch, draw_candidates
from ..tuning.tuner import Tuner
from . import rules
from .known_records import NEAR_A_TUNE, KnownRecords, model_slowdowns
from .launch_recorder import pause_recording
from .request import How, Request, Resolution

if TYPE_CHECKING:
    from ..system.workers import ParentConnection

FEW = 16
"""Configs that are all measured: choosing among fewer saves less than it may cost."""

ALL_AT_FIRST = 4
"""Configs for each thread that compiles that are all measured where no record says anything: to
choose among them, batch by batch, takes longer."""

_tuning = ForkLock()
"""Held while this process tunes: two benchmarks at once would time each other.

A thread that has it tunes another scenario if a hook of its kernel launches another kernel.
"""


def tune(
    request: Request, records: KnownRecords, wait: float, parent: ParentConnection | None = None
) -> tuple[Resolution | None, int]:
    """Tune a scenario, or take over what another process has recorded of it meanwhile.

    1. The lease is waited for, and then this process's other tunes.
    2. The record is read again: the lease's last holder may have finished the work, or died halfway
       through it. If nothing is left to do, its config runs.
    3. Without the lease, nothing is measured; a config that was compared runs.
    4. Configs are proposed, compiled, timed and compared, and the winner is written; see `Tune`.

    Args:
        request: the scenario.
        records: where measurements and the winner are recorded.
        wait: seconds to wait for the lease of a process that tunes the same scenario.
        parent: the process that replaces this one if a config ends it, as in a sweep. It is told
            of each config, and those during which other processes have died are measured too.

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
    # A nested tune must not wait for a lease: this thread, or one that waits for this tune, may
    # hold it.
    patience = 0.0 if _tuning.is_own() else wait
    lease = records.tiers.lease(context, scenario, wait=patience)
    # The lease first: while this thread waits for another process, other kernels may be tuned.
    with lease as is_leased, _tuning:
        suspects = find_suspects(context, scenario)
        found = records.look_up(context, scenario, fresh=True)
        record = found.record if found else Record(scenario=scenario)
        if parent is None and suspects:
            request = without_suspects(request, record, suspects)
            if not request.declared:
                reasons = {str(suspect.config): suspect.reason for suspect in suspects}
                raise NoValidConfigError(context.kernel.name, str(scenario), reasons)
        findings = records.findings(context, scenario)
        settled = rules.settled_choice(request, found, findings)
        if settled is not None:
            return settled, 0
        due = rules.due_configs(request, record)
        avoided = suspects if parent is None else ()
        if not is_leased and (
            due
            or rules.recorded_choice(request, found)
            or rules.untried_failures(request, record, findings, avoided)
        ):
            return rules.trusted_choice(request, found), 0
        return Tune(request, record, records, suspects, parent).run(due, avoided)


@dataclass(eq=False)
class Tune:
    """One tune of one scenario, whose lease is held.

    Args:
        _record: what is recorded of the scenario.
        _records: where measurements and the winner are recorded.
        _suspects: configs during which other processes have died.
        _parent: as of `tune`.
    """

    _request: Request
    _record: Record
    _records: KnownRecords
    _suspects: Sequence[Suspect]
    _parent: ParentConnection | None

    def __post_init__(self) -> None:
        """Measure nothing yet."""
        request = self._request
        self._findings = self._records.findings(request.context, request.scenario)
        self._measured = 0
        self._left_out: dict[str, float] = {}
        self._queued: list[Measurement] = []
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="dejavu-cache writer")
        self._mark = MeasurementMark(request.context, request.scenario, self._parent)
        check = request.check if rules.may_launch_default(request, self._record) else None
        self._check = request.result_check(check, self._mark)
        self._function = find_jit_function(request.autotuner)
        self._in_memory: Mapping[int, set[str]] = {}
        if self._function is not None:
            release_outdated(self._function, request.context.environment.variables)
            self._in_memory = keys_in_memory(self._function)

    def run(
        self, due: Sequence[Config], suspects: Iterable[Suspect]
    ) -> tuple[Resolution | None, int]:
        """Measure configs, select the winner and record it; return as `tune` does.

        Args:
            due: the configs left to measure. Without any, an unfinished race goes on, and if no
                config has a usable timing, those are measured whose failure may be over.
            suspects: configs that this process must not try again.
        """
        request, findings = self._request, self._findings
        # Whatever happens, the launch's arguments and their copies are let go of.
        with closing(self._mark), closing(self._check), self._writer:
            try:
                if due or (self._record.winner is None and not findings.is_raced):
                    limit = rules.budgeted_count(request, len(due))
                    search = predicted_search(request, self._record, self._records, due, limit)
                    self._measure(due[:limit], search, rules.earlier_timings(self._record))
                    findings.is_raced = True
                    if search is not None and search.is_settled:
                        self._left_out = {request.declared.digest: request.budget.loss}
                if rules.best_config(request, self._record) is None and (
                    untried := rules.untried_failures(request, self._record, findings, suspects)
                ):
                    self._measure(untried)
                winner, results = self._find_winner()
            except UncomparedResultsError as error:
                if self._parent is not None:  # a sweep serves no launch, and says what it lacks
                    raise
                return self._without_comparison(error), self._measured
            except Exception:
                if self._mark.crash is not None:
                    self._queued.append(self._mark.crash)
                    self._write()
                raise
            if winner is None:
                return self._without_valid_config(), self._measured
            # Noted here too: the recorded winner may be that of a launch with other configs.
            findings.compared.add(winner)
            findings.is_raced = False
            self._record_winner(winner, results)
        how: How = "tuned" if due or self._measured else "exact"
        chosen, reasons = request.declared[winner], reasons_not_compared(results)
        return request.resolution(how, chosen, self._records.kept_in, reasons), self._measured

    def _measure(
        self,
        configs: Sequence[Config],
        search: PredictedSearch | None = None,
        earlier: Sequence[Measurement] = (),
    ) -> None:
        """Measure configs, or as many that a search proposes, within the budget's time."""
        request, seconds = self._request, self._request.budget.seconds
        tuner = Tuner(
            request.candidate_launch(),
            self._mark,
            self._check,
            until=math.inf if seconds is None else time.monotonic() + seconds,
            loss=request.budget.loss,
            earlier=earlier,
        )
        writes, process, progress = [], os.getpid(), Progress(f"tuning {request.name}")
        with pause_recording(request.autotuner):
            try:
                for done, measurements in enumerate(tuner.tune(configs, search), 1):
                    self._queued += measurements
                    try:
                        writes.append(self._writer.submit(self._write))
                    except RuntimeError:  # threads begin nothing once the main one has ended
                        wait(writes)
                        self._write()
                    if self._parent is not None:
                        writes[-1].result()  # before it is told of the next config
                    progress.show(f"{done} of {len(configs)} configs")
            finally:
                self._measured += len(tuner.tried)
                for write in writes if os.getpid() == process else ():  # a child has no writer
                    write.result()

    def _write(self) -> None:
        """Write what was measured by now, mostly in a thread: no benchmark waits for a disk."""
        request, latest = self._request, {}
        with uninterrupted():
            queued = self._queued[:]
            del self._queued[: len(queued)]  # in one step: more may be queued meanwhile
            if not queued:
                return
            for measurement in queued:  # the later one of a config counts
                latest[measurement.config] = measurement
            addition = Record(scenario=request.scenario, measurements=tuple(latest.values()))
            # After what they replace: else that stands if another clock dated it, and is due again.
            dated = date_after(addition, self._record)
            self._findings.add_trials(dated.measurements)
            merged = merge_records(self._record, dated)
            self._record = rules.corrected_record(merged, self._findings)
            # A process whose device is lost may not live to write what is queued.
            self._records.put(request.context, dated, now=self._mark.crash is not None)
            for suspect in self._suspects:
                measured = self._findings.trials.get(suspect.config)
                if measured is not None and measured.median is not None:
                    suspect.forget()

    def _find_winner(self) -> tuple[Config | None, Results]:
        """Return the best config whose results are not wrong, and what comparing it has shown.

        The config is None if none is left.

        Raises:
            NothingComparedError: nothing shows whether the best config's results are right.
        """
        results: Results = {}
        confirmed: set[Config] = set()
        while (best := rules.best_config(self._request, self._record)) is not None:
            by = self._record.by_config[best].by
            if self._measured and by != whoami() and best not in confirmed:
                # Another machine's timing must not win a tune here without being measured here.
                confirmed.add(best)
                self._measure([best])
                continue
            results, wrong = self._check.compare(self._request.declared[best])
            if wrong is None:
                break
            self._queued.append(wrong)
            self._write()
        return best, results

    def _record_winner(self, best: Config, results: Results) -> None:
        """Record the winner and its launches, and release the kernels that lost."""
        request, is_measured = self._request, bool(self._measured)
        request.note_timings(self._record)
        addition = Record(
            scenario=request.scenario,
            winner=rules.winner_to_record(
                request, self._record, best, results, self._left_out, measured=is_measured
            ),
            launches=tuned_launches(
                request.autotuner, request.declared[best], request.args, request.kwargs
            ),
        )
        self._records.put(request.context, date_after(addition, self._record))
        if self._function is not None:  # else nothing was compiled
            self._release_losers(self._function, best)

    def _release_losers(self, function: Any, winner: Config) -> None:
        """Release the kernels compiled since the beginning, except the winner's."""
        request = self._request
        with dropping_errors():  # a kernel that does not compile any more fails at its launch
            config, args, kwargs = request.declared[winner], request.args, request.kwargs
            needed = compile_config(request.autotuner, config, args, kwargs)
            release_later(function, self._in_memory, needed)

    def _without_comparison(self, error: UncomparedResultsError) -> Resolution | None:
        """Return what runs where nothing can be compared; None if a later launch may compare."""
        request = self._request
        if not isinstance(error, NothingComparedError):
            warn_once(
                f"uncompared {request.context.kernel.name}",
                f"{request.name}: {error}; the launch takes a fallback, and a later one tunes",
            )
            return None
        results = error.results
        if not has_reason(results, NO_WORK, NO_MEMORY):
            self._findings.hidden = results  # no other launch would show more
        found = Found(self._record, self._records.kept_in)
        return rules.uncompared_choice(request, found, results)

    def _without_valid_config(self) -> Resolution | None:
        """Return the default config's resolution, or None where memory lacked for some config.

        Raises:
            NoValidConfigError: every config failed in this process, not only by somebody's record.
        """
        request, trials = self._request, self._findings.trials
        if all(config in trials and trials[config].failure for config in request.declared):
            self._findings.trials = {}  # a later launch may succeed
            reasons = {
                str(config): f"{failure.kind}: {failure.reason}"
                for config in request.declared
                if (failure := trials[config].failure) is not None
            }
            raise NoValidConfigError(request.context.kernel.name, str(request.scenario), reasons)
        warn_once(
            f"failures {request.context.kernel.name}",
            f"{request.name}: no config has a usable timing: the device has no memory left for "
            "some, their times are below a nanosecond, or other processes recorded failures, which "
            "`dejavu-cache show` lists; the launch runs a fallback",
        )
        measured = self._record.by_config
        if any(config in measured and measured[config].skipped for config in request.declared):
            return None  # a later launch tries again
        return request.resolution("default", request.default)


def predicted_search(
    request: Request, record: Record, records: KnownRecords, due: Sequence[Config], limit: int
) -> PredictedSearch | None:
    """Return what chooses some of the due configs, or None where all are to be measured.

    All are where few are due, and where pruning declares ever other configs, so that a record
    cannot say of each of these lists what was left out. A search proposes at most `limit` configs.
    """
    is_noted = len(record.omissions) < MOST_OMISSIONS
    predicts = request.budget.loss > 0 and len(due) >= FEW and is_noted
    if not (limit < len(due) or predicts):
        return None
    measured = {
        entry.config: entry.median
        for entry in record.measurements
        if entry.config in request.declared and entry.config not in due
    }
    default = describe(request.default)
    candidates = draw_candidates([*request.declared], [default, *measured])
    with one_look():
        neighbours = list(records.neighbours(request, NEAR_A_TUNE))
    threads = threads_for(limit)
    if not neighbours and limit == len(due) <= ALL_AT_FIRST * threads:
        return None
    model = model_slowdowns(request, candidates, neighbours, unmeasured=False)
    if model is None:
        if limit < len(due):
            warn_once(
                f"numpy {request.name}",
                f"{request.name}: the first {limit} of {len(due)} configs are measured, since "
                "NumPy is not installed, which choosing among them needs",
            )
        return None
    for config, median in measured.items():
        model.note(config, median)
    first = [default] if default in due else []
    return PredictedSearch(model, first, limit, request.budget.loss, max(threads // 2, BATCH))


def without_suspects(
    request: Request, record: Record | None, suspects: Iterable[Suspect]
) -> Request:
    """Return a request without the configs that may end this process.

    Processes were measuring them when they died. A config that a person pinned is none, and
    nothing is said of those whose failure is recorded.
    """
    measured = record.by_config if record else {}
    suspected = set()
    for suspect in suspects:
        config = suspect.config
        if config not in request.declared or (record and config == record.pinned):
            continue
        suspected.add(config)
        failed = measured.get(config)
        if failed is None or failed.failure is None or failed.skipped:
            warn_once(
                f"suspect {request.name} {config}",
                f"{request.name}: ({config}) is not run for a day: {suspect.reason}; to clear or "
                "convict it, measure it with `dejavu-cache sweep`, where a crash costs only a "
                "worker",
            )
    return request.without(suspected)
