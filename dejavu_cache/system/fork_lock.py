"""Locks that stay usable after a fork, and after a signal handler that raises.

A forked child finds them free, since the thread that held one is no part of the child. An error of
a signal handler leaves none locked, wherever it interrupts the thread that takes it.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["ForkCondition", "ForkLock", "cached_property"]

_RLock: Any = type(threading.RLock())


class ForkLock(_RLock):  # type: ignore[misc]
    """A lock of one thread at a time, which may take it again.

    Python runs signal handlers between instructions. `with` takes and releases a lock by methods in
    C, so that no handler runs between a method and the block. From Python 3.14 on, one may run when
    a method in C has taken the lock and the block has not begun. None may run when a method in
    Python returns, nor while it reads an attribute, which takes the lock here.
    """

    if sys.version_info >= (3, 14):
        _taken = property(_RLock.acquire)

        def __enter__(self) -> bool:
            """Take the lock."""
            return self._taken

    def __init__(self) -> None:
        """Create a lock that is free."""
        super().__init__()
        _locks.add(self)

    def is_own(self) -> bool:
        """Return whether this thread holds the lock."""
        return bool(self._is_owned())

    def renew(self) -> None:
        """Free the lock if another thread holds it."""
        if self.acquire(blocking=False):
            self.release()
        else:
            self._at_fork_reinit()


class ForkCondition(ForkLock):
    """A `ForkLock` on which threads wait for one another, as on a `threading.Condition`.

    The methods with which `with` takes and releases a `threading.Condition` are in Python.
    """

    def __init__(self) -> None:
        """Create a condition that is free."""
        super().__init__()
        condition = threading.Condition(self)
        self.wait, self.wait_for = condition.wait, condition.wait_for
        self.notify_all = condition.notify_all

    _released = property(_RLock._release_save)

    def _release_save(self) -> Any:
        """Release the lock to wait; no handler runs before what takes it again is prepared."""
        return self._released


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


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
