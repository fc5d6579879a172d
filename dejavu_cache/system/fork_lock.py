"""Locks that stay usable after a fork, and after a signal handler that raises.

A forked child finds them free, since the thread that held one is no part of the child. An error of
a signal handler leaves none locked, wherever it interrupts the thread that takes it.
"""

import os
import sys
import threading
import weakref
from typing import Any

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

    is_own = _RLock._is_owned
    """Return whether this thread holds the lock."""


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


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _free_locks_of_other_threads() -> None:
    for lock in list(_locks):
        if not lock.is_own():
            lock._at_fork_reinit()


os.register_at_fork(after_in_child=_free_locks_of_other_threads)
