"""How fast somebody may ask, and how large a body may be."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.types import Message, Receive, Scope

from ..problems import ProblemError
from .asgi_scope import header

__all__ = ["Rate", "limited"]

_MOST = 10_000
"""Callers that are remembered; who was forgotten starts with a full bucket."""


class Rate:
    """A token bucket for each caller."""

    def __init__(
        self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> None:
        """Counts a request.

        Raises:
            ProblemError: 429, with the seconds to wait in `Retry-After`.
        """
        if not self._rate:
            return
        now = self._clock()
        left, at = self._buckets.pop(caller, (float(self._burst), now))
        left = min(left + (now - at) * self._rate, float(self._burst))
        self._buckets[caller] = (max(left - 1, 0.0) if left >= 1 else left, now)
        if len(self._buckets) > _MOST:
            self._buckets.popitem(last=False)
        if left < 1:
            wait = max(1, round((1 - left) / self._rate))
            raise ProblemError(
                429,
                f"over {self._rate:g} requests a second: wait {wait} s",
                headers={"Retry-After": str(wait)},
            )


def limited(scope: Scope, receive: Receive, most: int) -> Receive:
    """A `receive` that counts the bytes of the body, whatever its headers say.

    Raises:
        ProblemError: 413 or 415, at once or from the `receive` that was returned.
    """
    said = header(scope, b"content-length")
    if said is not None and said.isdigit() and int(said) > most:
        raise _too_large(most)
    if (header(scope, b"content-encoding") or "identity").lower() != "identity":
        raise ProblemError(415, "bodies are taken as they are: leave out Content-Encoding")
    came = 0

    async def counted() -> Message:
        nonlocal came
        message = await receive()
        came += len(message.get("body", b""))
        if came > most:
            raise _too_large(most)
        return message

    return counted


def _too_large(most: int) -> ProblemError:
    return ProblemError(413, f"the body has over {most} bytes: send fewer records at a time")
