"""Turns of the requests that write, so that those that wait for a lock leave room for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import anyio

from ..problems import ProblemError

__all__ = ["LONGEST_WAIT", "WriteQueue"]

_AT_ONCE = 2
"""Requests for the same thing that are in the database at a time."""
LONGEST_WAIT = 10.0
"""Seconds that a request waits for its turns, of all kinds together.

Its client shall get a 503 that says when to come again before it, or a proxy, gives the answer up.
"""


class WriteQueue:
    """Turns to write, some for each key and `total` for all keys.

    A transaction that waits for a row's lock holds a connection and a thread. Requests for one
    locked context wait here instead, where they hold neither.
    """

    def __init__(self, total: int) -> None:
        """Give `total` turns at a time."""
        self._all = asyncio.Semaphore(total)
        self._by_key: dict[Hashable, asyncio.Semaphore] = {}
        self._users: dict[Hashable, int] = {}

    @asynccontextmanager
    async def turn(self, key: Hashable, seconds: float = LONGEST_WAIT) -> AsyncIterator[None]:
        """Wait for a turn for some seconds, and hold it within the block.

        Raises:
            ProblemError: 503, the requests before this one did not end in time.
        """
        queue = self._by_key.setdefault(key, asyncio.Semaphore(_AT_ONCE))
        self._users[key] = self._users.get(key, 0) + 1
        taken: list[asyncio.Semaphore] = []
        try:
            with anyio.move_on_after(seconds):
                for semaphore in (queue, self._all):
                    await semaphore.acquire()
                    taken.append(semaphore)
            if len(taken) < 2:
                raise ProblemError(
                    503,
                    "other requests are writing there for long: try again",
                    headers={"Retry-After": "2"},
                )
            yield
        finally:
            for semaphore in taken:
                semaphore.release()
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._by_key[key]
