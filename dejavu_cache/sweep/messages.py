"""What a sweep and its workers tell each other."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from ..model.scenario import Config, Scenario

__all__ = ["CaseJob", "CaseOutcome", "ConfigCrash", "MissedScenario", "SweepSpec", "Task"]

Task = Literal["measure", "plan", "verify"]


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MissedScenario(Message):
    """A scenario that programs wanted on a device."""

    kernel: str
    device: str
    scenario: Scenario


class SweepSpec(Message):
    """What a sweep is about: all that a worker must know.

    Attributes:
        misses: if given, only these are measured.
    """

    suite: str
    options: dict[str, str] = {}
    store: str
    misses: tuple[MissedScenario, ...] | None = None


class ConfigCrash(Message):
    """A config that took a worker down."""

    config: Config
    reason: str


class CaseJob(Message):
    """One thing to do with one case.

    Attributes:
        wait: seconds to wait for another process that tunes it.
        seconds: how long it may take.
        crashes: configs that are not to be tried again.
    """

    do: Task
    case: str
    wait: float = 0.0
    seconds: float | None = None
    crashes: tuple[ConfigCrash, ...] = ()


class CaseOutcome(Message):
    """What became of a job.

    Attributes:
        scenario, kernel, device: what was asked for, as far as the case came to that.
        status: `tuned`; `known`, if there was nothing to do; `partial`, if time ran out; `busy`, if another
            process tunes it; `unwanted`, if no program missed it; `skipped`, without memory for the arguments;
            `failed`; for a plan, `due`; for a verification, `verified`.
        measured: how many configs were.
        due: how many are left.
        estimate: seconds that what is due will take, going by what was measured; None without any experience.
        recorded, again: milliseconds of the winner, of then and of now.
    """

    case: str
    status: str
    scenario: str = ""
    kernel: str = ""
    device: str = ""
    measured: int = 0
    due: int = 0
    seconds: float = 0.0
    message: str = ""
    estimate: float | None = None
    recorded: float | None = None
    again: float | None = None
