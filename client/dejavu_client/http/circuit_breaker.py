"""Circuit breaker for an unreachable server."""

from __future__ import annotations

import threading
import time

__all__ = ["CircuitBreaker"]

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds until the first probe after a failure, and the limit to which the pause doubles."""


class CircuitBreaker:
    """Keep a launch from asking a server that has failed, until a probe has succeeded.

    A failure opens the circuit. A launch only reads `closed`; the background thread that probes the
    server reads `probe_due_in` and reports each outcome with `record_success` or `record_failure`.
    """

    def __init__(self) -> None:
        """Close the circuit: the server may be asked."""
        self._lock = threading.Lock()
        self._pause = 0.0
        self._next_probe = 0.0

    @property
    def closed(self) -> bool:
        """Whether the server may be asked."""
        return self._pause == 0.0

    @property
    def probe_due_in(self) -> float:
        """Seconds until the next probe; zero or negative if it is due now."""
        return self._next_probe - time.monotonic()

    def record_failure(self) -> None:
        """Open the circuit; if it is open, double the pause before the next probe."""
        with self._lock:
            self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
            self._next_probe = time.monotonic() + self._pause

    def record_success(self) -> None:
        """Close the circuit."""
        with self._lock:
            self._pause = 0.0
