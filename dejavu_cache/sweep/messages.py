"""Messages between a sweep and its workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from ..model.scenario import Config, FrozenModel, Scenario

__all__ = ["CaseJob", "CaseOutcome", "ConfigCrash", "MissedScenario", "SweepSpec", "Task"]

Task = Literal["measure", "plan", "verify", "identify"]
"""What a sweep does with its cases: tune them, count what is left to tune, or remeasure winners.

To `identify` a case is to tell its scenario, and whether it has work.
"""


class MissedScenario(FrozenModel):
    """A scenario that programs launched on a device without finding a record."""

    kernel: str
    device: str
    scenario: Scenario


class SweepSpec(FrozenModel):
    """The subject of a sweep: everything that its workers must know before the first job.

    Attributes:
        suite: the suite as `load_suite` takes it.
        options: the suite's options by name.
        store: URL of the store to read and write.
        misses: if not None, only these scenarios are measured.
    """

    suite: str
    options: Mapping[str, str] = Field(default_factory=dict)
    store: str
    misses: tuple[MissedScenario, ...] | None = None


class ConfigCrash(FrozenModel):
    """A config that ended its worker process, and the reason."""

    config: Config
    reason: str


class CaseJob(FrozenModel):
    """A task for one case.

    Attributes:
        do: what to do with the case.
        case: the case's name.
        group: names of all cases of the case's scenario, in order, if they are several.
        wait: seconds to wait for another process that tunes the case.
        seconds: time limit; None is without limit.
        crashes: configs of the case that are not to be tried again.
    """

    do: Task
    case: str
    group: tuple[str, ...] = ()
    wait: float = 0.0
    seconds: float | None = None
    crashes: tuple[ConfigCrash, ...] = ()


class CaseOutcome(FrozenModel):
    """The outcome of a job.

    Attributes:
        key: identifies the context and the scenario; empty if the case failed before.
        cases: number of cases of the scenario that were measured together.
        scenario, kernel, device: what the case launches; empty if the case failed before that was
            clear.
        status: `tuned`; `known`, if nothing was left to measure; `partial`, if time ran out;
            `busy`, if another process tunes the case; `unwanted`, if no program missed it;
            `skipped`, if its arguments do not fit into memory; `failed`; for a plan, `due`; for a
            verification, `verified`.
        measured: number of configs that were measured.
        due: number of configs that are left to measure.
        seconds: duration of the job.
        message: details for the user.
        estimate: seconds that measuring the due configs will take, extrapolated from earlier
            measurements; None if there are none.
        recorded, again: the winner's median in milliseconds as recorded, and as measured now.
    """

    case: str
    status: str
    key: str = ""
    cases: int = 1
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
