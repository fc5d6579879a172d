"""The outcome of resolving a scenario: the config, its provenance, and what speaks for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ..system.notices import counted
from .record import Measurement, Record
from .scenario import GENERATED_MODULE, Config, Context, Difference, Environment, Scenario, now
from .selection import CaseScores

__all__ = ["ChoiceEvidence", "How", "Resolution", "gather_evidence"]

How = Literal[
    "exact",
    "tuned",
    "nearest",
    "tree",
    "family",
    "toolchain",
    "pinned",
    "agreed",
    "imported",
    "default",
    "off",
]
"""The provenance of a config.

`exact`: recorded. `tuned`: benchmarked by this process. `nearest`: the winner of a neighbouring
scenario. `tree`: a decision tree's choice. `family`: recorded on another GPU of the architecture.
`toolchain`: recorded with another Triton. `pinned`: chosen by a person. `agreed`: chosen by another
rank of the job. `imported`: found by another tool. `default`: none of these, or a kernel with one
config. `off`: Triton's own autotuner decides, and nothing is looked up or recorded."""


@dataclass(frozen=True)
class Resolution:
    """The config of a scenario, and its provenance.

    Attributes:
        how: the provenance.
        config: the `triton.Config` that a launch runs; None if Triton has yet to choose it.
        scenario: the bucketed values and dtypes.
        context: kernel, environment and problem.
        store: URL of the record's store or of the tree's file, name of another tool, or None.
        distance: of a `nearest` scenario, in powers of two.
        differences: on a miss, the fields in which the nearest or the tree's records differ.
        missing: the number of declared configs without a measurement.
        unfinished: on a miss, whether the scenario has timings, but no winner.
        not_compared: which results of the config, or of a faster one that does not run for want of
            a comparison, were not compared with the default's, and why.
        wrong: the declared configs whose results were found to be wrong, with the evidence.
        agreed: whether all ranks of the job run this config, even if a later lookup finds another.
        only: whether pruning left the launch no other config.
        ignored_pin: the config that a person chose and the launch may not run, or None.
        not_stored: why the kernel's timings stay in this process, or None if they are stored.
        uncompared: why nothing of the launch can be compared, so that the default runs; or empty.
        is_idle: whether the launch has no work: then its config says nothing about others.
        recorded_in: the context of the record that stands in, if it is another one.
        recorded_for: the scenario of the record that stands in, if it is another one.
        nearest: on a miss, the distance of the nearest record of the context, however far; filled
            by `explain`.
        evidence: what the record says about the config and the others; filled by `explain`.
    """

    how: How
    config: Any
    scenario: Scenario
    context: Context
    store: str | None = None
    distance: float = 0.0
    differences: Sequence[Difference] = ()
    missing: int = 0
    unfinished: bool = False
    not_compared: Sequence[str] = ()
    wrong: Sequence[str] = ()
    agreed: bool = False
    only: bool = False
    not_stored: str | None = None
    ignored_pin: str | None = None
    uncompared: str = ""
    is_idle: bool = False
    recorded_in: Context | None = None
    recorded_for: Scenario | None = None
    nearest: float | None = None
    evidence: ChoiceEvidence | None = None

    @property
    def environment(self) -> Environment:
        """Return the context's environment."""
        return self.context.environment

    @property
    def final(self) -> bool:
        """Return whether a later lookup cannot find better; fallbacks are looked up again."""
        if self.is_idle:
            return False
        return self.agreed or self.only or self.how in ("exact", "tuned", "pinned", "off")

    def __str__(self) -> str:
        """Describe the resolution in several lines, for `explain`."""
        config = "Triton chooses it at the first launch" if self.config is None else self.config
        distance = f" at distance {self.distance:g}" if self.distance else ""
        lines = [
            f"{self.context.kernel.name}{self.scenario}",
            f"  config: {config}",
            f"  found:  {self.how}{distance}" + (f" in {self.store}" if self.store else ""),
        ]
        if self.how == "off":
            lines.append("  Triton's own autotuner decides; nothing is looked up or recorded")
        if self.evidence is not None:
            lines += [f"  {line}" for line in self.evidence.lines()]
        if self.nearest is not None:
            lines.append(f"  the nearest record is at distance {self.nearest:g}")
        if self.unfinished:
            lines.append("  no winner: configs were timed, and their results not compared")
        if self.uncompared:
            lines.append(f"  not tuned, since no results can be compared: {self.uncompared}")
        lines += [f"  not compared: {reason}" for reason in self.not_compared]
        if self.missing:
            lines.append(f"  unmeasured configs: {self.missing}")
        lines += [f"  wrong results: {evidence}" for evidence in self.wrong]
        if self.ignored_pin is not None:
            lines.append(f"  ignored pin, which the kernel does not declare: {self.ignored_pin}")
        if self.context.kernel.name.startswith(GENERATED_MODULE):
            lines.append("  its module's name is of this process alone: it is found by its code")
        if self.not_stored:
            lines.append(f"  not stored: {self.not_stored}")
        lines += [
            f"  differs from the nearest record in {difference}" for difference in self.differences
        ]
        return "\n".join(lines)


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
