"""Requests that wait until a record has a winner."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from ..problems import ProblemError
from ..services.read_through import RecordView
from ..storage.contexts import Revision
from .answer_cache import Answer
from .single_flight import SingleFlight

__all__ = ["LongPolls"]

_INTERVAL = 0.15
"""Seconds between two looks at a context's revision."""
_MOST_OF_A_CALLER, _MOST = 1000, 4000
"""Requests of one caller, and of all, that may wait at a time."""
_RETRY_AFTER = 2


class LongPolls:
    """Waits of many requests, which share one look at their context's revision per interval.

    Args:
        revision: Looks up a context's current revision.
        load: Loads a record at a revision or a later one.
        most: The number of one caller's requests that may wait at a time.
    """

    def __init__(
        self,
        revision: Callable[[RecordView], Awaitable[Revision | None]],
        load: Callable[[RecordView, Revision, str], Awaitable[Answer]],
        most: int = _MOST_OF_A_CALLER,
    ) -> None:
        """Begin without waiting requests."""
        self._revision = revision
        self._load = load
        self._most = most
        self._looks: SingleFlight[RecordView, Revision | None] = SingleFlight()
        self._waiting: Counter[str] = Counter()
        self._is_closed = False

    def close(self) -> None:
        """Have all requests answered now, because the server stops."""
        self._is_closed = True

    async def wait(
        self,
        caller: str,
        view: RecordView,
        scenario: str,
        seconds: float,
        is_gone: Callable[[], Awaitable[bool]],
    ) -> Answer | None:
        """Return a record once it has a winner.

        Args:
            caller: The principal whose requests are counted.
            view: The namespaces and the context.
            scenario: The digest of the scenario.
            seconds: How long to wait.
            is_gone: Tells whether the client has hung up.

        Returns:
            None if there is no winner when the time is up, the client has gone or the server stops.

        Raises:
            ProblemError: 429, if too many requests wait already.
        """
        if self._waiting[caller] >= self._most or self._waiting.total() >= _MOST:
            raise ProblemError(
                429,
                f"too many requests wait for a record: ask again in {_RETRY_AFTER} s",
                headers={"Retry-After": str(_RETRY_AFTER)},
            )
        self._waiting[caller] += 1
        try:
            return await self._wait(view, scenario, seconds, is_gone)
        finally:
            self._waiting[caller] -= 1
            if not self._waiting[caller]:
                del self._waiting[caller]

    async def _wait(
        self,
        view: RecordView,
        scenario: str,
        seconds: float,
        is_gone: Callable[[], Awaitable[bool]],
    ) -> Answer | None:
        loop = asyncio.get_running_loop()
        deadline, seen = loop.time() + seconds, ""
        revision = await self._revision(view)
        while True:
            if revision is not None and revision.revision != seen:
                seen = revision.revision
                answer = await self._load(view, revision, scenario)
                if answer.has_winner:
                    return answer
            if loop.time() >= deadline or self._is_closed or await is_gone():
                return None
            revision = await self._looks.get(view, lambda: self._look_later(view))

    async def _look_later(self, view: RecordView) -> Revision | None:
        await asyncio.sleep(_INTERVAL)
        return await self._revision(view)
