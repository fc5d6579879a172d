"""Limits on the rate of requests."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from ..problems import ProblemError

__all__ = ["RateLimiter"]

_MAX_CALLERS = 10_000
"""Callers whose bucket is kept; a caller that was evicted starts with a full bucket."""


class RateLimiter:
    """A token bucket for each caller."""

    def __init__(
        self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Allow each caller `rate` requests a second, and `burst` at once; rate 0 allows any."""
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def has_room(self, caller: str) -> bool:
        """Return whether another request of a caller would be allowed now."""
        left, at = self._buckets.get(caller, (float(self._burst), 0.0))
        return not self._rate or left + (self._clock() - at) * self._rate >= 1

    def take(self, caller: str) -> None:
        """Count a request of a caller.

        Raises:
            ProblemError: 429, with the seconds to wait in `Retry-After`.
        """
        if not self._rate:
            return
        now = self._clock()
        left, at = self._buckets.pop(caller, (float(self._burst), now))
        left = min(left + (now - at) * self._rate, float(self._burst))
        self._buckets[caller] = (max(left - 1, 0.0) if left >= 1 else left, now)
        if len(self._buckets) > _MAX_CALLERS:
            self._buckets.popitem(last=False)
        if left < 1:
            wait = max(1, round((1 - left) / self._rate))
            raise ProblemError(
                429,
                f"over {self._rate:g} requests a second: wait {wait} s",
                headers={"Retry-After": str(wait)},
            )
