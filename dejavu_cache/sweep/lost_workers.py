"""The workers that were lost under a sweep's cases, and what follows for these."""

from __future__ import annotations

from collections import Counter

from .hosts import HostLostError
from .messages import CaseOutcome, ConfigCrash

__all__ = ["LostWorkers"]

LIVES = 2
"""Number of workers that one config, or one case, may take down before it is given up."""

MACHINE_LIVES = 10
"""Number of times that a machine may be lost under one case before the case is given up."""


class LostWorkers:
    """Counts the workers that were lost, by case and config."""

    def __init__(self) -> None:
        """Begin without any."""
        self._losses: Counter[tuple[str, str]] = Counter()
        self._crashes: dict[str, list[ConfigCrash]] = {}

    def crashes_of(self, case: str) -> tuple[ConfigCrash, ...]:
        """Return the configs of a case that are not to be tried again."""
        return tuple(self._crashes.get(case, ()))

    def note(self, case: str, error: HostLostError, *, measures: bool) -> CaseOutcome | None:
        """Return the outcome of a case that took down its worker, or None to try it again.

        A config that is to blame becomes one of the case's crashes: the case goes on without it.

        Args:
            case: the case.
            error: what happened to the worker.
            measures: whether the worker measured the case, so that a crash can be recorded.
        """
        culprit, lives = str(error.config), LIVES
        if error.blame == "machine":
            culprit, lives = "machine", MACHINE_LIVES
        self._losses[case, culprit] += 1
        if error.blame != "config" and self._losses[case, culprit] < lives:
            return None
        if error.blame == "machine":
            return CaseOutcome(case=case, status="failed", message=error.reason)
        if error.config is None or not measures:
            message = f"it took down its worker: {error.reason}"
            return CaseOutcome(case=case, status="failed", message=message)
        crash = ConfigCrash(config=error.config, reason=error.reason[:2000])
        self._crashes.setdefault(case, []).append(crash)
        return None
