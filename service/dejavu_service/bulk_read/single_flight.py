"""Work that several wait for and one does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

__all__ = ["Shared"]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Shared(Generic[_Key, _Value]):
    """What is under way on an event loop, by key: who comes before it ends shares its outcome."""

    def __init__(self) -> None:
        self._under_way: dict[_Key, asyncio.Task[_Value]] = {}

    def start(
        self, key: _Key, work: Callable[[], Coroutine[Any, Any, _Value]]
    ) -> asyncio.Task[_Value]:
        """The task that does it, begun now if there is none."""
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(work())
            task.add_done_callback(lambda done: self._ended(key, done))
        return task

    async def get(self, key: _Key, work: Callable[[], Coroutine[Any, Any, _Value]]) -> _Value:
        """Its outcome; a caller that is given up does not end it for the others.

        Raises:
            Exception: what the work raised.
        """
        return await asyncio.shield(self.start(key, work))

    def _ended(self, key: _Key, task: asyncio.Task[_Value]) -> None:
        del self._under_way[key]
        if not task.cancelled():
            task.exception()  # or asyncio complains where nobody waited for it
