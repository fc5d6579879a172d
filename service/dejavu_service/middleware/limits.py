"""Limits of what requests take: how many there are at a time, for how long, how often, in turn."""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..problems import ProblemError, problem

__all__ = ["LONGEST_WAIT", "RateLimiter", "RequestLimits", "Turns"]

LONGEST_WAIT = 10.0
"""Seconds that a request waits for its turns, of all kinds together.

Its client shall get a 503 that says when to come again before it, or a proxy, gives the answer up.
"""
_SECONDS = 60.0
"""Seconds from a request's head to its answer, and between two pieces of the answer."""
_LONG_SECONDS = 3600.0
"""The same for requests that concern a whole namespace."""
_CHECK_SECONDS = 1.0
"""Seconds after which requests whose time is over are looked for again."""
_LONG = re.compile(r"/v1/[^/]+/(import|export|promote)")
_HEALTH = {"/livez", "/readyz"}
_MAX_CALLERS = 10_000
"""Callers whose bucket is kept; a caller that was evicted starts with a full bucket."""


class RequestLimits:
    """ASGI middleware that bounds the requests in progress, and the time of each.

    Whether the server lives and is ready is answered in any case. The time is that to the answer,
    in which the client also sends its body, and then that between two pieces of the answer.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        """Pass at most `most` requests at a time to an app."""
        self._app = app
        self._most = most
        self._deadlines: dict[asyncio.Task[Any], float] = {}
        """The requests in progress, and when the time of each is over, by the loop's clock."""
        self._checking: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with 503."""
        if scope["type"] != "http" or scope["path"] in _HEALTH:
            await self._app(scope, receive, send)
            return
        if len(self._deadlines) >= self._most:
            await _busy("the server has too many requests now")(scope, receive, send)
            return
        seconds = _LONG_SECONDS if _LONG.fullmatch(scope["path"]) else _SECONDS
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        began = False

        async def send_on(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)
            if message.get("more_body"):
                self._deadlines[task] = loop.time() + seconds

        self._deadlines[task] = loop.time() + seconds
        if self._checking is None:
            self._checking = loop.call_later(_CHECK_SECONDS, self._end_overdue)
        try:
            await self._app(scope, receive, send_on)
        except asyncio.CancelledError:
            if task in self._deadlines:
                raise
            # An answer that has begun is cut off by returning: the server closes its connection.
            if not began:
                await _busy(f"the request took over {seconds:g} s")(scope, receive, send)
        finally:
            self._deadlines.pop(task, None)

    def _end_overdue(self) -> None:
        """Cancel the requests whose time is over, and look again later if there are others.

        A timer for each request would take as long as reading a cached record.
        """
        loop = asyncio.get_running_loop()
        for task in [task for task, ends in self._deadlines.items() if ends <= loop.time()]:
            del self._deadlines[task]
            task.cancel()
        self._checking = (
            loop.call_later(_CHECK_SECONDS, self._end_overdue) if self._deadlines else None
        )


def _busy(said: str) -> ASGIApp:
    return problem(503, f"{said}: try again", headers={"Retry-After": "2", "Connection": "close"})


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


class Turns:
    """Turns for requests: `of_each` for each key at a time, and `total` for all keys.

    A request that waits here holds no thread, no connection to the database and no memory.
    """

    def __init__(self, total: int, of_each: int = 2) -> None:
        """Give `total` turns at a time, of which `of_each` for the same key."""
        self._all = asyncio.Semaphore(total)
        self._of_each = of_each
        self._by_key: dict[Hashable, asyncio.Semaphore] = {}
        self._users: dict[Hashable, int] = {}

    @asynccontextmanager
    async def turn(self, key: Hashable, seconds: float | None = None) -> AsyncIterator[None]:
        """Wait for a turn for some seconds, by default the longest, and hold it within the block.

        Raises:
            ProblemError: 503, the requests before this one did not end in time.
        """
        queue = self._by_key.setdefault(key, asyncio.Semaphore(self._of_each))
        self._users[key] = self._users.get(key, 0) + 1
        taken: list[asyncio.Semaphore] = []
        try:
            with anyio.move_on_after(LONGEST_WAIT if seconds is None else seconds):
                for semaphore in (queue, self._all):
                    await semaphore.acquire()
                    taken.append(semaphore)
            if len(taken) < 2:
                raise ProblemError(
                    503,
                    "other requests of this kind take long: try again",
                    headers={"Retry-After": "2"},
                )
            yield
        finally:
            for semaphore in taken:
                semaphore.release()
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._by_key[key]
