"""The result of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .messages import CaseOutcome

__all__ = ["SweepReport"]


@dataclass
class SweepReport:
    """The result of a sweep.

    Attributes:
        total: number of the suite's cases, those of other shards included.
        outcomes: the outcomes by case, in the order in which they came.
        left: cases without an outcome.
        stopped: the reason why the sweep ended early; empty if it did not.
        kept: the journals, on any machine, with measurements that the store has not accepted.
        seconds: duration of the sweep.
        workers: number of workers at once.
    """

    total: int = 0
    outcomes: dict[str, CaseOutcome] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    stopped: str = ""
    kept: list[str] = field(default_factory=list)
    seconds: float = 0.0
    workers: int = 1

    def note(self, group: Sequence[str], outcome: CaseOutcome) -> None:
        """Set the outcome of each case of a group; the first case has the counts of all."""
        for case in group:
            update: dict[str, Any] = {"case": case}
            if case != group[0]:
                update.update(measured=0, due=0, seconds=0.0, estimate=None)
            self.outcomes.pop(case, None)
            self.outcomes[case] = outcome.model_copy(update=update)

    def of(self, *statuses: str) -> list[CaseOutcome]:
        """Return the outcomes with these statuses."""
        return [outcome for outcome in self.outcomes.values() if outcome.status in statuses]

    @property
    def measured(self) -> int:
        """Number of configs that were measured."""
        return sum(outcome.measured for outcome in self.outcomes.values())

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do or to hand over."""
        return not (
            self.left
            or self.stopped
            or self.kept
            or self.of("failed", "skipped", "partial", "busy")
        )
