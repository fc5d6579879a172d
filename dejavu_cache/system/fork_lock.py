"""A lock that a forked child finds free: the thread that held it is no part of the child."""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["ForkLock"]


class ForkLock:
    """A lock of one thread at a time, which may take it again."""

    def __init__(self) -> None:
        """Create a lock that is free."""
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        """Take the lock."""
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        """Give it back."""
        self._lock.release()

    def renew(self) -> None:
        """Replace the lock if another thread holds it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_all)
