"""Requests that wait until a record has a winner."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

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


@dataclass
class _Watch:
    """What the requests that wait for records of one view share.

    Attributes:
        scenarios: The digests of the scenarios that they wait for.
        revision: The view's revision at the last look.
        won: Those of `scenarios` whose records may have a winner at `revision`.
    """

    scenarios: Counter[str] = field(default_factory=Counter)
    revision: Revision | None = None
    won: Collection[str] = ()


class LongPolls:
    """Waits of many requests, which share one look at their context per interval.

    However many wait, a write costs one look for the scenarios that have a winner now, and only
    the requests for these load a record.

    Args:
        revision: Looks up a context's current revision.
        load: Loads a record at a revision or a later one.
        find_won: Finds those of some scenarios whose records may have a winner.
        most: The number of one caller's requests that may wait at a time.
    """

    def __init__(
        self,
        revision: Callable[[RecordView], Awaitable[Revision | None]],
        load: Callable[[RecordView, Revision, str], Awaitable[Answer]],
        find_won: Callable[[RecordView, Collection[str]], Awaitable[Collection[str]]],
        most: int = _MOST_OF_A_CALLER,
    ) -> None:
        """Begin without waiting requests."""
        self._revision = revision
        self._load = load
        self._find_won = find_won
        self._most = most
        self._looks: SingleFlight[RecordView, None] = SingleFlight()
        self._watches: dict[RecordView, _Watch] = {}
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
        watch = self._watches.setdefault(view, _Watch())
        watch.scenarios[scenario] += 1
        try:
            return await self._wait(watch, view, scenario, seconds, is_gone)
        finally:
            self._leave(watch, view, scenario)
            self._waiting[caller] -= 1
            if not self._waiting[caller]:
                del self._waiting[caller]

    def _leave(self, watch: _Watch, view: RecordView, scenario: str) -> None:
        watch.scenarios[scenario] -= 1
        if not watch.scenarios[scenario]:
            del watch.scenarios[scenario]
        if not watch.scenarios:
            del self._watches[view]

    async def _wait(
        self,
        watch: _Watch,
        view: RecordView,
        scenario: str,
        seconds: float,
        is_gone: Callable[[], Awaitable[bool]],
    ) -> Answer | None:
        loop = asyncio.get_running_loop()
        deadline, seen = loop.time() + seconds, ""
        revision, may_have_won = await self._revision(view), True
        while True:
            if revision is not None and revision.revision != seen:
                seen = revision.revision
                if may_have_won:
                    answer = await self._load(view, revision, scenario)
                    if answer.has_winner:
                        return answer
            if loop.time() >= deadline or self._is_closed or await is_gone():
                return None
            await self._looks.get(view, lambda: self._look_later(watch, view))
            revision, may_have_won = watch.revision, scenario in watch.won

    async def _look_later(self, watch: _Watch, view: RecordView) -> None:
        await asyncio.sleep(_INTERVAL)
        revision = await self._revision(view)
        if revision is not None and revision != watch.revision:
            # A request that joins meanwhile has looked up a revision that is as late.
            watch.won = await self._find_won(view, list(watch.scenarios))
        watch.revision = revision
