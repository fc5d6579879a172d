"""Circuit breaker for an unreachable server."""

from __future__ import annotations

import random
import time

from dejavu_cache.system.fork_lock import ForkCondition

from .errors import BusyError

__all__ = ["FIRST_PAUSE", "CircuitBreaker", "jitter"]

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds until the first probe after a failure, and the limit to which the pause doubles."""

SHORTEST_BUSY = 0.5
"""Seconds to leave a busy server alone at least, doubled each time that it asks again.

What it asks for may be nothing, or, by this machine's clock, a moment that has passed.
"""

jitter = random.SystemRandom()
"""Random numbers of its own: those of the program's `random` module may be seeded."""


class CircuitBreaker:
    """Keep a launch from asking a server that has failed, until a probe has succeeded.

    A failure opens the circuit. A launch only reads `closed`; the background thread that probes the
    server reads `probe_due_in` and reports each outcome with `record_success` or `record_failure`.
    A server that asks its clients to wait has not failed: `busy` tells how long to leave it alone.
    One that has fallen silent may only be busy: `await_answer` waits for it, for a bounded time.

    Attributes:
        is_hopeful: whether the server, since it last failed, has answered late or answered a call
            that waits for a busy server; that it is ready or answers others says nothing of those.
    """

    def __init__(self) -> None:
        """Close the circuit: the server may be asked."""
        self._changed = ForkCondition()
        self._pause = 0.0
        self._next_probe = 0.0
        self._hope_until = 0.0
        self.is_hopeful = True
        self._busy_until = 0.0
        self._busy_pause = 0.0
        self._busy: BusyError | None = None

    @property
    def closed(self) -> bool:
        """Whether the server may be asked."""
        return self._pause == 0.0

    @property
    def probe_due_in(self) -> float:
        """Seconds until the next probe; zero or negative if it is due now."""
        return self._next_probe - time.monotonic()

    @property
    def busy(self) -> BusyError | None:
        """Return the server's request to wait, with the seconds that are left of it, or None."""
        error, left = self._busy, self._busy_until - time.monotonic()
        return BusyError(str(error), error.status, left) if error and left > 0 else None

    def await_answer(self, until: float) -> bool:
        """Wait while the circuit is open and there is hope; return whether it is closed.

        Args:
            until: when to give up in any case, by the monotonic clock.
        """
        with self._changed:
            seconds = min(until, self._hope_until) - time.monotonic()
            return self._changed.wait_for(lambda: self.closed, max(seconds, 0.0))

    def record_failure(self, hope: float = 0.0) -> None:
        """Open the circuit; if it is open, double the pause before the next probe.

        Args:
            hope: seconds for which `await_answer` waits, if there was hope; meanwhile, the pause
                does not grow.
        """
        with self._changed:
            now = time.monotonic()
            if self.closed:
                self._hope_until = now + (hope if self.is_hopeful else 0.0)
            self.is_hopeful = False
            doubled = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
            self._pause = FIRST_PAUSE if now < self._hope_until else doubled
            self._next_probe = now + self._pause

    def record_busy(self, error: BusyError) -> BusyError:
        """Close the circuit, since the server answered, and leave it alone as long as it asks.

        Returns:
            The error with the seconds for which the server is left alone: from `SHORTEST_BUSY` to
            `LONGEST_PAUSE`, more each time in a row, and different in each process of a fleet.
        """
        with self._changed:
            self._pause, now = 0.0, time.monotonic()
            if now >= self._busy_until:  # else other threads were answered at the same time
                self._busy_pause = max(self._busy_pause * 2, SHORTEST_BUSY)
            seconds = max(error.retry_after, self._busy_pause) * jitter.uniform(1.0, 1.5)
            seconds = min(seconds, LONGEST_PAUSE)
            self._busy = BusyError(str(error), error.status, seconds)
            self._busy_until = now + seconds
            self.is_hopeful = True
            self._changed.notify_all()
            return self._busy

    def record_success(self, *, gives_hope: bool = False) -> None:
        """Close the circuit.

        Args:
            gives_hope: whether the answer is a reason to wait for the server again if it is silent.
        """
        with self._changed:
            self._pause = self._busy_pause = 0.0
            self._busy = None
            self.is_hopeful = self.is_hopeful or gives_hope
            self._changed.notify_all()
