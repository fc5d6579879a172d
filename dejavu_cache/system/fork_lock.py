"""Locks that a forked child finds free: the thread that held one is no part of the child."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["ForkLock", "cached_property"]

_RLock: Any = type(threading.RLock())


class ForkLock(_RLock):  # type: ignore[misc]
    """A lock of one thread at a time, which may take it again.

    `with` takes and releases it by methods in C. A signal handler that raises in a method in Python
    would leave it locked, right after it was taken or right before it is released.
    """

    def __init__(self) -> None:
        """Create a lock that is free."""
        super().__init__()
        _locks.add(self)

    def renew(self) -> None:
        """Free the lock if another thread holds it."""
        if self.acquire(blocking=False):
            self.release()
        else:
            self._at_fork_reinit()


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_all)


if TYPE_CHECKING:
    from functools import cached_property
else:

    def cached_property(compute: Callable[[Any], Any]) -> functools.cached_property:
        """Return a property that is computed once, with a `ForkLock` where Python has a lock.

        Before Python 3.12, one lock is held while any object's property is computed.
        """
        made = functools.cached_property(compute)
        if hasattr(made, "lock"):
            made.lock = ForkLock()
        return made
