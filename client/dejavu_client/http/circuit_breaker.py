"""Not asking again and again a server that does not answer."""

from __future__ import annotations

import threading
import time

__all__ = ["CircuitBreaker"]

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0


class CircuitBreaker:
    """Open after a failure, until somebody in the background has seen the server answer again.

    A launch only ever asks `closed`; whoever probes asks `due` and tells `succeeded` or `failed`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pause = 0.0
        self._next = 0.0

    @property
    def closed(self) -> bool:
        """Whether the server may be asked."""
        return self._pause == 0.0

    @property
    def due(self) -> float:
        """Seconds until the server should be probed; nothing or less means now."""
        return self._next - time.monotonic()

    def failed(self) -> None:
        """Opens, or stays open for twice as long."""
        with self._lock:
            self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
            self._next = time.monotonic() + self._pause

    def succeeded(self) -> None:
        """Closes."""
        with self._lock:
            self._pause = 0.0
