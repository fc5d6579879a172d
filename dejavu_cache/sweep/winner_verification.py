"""Check recorded winners on this machine's GPU: their times beside rivals', and their results."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Literal, NamedTuple

from ..errors import NoValidConfigError, UncomparedResultsError
from ..model.record import Failure, Measurement, OutputVerdict, Record, Winner, are_compared, sum_up
from ..model.scenario import Config, Context, Scenario, moment_after, now
from ..model.selection import NOISE
from ..runtime.request import Request
from ..runtime.rules import best_config, trusted_configs, winner_config
from ..stores import Store
from ..triton_internals.config_names import describe
from ..triton_internals.generated_code import tuned_launches
from ..tuning.benchmark_methods import is_called_once
from ..tuning.compile_ahead import failed_measurement
from ..tuning.measurement_marks import MeasurementMark
from ..tuning.result_check import CheckOptions, refuse_uncompared
from ..tuning.tuner import Tuner
from .case_tuner import make_request
from .suite import Case

__all__ = [
    "AuditedWinner",
    "VerifiedWinner",
    "audit_winners",
    "verify_winners",
]


LOOKS = 2
"""Comparisons in a row that have to contradict a winner before it is set aside."""


class VerifiedWinner(NamedTuple):
    """A recorded winner, and what another comparison says about it.

    Attributes:
        case: the name of the case that was launched.
        kernel: the kernel's name.
        scenario: the scenario as text.
        config: the winner as text.
        outcome: whether the winner holds, was set aside, or could not be compared.
        recorded: its recorded time in milliseconds.
        again: its time now, or None.
        rival: the fastest other config as text; empty without one.
        cost: the winner's time as a multiple of the rival's, or None.
        error: share up to which the two times count as equal, or None.
        winner: the config that is recorded as the winner now, as text.
        reason: why the winner does not hold, or could not be compared.
    """

    case: str
    kernel: str
    scenario: str
    config: str
    outcome: Literal["holds", "set aside", "unchecked"]
    recorded: float | None = None
    again: float | None = None
    rival: str = ""
    cost: float | None = None
    error: float | None = None
    winner: str = ""
    reason: str = ""


def verify_winners(
    cases: Iterable[Case], store: Store, most: int, rng: random.Random | None = None
) -> Iterator[VerifiedWinner]:
    """Compare winners, drawn at random, with their runner-up and the default config again.

    A winner that twice in a row is slower than one of them, by more than the comparison's error, no
    longer holds. What was measured now then stands instead of what was recorded, and what is best
    by it is the winner, if its results are right.

    Args:
        cases: the cases to launch; those without a record of this device are left out.
        store: the store with the records.
        most: the number of winners to compare, at most.
        rng: the source of the random choice.

    Raises:
        StoreError: the store cannot be read or written, or an earlier winner not set aside.
    """
    waiting = list(cases)
    (rng or random.Random()).shuffle(waiting)
    compared: set[tuple[Context, Scenario]] = set()
    for recorded in _recorded_winners(waiting, store):
        key = recorded.request.context, recorded.request.scenario
        if key in compared:
            continue
        compared.add(key)
        yield _verify(recorded, store)
        if len(compared) >= most:
            return


class _RecordedWinner(NamedTuple):
    case: str
    request: Request
    record: Record
    config: Config


def _recorded_winners(cases: Iterable[Case], store: Store) -> Iterator[_RecordedWinner]:
    """Make the arguments of one case after the other, and yield those that have a winner."""
    for case in cases:
        request = make_request(case)
        stored = store.get(request.context, request.scenario, fresh=True)
        best = best_config(request, stored.record) if stored else None
        if stored is not None and best is not None:
            yield _RecordedWinner(case.name, request, stored.record, best)


def _verify(recorded: _RecordedWinner, store: Store) -> VerifiedWinner:
    case, request, record, best = recorded
    verified = VerifiedWinner(
        case,
        request.context.kernel.name,
        str(request.scenario),
        str(best),
        "unchecked",
        recorded=record.by_config[best].median,
        winner=str(best),
    )
    with store.lease(request.context, request.scenario, wait=0.0) as is_leased:
        if not is_leased:
            return verified._replace(reason="another process tunes this scenario")
        with closing(_Verification(request, record, best, store)) as verification:
            return verification.run(verified)


class _Verification:
    """Another comparison of the winner of one scenario."""

    def __init__(self, request: Request, record: Record, best: Config, store: Store) -> None:
        self._request = request
        self._store = store
        self._record = record
        self._best = best
        self._mark = MeasurementMark(request.context, request.scenario)
        self._check = request.result_check(request.check, self._mark.around)

    def close(self) -> None:
        """Forget that this process measures, and let go of the launch's arguments."""
        self._check.close()
        self._mark.close()

    def run(self, verified: VerifiedWinner) -> VerifiedWinner:
        """Compare, and set the winner aside if it does not hold."""
        rivals = self._rivals()
        if self._record.by_config[self._best].cases:
            reason = "its time is a mean over several cases; `sweep --verify` measures it again"
            return verified._replace(reason=reason)
        if not rivals:
            return verified._replace(outcome="holds", reason="no other config has a timing")
        for _ in range(LOOKS):
            look = self._compare([self._best, *rivals])
            verified = _judge(verified, self._best, look)
            if verified.outcome != "set aside":
                return verified
        try:
            return verified._replace(winner=str(self._set_winner_aside(look)))
        except UncomparedResultsError as error:
            return verified._replace(outcome="unchecked", reason=str(error))

    def _rivals(self) -> list[Config]:
        """Return the fastest other config that the kernel declares, and the default config."""
        others = {
            config: item
            for config, item in self._record.by_config.items()
            if config != self._best and config in self._request.declared
        }
        default = describe(self._request.default)
        is_timed = default in others and others[default].median is not None
        rivals = [self._select(others), default if is_timed else None]
        return list(dict.fromkeys(config for config in rivals if config is not None))

    def _select(self, measurements: Mapping[Config, Measurement]) -> Config | None:
        """Return the best of some measurements, whatever won before."""
        update = {"winner": None, "measurements": tuple(measurements.values())}
        return best_config(self._request, self._record.model_copy(update=update))

    def _compare(self, configs: Sequence[Config]) -> dict[Config, Measurement]:
        """Measure configs as a tune does."""
        request = self._request
        method = request.context.problem.method
        default = describe(request.default)
        launch = request.candidate_launch(default if default in configs else configs[0])
        measured: dict[Config, Measurement] = {}

        def keep(measurements: Sequence[Measurement]) -> None:
            measured.update((measurement.config, measurement) for measurement in measurements)
            if any(measurement.has_crashed for measurement in measurements):
                self._store.put_now(request.context, [self._new_record(measurements)])

        tuner = Tuner(
            launch,
            keep,
            race=not is_called_once(method),
            around=self._mark.around,
        )
        tuner.tune(configs)
        return measured

    def _set_winner_aside(self, look: Mapping[Config, Measurement]) -> Config:
        """Record new measurements and the winner by them, checked as in a tune; return it.

        Raises:
            NoValidConfigError: none of the recorded configs runs any longer.
            UncomparedResultsError: nothing shows whether the best one's results are right.
        """
        request, measured = self._request, dict(look)
        self._check.prepare()
        while True:
            best = self._select({**self._record.by_config, **measured})
            if best is None:
                self._store.supersede(request.context, self._new_record(measured.values()))
                reasons = {str(config): str(item.failure) for config, item in measured.items()}
                kernel = request.context.kernel.name
                raise NoValidConfigError(kernel, str(request.scenario), reasons)
            if best not in measured:  # Its timing is of an earlier moment.
                running = [config for config in measured if measured[config].failure is None]
                measured.update(self._compare([*running, best]))
                continue
            results, wrong = self._check.compare(request.declared[best])
            if wrong is None:
                refuse_uncompared(results)
                break
            measured[best] = wrong
        all_measured = self._new_record({**self._record.by_config, **measured}.values())
        config = winner_config(request, all_measured, best)
        update = {
            "winner": Winner(config=config, at=now(), results=results if config == best else None),
            "launches": tuned_launches(
                request.autotuner, request.declared[best], request.args, request.kwargs
            ),
        }
        addition = self._new_record(measured.values()).model_copy(update=update)
        self._store.supersede(request.context, addition)
        return best

    def _new_record(self, measurements: Iterable[Measurement]) -> Record:
        return Record(scenario=self._request.scenario, measurements=tuple(measurements))


def _judge(
    verified: VerifiedWinner, best: Config, look: Mapping[Config, Measurement]
) -> VerifiedWinner:
    """Return what a comparison says about a winner."""
    own = look.get(best)
    if own is None or own.skipped:
        return verified._replace(outcome="unchecked", reason="the device has no memory for it")
    if own.failure is not None:
        return verified._replace(
            outcome="set aside", reason=f"{own.failure.kind}: {own.failure.reason}"
        )
    timed = [item for config, item in look.items() if config != best and item.median]
    rival = min(timed, key=lambda item: item.median or 0.0, default=None)
    verified = verified._replace(outcome="holds", again=own.median, reason="")
    if rival is None or not rival.median or not own.median:
        return verified
    error = max(NOISE, _error(own), _error(rival))
    cost = own.median / rival.median
    verified = verified._replace(rival=str(rival.config), cost=cost, error=error)
    if cost <= 1 + error:
        return verified
    reason = f"it takes {cost:.2f}x the time of ({rival.config}), to within {error:.1%}"
    return verified._replace(outcome="set aside", reason=reason)


def _error(measurement: Measurement) -> float:
    """Return the relative error of a timing by its race or, without one, by its quantiles."""
    if measurement.confidence is not None:
        return measurement.confidence.error
    if not measurement.median or measurement.p20 is None or measurement.p80 is None:
        return 0.0
    return (measurement.p80 - measurement.p20) / 2 / measurement.median


class AuditedWinner(NamedTuple):
    """A recorded winner and how its results compare with the default config's.

    Attributes:
        case: the name of the case that was launched.
        kernel: the kernel's name.
        scenario: the scenario as text.
        config: the winner as text.
        results: what comparing each output has shown.
    """

    case: str
    kernel: str
    scenario: str
    config: str
    results: dict[str, OutputVerdict]

    @property
    def verdict(self) -> OutputVerdict:
        """The outcome over all outputs, and its reason."""
        return sum_up(self.results)


def audit_winners(cases: Iterable[Case], store: Store) -> Iterator[AuditedWinner]:
    """Compare each recorded winner's results with the default's, on the arguments of its case.

    What that shows is recorded: no machine that shares the store runs a winner that is wrong, and
    none compares one again that is right.

    Args:
        cases: the cases to launch; those without a record of this device are left out.
        store: the store with the records.

    Raises:
        StoreError: the store cannot be read or written.
    """
    for case, request, record, best in _recorded_winners(cases, store):
        with closing(request.result_check(request.check or CheckOptions())) as check:
            results = dict(check.compare(request.declared[best])[0])
        name, scenario = request.context.kernel.name, str(request.scenario)
        audited = AuditedWinner(case, name, scenario, str(best), results)
        if not store.read_only:
            addition = _addition(request, record, best, audited)
            if addition is not None:
                store.put_now(request.context, [addition])
        yield audited


def _addition(
    request: Request, record: Record, best: Config, audited: AuditedWinner
) -> Record | None:
    """Return what an audit adds to a record, or None."""
    if audited.verdict.outcome == "wrong":
        failed = failed_measurement(best, Failure(kind="wrong", reason=audited.verdict.reason))
        return Record(scenario=request.scenario, measurements=(failed,))
    if not are_compared(audited.results) or best in trusted_configs(record, None):
        return None
    at = moment_after(record.winner.at if record.winner else None)
    winner = Winner(config=best, at=at, results=audited.results)
    return Record(scenario=request.scenario, winner=winner)
