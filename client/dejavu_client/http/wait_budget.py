"""Time that a program may spend in waiting for a busy server."""

from __future__ import annotations

import time

from dejavu_cache.system.fork_lock import ForkLock

__all__ = ["WaitBudget"]

MOST_SECONDS = 60.0
"""Seconds that a program may wait at first, and at most."""

SECONDS_PER_SECOND = 1 / 60
"""Seconds of waiting that each second adds: a minute an hour."""


class WaitBudget:
    """Seconds of waiting for one server, spent by all threads and regained with time.

    A server that always asks for patience, or always answers late, then costs a program a minute
    at first and a sixtieth of its time later, however many scenarios it looks up.
    """

    def __init__(self) -> None:
        """Begin with `MOST_SECONDS`."""
        self._lock = ForkLock()
        self._left = MOST_SECONDS
        self._at = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds that may be spent now."""
        with self._lock:
            return self._gain()

    def spend(self, seconds: float) -> None:
        """Take the seconds that a thread has waited."""
        with self._lock:
            self._left = max(self._gain() - seconds, 0.0)

    def _gain(self) -> float:
        at = time.monotonic()
        self._left = min(self._left + (at - self._at) * SECONDS_PER_SECOND, MOST_SECONDS)
        self._at = at
        return self._left
