"""Deduplicate concurrent work by key (single flight)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

__all__ = ["SingleFlight"]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class SingleFlight(Generic[_Key, _Value]):
    """Tasks in progress on an event loop, by key; callers with the same key share one task."""

    def __init__(self) -> None:
        """Start with no tasks."""
        self._tasks: dict[_Key, asyncio.Task[_Value]] = {}

    async def get(self, key: _Key, work: Callable[[], Coroutine[Any, Any, _Value]]) -> _Value:
        """Wait for the task in progress for a key, or for `work` as a new one.

        Whoever goes away takes nothing from the others.

        Raises:
            Exception: Whatever `work` raised.
        """
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(work())
            task.add_done_callback(lambda done: self._remove(key, done))
        return await asyncio.shield(task)

    def _remove(self, key: _Key, task: asyncio.Task[_Value]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            # Retrieve the exception: asyncio logs those that nobody waited for.
            task.exception()
