"""What a tune is worth: what it saves launches whose scenario has no record."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import BaseModel, Field

from ..system.notices import counted, seconds_text
from .scenario import Config, FrozenModel

_Amount = Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False)]


class Saving(BaseModel, frozen=True):
    """What each launch of a config saves once its scenario is tuned, by near records.

    Attributes:
        expected: milliseconds.
        at_least: milliseconds that it saves with a probability of 95%.
        takes: seconds that a tune took elsewhere.
    """

    expected: _Amount
    at_least: _Amount
    takes: _Amount


class MissCount(NamedTuple):
    """Launches that found no record, and what a tune would save each; None if that is unknown."""

    launches: int = 1
    saving: Saving | None = None

    def plus(self, later: MissCount) -> MissCount:
        """Return both counts, with what is known last."""
        return MissCount(self.launches + later.launches, later.saving or self.saving)


ONCE = MissCount()


class Worth(FrozenModel):
    """What a tune is worth to programs: seconds, over the launches that they have counted so far.

    Attributes:
        launches: how many launches found no record.
        runs: the config that they run; None if nobody says it.
        saves: what the tune would have saved them, as predicted; None if no record says so.
        at_least: the same with a probability of 95%.
        takes: what the tune takes, by those of near scenarios.
        saved: what it would have saved them by what it has measured; None before.
    """

    launches: int
    runs: Config | None = None
    saves: float | None = None
    at_least: float = 0.0
    takes: float = 0.0
    saved: float | None = None

    @classmethod
    def of(cls, missed: MissCount, runs: Config | None = None) -> Worth:
        """Return what a tune is worth to launches of a config."""
        launches, saving = missed
        if saving is None:
            return cls(launches=launches, runs=runs)
        saves, at_least = launches * saving.expected / 1e3, launches * saving.at_least / 1e3
        return cls(launches=launches, runs=runs, saves=saves, at_least=at_least, takes=saving.takes)

    @property
    def pays(self) -> bool | None:
        """Whether the tune saves more than it takes; None if that is unknown."""
        return None if self.saves is None else self.saves > self.takes

    @property
    def order(self) -> tuple[int, float, int]:
        """A key that sorts tunes: those that pay by what they save, unknown ones, then the rest.

        An unknown one may be worth much: nothing of its kernel may be tuned.
        """
        return 1 if self.pays is None else 2 * (not self.pays), -(self.saves or 0), -self.launches

    def __str__(self) -> str:
        """Say what it is worth."""
        said = f"{counted(self.launches, 'launch', 'launches')} would have saved "
        predicted = "an unknown time"
        if self.saves is not None:
            predicted = f"{seconds_text(self.saves)} (95% sure: {seconds_text(self.at_least)})"
        if self.saved is not None:
            return f"{said}{seconds_text(self.saved)}; predicted was {predicted}"
        takes = f"; a tune takes {seconds_text(self.takes)}" if self.takes else ""
        return f"{said}{predicted}{takes}"
