"""Select the winner of a record: which timings are believed, and which of them is the best.

A record may come from a broken clock, a broken node or somebody who wants a slow config to win. A
timing that is not believed decides nothing.

A sweep may time the configs in several cases of a scenario: batches that share it. What wins has to
be good on average over them, and not bad in any. A config's *slowdown* in a case is its time over
the best time of that case. Its score is the geometric mean of its slowdowns or, if that is more,
its largest slowdown over `MOST_SLOWDOWN`: as if it were that slow everywhere.
"""

import math
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from operator import attrgetter, mul
from typing import Any, Generic, TypeVar

from ..system.notices import counted, whoami
from .record import Measurement, Record
from .scenario import Config, Scenario, now

SHORTEST_TIMING = 1e-6
"""Least credible timing in milliseconds: a nanosecond, the unit of the host's clocks."""

MOST_ADVANTAGE = 10.0
"""Largest factor by which a config may be faster than all that other machines have measured.

One that is faster still counts only if a second machine confirms it, or if it won a tune.
"""

NOISE = 0.01
"""Relative difference of two medians below which they tie, whatever their quantiles."""

MOST_UNCERTAIN = 0.02
"""Relative difference of two medians that counts in any case: a race tells that much apart."""

WIDEST_TIE = 0.5
"""Relative slowdown against the best up to which its quantiles may make another config tie.

Wider quantiles say that the timing is worth nothing, not that all configs are equal.
"""

CONTENDER = 0.1
"""Relative slowdown against the best above which a config drops out after one measurement."""

MOST_SLOWDOWN = 1.15
"""Slowdown in a case up to which a config's score is its mean alone."""

BEHIND = 1.15
"""Ratio to the leader's score from which on a config is measured in no further case.

It is above 1 because a config that was left out may be the best of a later case, whose best time is
then not known: on measured tables of 20 to 180 configs in 2 to 6 cases, the choice was 0.02% worse
on average than with all timings, for 61 to 79% of them.
"""

UNFINISHED = 1.02
"""Least ratio to the leader's score at which a config that was left out is recorded."""


def winner(
    record: Record,
    declared: Container[Config],
    default: Config | None = None,
    *,
    here: bool = False,
) -> Config | None:
    """Return the best of the declared configs by a record's timings, or None if none of them ran.

    The record's winner stands as long as nothing was measured since that speaks against it, and
    while it ties with the best, so that near-ties do not flip from one tune to the next; but never
    a config slower than the default. The default wins where it ties with the best. Timings that are
    not credible take no part, nor, where a sweep measured several cases of the scenario, do those
    of fewer cases: what is fast on one batch may be slow on most.

    Args:
        record: the timings and the previous winner.
        declared: the configs that the kernel declares today, and pruning leaves.
        default: the config that the winner must not be slower than.
        here: whether a launch asks, to which this machine's timings need no confirmation.
    """
    timed = _believed_timings(record, declared, here=here)
    if not timed:
        return None
    best = min(timed.values(), key=attrgetter("median"))  # of equal ones the first by their text
    least, p20, p80 = best.median or 0.0, best.p20, best.p80
    standard = (timed[default].median or 0.0) if default and default in timed else math.inf
    previous = timed.get(record.winner.config) if record.winner else None
    if record.winner is not None and previous is not None:
        is_latest = max(map(attrgetter("at"), timed.values())) <= record.winner.at
        tie = max(1 + NOISE, min((p80 or 0.0) / least, 1 + WIDEST_TIE))
        if is_latest:  # close contenders were repeated before it won
            tie = max(tie, 1 + CONTENDER)
        if (previous.median or 0.0) <= min(least * tie, standard):
            return previous.config
    uncertainty = NOISE
    if p20 is not None and p80 is not None:
        uncertainty = min(max(NOISE, (p80 - p20) / least / 4), MOST_UNCERTAIN)
    return default if standard <= least * (1 + uncertainty) else best.config


def _believed_timings(
    record: Record, declared: Container[Config], *, here: bool
) -> dict[Config, Measurement]:
    """Return the timings of declared configs that may decide, by config.

    A config that one machine alone found many times as fast as all others did is not among them,
    unless it won a tune. A scenario that one machine has measured has nothing to compare it with.
    """
    timed: dict[Config, Measurement] = {}
    best_by_machine: dict[str, float] = {}
    has_cases = False
    for entry in record.measurements:
        median = entry.median or 0.0
        if entry.config in declared and median >= SHORTEST_TIMING:
            timed[entry.config] = entry
            has_cases = has_cases or entry.cases is not None
            best_by_machine[entry.by] = min(best_by_machine.get(entry.by, math.inf), median)
    if len(best_by_machine) > 1:
        known = record.winner.config if record.winner else None
        rival_of = {
            machine: min(best for other, best in best_by_machine.items() if other != machine)
            for machine in best_by_machine
        }
        own = whoami() if here else None
        timed = {
            config: entry
            for config, entry in timed.items()
            if entry.by == own
            or config == known
            or (entry.median or 0.0) * MOST_ADVANTAGE >= rival_of[entry.by]
        }
    if not has_cases:
        return timed
    most = max(entry.case_count for entry in timed.values())
    return {config: entry for config, entry in timed.items() if entry.case_count == most}


def find_rivals(records: Iterable[Record], most: int) -> list[Config]:
    """Return the fastest configs of each record, by rank."""
    rows = [sorted(filter(is_credible, r.measurements), key=attrgetter("median")) for r in records]
    fastest = (entry.config for rank in zip_longest(*rows) for entry in rank if entry)
    return [*dict.fromkeys(fastest)][:most]


def is_credible(measurement: Measurement) -> bool:
    """Return whether a measurement has a timing that a launch can have."""
    return (measurement.median or 0.0) >= SHORTEST_TIMING


C = TypeVar("C")


class CaseScores(Generic[C]):
    """Slowdowns and scores of configs, each timed in some of the cases.

    Attributes:
        best: the best time of each case, in milliseconds.
        level: the geometric mean of the best times; 0 without any.
    """

    def __init__(self, times: Mapping[C, Mapping[str, float]]) -> None:
        """Compute the best times, from times in milliseconds, above 0, by config and case."""
        self._times = {config: dict(by_case) for config, by_case in times.items() if by_case}
        cases = {case for by_case in self._times.values() for case in by_case}
        self.best = {
            case: min(by_case[case] for by_case in self._times.values() if case in by_case)
            for case in sorted(cases)
        }
        logs = [math.log(time) for time in self.best.values()]
        self.level = math.exp(math.fsum(logs) / len(logs)) if logs else 0.0

    def __contains__(self, config: object) -> bool:
        """Return whether a config was timed in any case."""
        return config in self._times

    def score(self, config: C) -> float:
        """Return a config's score, 1 or more, over the cases in which it was timed."""
        slowdowns = self._slowdowns(config)
        return _score(slowdowns, len(slowdowns))

    def equivalent(self, config: C) -> float:
        """Return a config's score as a time in milliseconds, which is comparable with the others'.

        A config that was not timed in all cases never comes out ahead of the best that was.
        """
        score = self.score(config)
        if len(self._times[config]) < len(self.best):
            score = max(score, self._leading_score * UNFINISHED)
        return score * self.level

    def may_win(self, config: C, cases: int) -> bool:
        """Return whether a config that was timed may still come close to the leader, or beat it.

        In the cases, of `cases` in the end, where it was not timed, it is taken to be the best; its
        largest slowdown so far counts in any case.
        """
        return _score(self._slowdowns(config), cases) < self._leading_score * BEHIND

    @property
    def leaders(self) -> list[C]:
        """Configs timed in the most cases, the best first."""
        most = max(map(len, self._times.values()), default=0)
        complete = [config for config, times in self._times.items() if len(times) == most]
        return sorted(complete, key=self.score)

    @property
    def _leading_score(self) -> float:
        return self.score(self.leaders[0])

    def _slowdowns(self, config: C) -> list[float]:
        return [time / self.best[case] for case, time in self._times[config].items()]


def _score(slowdowns: list[float], cases: int) -> float:
    """Return the score over a number of cases, of which those without a slowdown count as 1."""
    mean = math.exp(math.fsum(map(math.log, slowdowns)) / cases)
    return max(mean, max(slowdowns) / MOST_SLOWDOWN)


def distance(left: Scenario, right: Scenario) -> float:
    """Sum the powers of two between two scenarios' numbers; infinite if anything else differs."""
    if left.dtypes != right.dtypes or left.args.keys() != right.args.keys():
        return math.inf
    return sum(value_distance(value, right.args[name]) for name, value in left.args.items())


def value_distance(left: Any, right: Any) -> float:
    """Return the powers of two between two numbers; infinite between other values that differ."""
    are_numbers = type(left) in (int, float) and type(right) in (int, float)
    if are_numbers and left > 0 and right > 0:  # most are, and a launch may compare thousands
        return abs(math.log2(left) - math.log2(right))
    if not are_numbers or (left < 0) != (right < 0):
        return 0.0 if left == right and type(left) is type(right) else math.inf
    more = not (left and right)  # zero has no logarithm
    return abs(math.log2(abs(left) + more) - math.log2(abs(right) + more))


def relative_squares(distances: Sequence[float]) -> list[float]:
    """Return the squares of distances over their mean, infinite ones aside."""
    finite = [*filter(math.isfinite, distances)]
    mean = sum(map(mul, finite, finite)) / max(len(finite), 1) or 1.0
    return [each * each / mean for each in distances]


def evidence_lines(
    record: Record, config: Config, declared: Collection[Config], default: Config | None = None
) -> list[str]:
    """Return what the record of a config says for and against it, one line per fact."""
    measured = {own: entry for own, entry in record.by_config.items() if own in declared}
    timed = {own: entry.median for own, entry in measured.items() if entry.median}
    choice, lines = record.by_config.get(config), []
    if choice is not None and choice.median:
        spread = "" if choice.p20 is None else f" ({choice.p20:.4g} to {choice.p80:.4g})"
        cases = f", the mean of {choice.case_count} cases" if choice.cases else ""
        lines.append(f"time: {choice.median:.4g} ms{spread}{cases}")
    if record.pin is not None and record.pinned == config:
        lines.append(_moment_line("pinned", record.pin.at, record.pin.by))
    elif choice is not None:
        lines.append(_moment_line("measured", choice.at, choice.by))
    if choice is not None and choice.median:
        others = [own for own in timed if own != config]
        if others:
            runner_up = min(others, key=timed.__getitem__)
            cost = _cost(measured[runner_up], choice)
            if timed[runner_up] < choice.median:  # as of a pin
                lines.append(f"slower than {runner_up}, which takes {cost} its time")
            else:
                lines.append(f"runner-up: {runner_up}, {cost}")
        if default in timed:
            lines.append(f"default: {default}, {_cost(measured[default], choice)}")
    failed = sum(entry.failure is not None for entry in measured.values())
    lines.append(f"compared: {counted(len(timed), 'config')} timed, {failed} failed")
    return lines


def _cost(measurement: Measurement, choice: Measurement) -> str:
    """Return a config's time as a multiple of the chosen one's, and how sure a race was."""
    cost = f"{(measurement.median or 0.0) / (choice.median or 1.0):.2f}x"
    if measurement is choice or not (measurement.confidence and choice.confidence):
        return cost
    return f"{cost} to within {max(measurement.confidence.error, choice.confidence.error):.1%}"


def _moment_line(verb: str, moment: datetime, author: str) -> str:
    seconds = max((now() - moment).total_seconds(), 0.0)
    age = f"{seconds:.0f} seconds"
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            age = f"{seconds / length:.0f} {unit}"
            break
    by = f", by {author}" if author else ""
    return f"{verb}: {age} ago, {moment:%Y-%m-%d %H:%M} UTC{by}"
