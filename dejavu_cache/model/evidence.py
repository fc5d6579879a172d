"""Evidence for a config: its time, the runner-up's and the default's, its age and its author."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from ..system.plurals import counted
from .case_scores import CaseScores
from .record import Measurement, Record
from .scenario import Config, now

__all__ = ["ChoiceEvidence", "gather_evidence"]


@dataclass(frozen=True)
class ChoiceEvidence:
    """Measurements of a record that speak for or against the config that a launch runs.

    Attributes:
        median: the config's time in milliseconds; None if it was not timed.
        cases: the number of cases over which it was measured; 0 for a single batch.
        worst: its largest slowdown against the best of a case, or None.
        p20: its time's quantile at 20%, or None.
        p80: its time's quantile at 80%, or None.
        at: when it was measured or, if `pinned_by` is set, when it was pinned.
        by: who measured it.
        pinned_by: who pinned it, or None.
        runner_up: the fastest other declared config, or None.
        runner_up_cost: its time as a multiple of the config's.
        runner_up_error: the share by which that may be off, or None if no race compared the two.
        default: the default config.
        default_cost: its time as a multiple of the config's; None if it was not timed.
        default_error: the share by which that may be off, or None.
        timed: the number of declared configs with a timing.
        failed: the number of declared configs that failed.
    """

    median: float | None
    cases: int
    worst: float | None
    p20: float | None
    p80: float | None
    at: datetime | None
    by: str
    pinned_by: str | None
    runner_up: Config | None
    runner_up_cost: float | None
    runner_up_error: float | None
    default: Config
    default_cost: float | None
    default_error: float | None
    timed: int
    failed: int

    def lines(self) -> list[str]:
        """Return the evidence in words, one line per fact."""
        lines = []
        if self.median is not None:
            spread = "" if self.p20 is None else f" ({self.p20:.4g} to {self.p80:.4g})"
            lines.append(f"time: {self.median:.4g} ms{spread}")
        if self.worst is not None:
            lines.append(
                f"cases: the mean of {self.cases}, at most {self.worst:.2f}x the best of any"
            )
        if self.at is not None:
            verb = "measured" if self.pinned_by is None else "pinned"
            author = self.by if self.pinned_by is None else self.pinned_by
            moment = f"{verb}: {_age(self.at)} ago, {self.at:%Y-%m-%d %H:%M} UTC"
            lines.append(f"{moment}, by {author}" if author else moment)
        if self.runner_up is not None:
            cost = _cost_text(self.runner_up_cost, self.runner_up_error)
            lines.append(f"runner-up: {self.runner_up}, {cost}")
        if self.default_cost is not None:
            lines.append(
                f"default: {self.default}, {_cost_text(self.default_cost, self.default_error)}"
            )
        lines.append(f"compared: {counted(self.timed, 'config')} timed, {self.failed} failed")
        return lines


def gather_evidence(
    record: Record, config: Config, declared: Collection[Config], default: Config
) -> ChoiceEvidence:
    """Return what a record says about a config.

    Args:
        record: the record from which the config was taken.
        config: the config.
        declared: the configs that the kernel declares.
        default: the config of last resort.
    """
    measured = record.by_config
    timed = {
        own: measured[own]
        for own in declared
        if own in measured and measured[own].median is not None
    }
    choice = measured.get(config)
    others = [measurement for own, measurement in timed.items() if own != config]
    runner_up = min(others, key=lambda measurement: measurement.median or 0.0, default=None)
    scores = CaseScores(record.times_by_case)
    is_pinned = record.pin is not None and record.pinned == config
    return ChoiceEvidence(
        median=choice.median if choice else None,
        cases=choice.case_count if choice else 0,
        worst=scores.worst(config) if choice and choice.cases else None,
        p20=choice.p20 if choice else None,
        p80=choice.p80 if choice else None,
        at=record.pin.at if is_pinned and record.pin else choice.at if choice else None,
        by=choice.by if choice else "",
        pinned_by=record.pin.by if is_pinned and record.pin else None,
        runner_up=runner_up.config if runner_up and _cost(runner_up, choice) else None,
        runner_up_cost=_cost(runner_up, choice),
        runner_up_error=_error(runner_up, choice),
        default=default,
        default_cost=_cost(timed.get(default), choice),
        default_error=_error(timed.get(default), choice),
        timed=len(timed),
        failed=sum(own in measured and measured[own].failure is not None for own in declared),
    )


def _cost(measurement: Measurement | None, choice: Measurement | None) -> float | None:
    """Return a config's time as a multiple of the chosen config's, or None."""
    if measurement is None or measurement.median is None or choice is None or not choice.median:
        return None
    return measurement.median / choice.median


def _error(measurement: Measurement | None, choice: Measurement | None) -> float | None:
    """Return the larger relative error of two configs' times in the race that compared them."""
    if measurement is None or choice is None or measurement.config == choice.config:
        return None
    if measurement.confidence is None or choice.confidence is None:
        return None
    return max(measurement.confidence.error, choice.confidence.error)


def _cost_text(cost: float | None, error: float | None) -> str:
    return f"{cost:.2f}x" if error is None else f"{cost:.2f}x to within {error:.1%}"


def _age(moment: datetime) -> str:
    seconds = max((now() - moment).total_seconds(), 0.0)
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
