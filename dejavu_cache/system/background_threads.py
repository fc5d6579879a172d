"""Threads of this library, which a program's end does not run into.

Daemon threads outlive the interpreter's finalisation: CPython ends each of them where it next asks
for the interpreter. If that is inside an extension module in Rust or C++, such as pydantic's, the
process aborts after its work is done. Therefore the end of a program goes in four steps:

1. Every `Finisher` sends what is queued, all of them together within `FLUSH_SECONDS`; the last
   one that was registered begins, since it may hand its queue to another.
2. Every `Finisher` interrupts its requests by closing their sockets, and no thread starts any more.
3. The threads are joined.
4. The gate closes: the end waits for the blocks that run `uninterrupted`, and a thread that comes
   to such a block later is parked before it.

A thread that is not joined in time can only be blocked in a system call, such as a name lookup.
Handlers of signals raise errors within any call of the main thread: these are never dropped here.
"""

import atexit
import functools
import multiprocessing
import os
import signal
import threading
import time
import traceback
import types
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import util as multiprocessing_util
from typing import Generic, TypeVar

from .fork_lock import ForkCondition, ForkLock
from .notices import logger, warn_once

FLUSH_SECONDS = 2.0
"""Longest time that the end of a program waits for what is queued to be sent."""

JOIN_SECONDS = 0.5
"""Longest time that the end of a program waits for threads whose requests were interrupted."""

END_SECONDS = 40.0
"""Longest time that it waits for what must not be cut off, such as a file lock of 30 s."""

AFTER_ERROR = 0.2
"""Seconds after which a thread goes on after an error."""

FORK_SECONDS = 5.0
"""Longest time that a fork waits for threads to leave what it must not cut off."""


class Finisher:
    """Something that has work left at the program's end."""

    def finish(self, seconds: float) -> None:
        """Send what is queued, within a number of seconds."""

    def interrupt(self) -> None:
        """Make requests fail, those that wait for an answer and all later ones."""


class _Gate:
    """Lets threads into blocks that neither a fork nor the end of the program must cut off.

    A thread is in a block while it holds a lock of its own; the gate is closed while one thread
    holds the locks of all others.
    """

    def __init__(self) -> None:
        self._own = threading.local()
        self._locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()
        self._joining = ForkLock()

    def own_lock(self) -> ForkLock:
        """Return the lock of this thread."""
        lock: ForkLock | None = getattr(self._own, "lock", None)
        if lock is None:
            with self._joining:
                lock = ForkLock()
                self._locks.add(lock)
                self._own.lock = lock
        return lock

    def close(self, wait: float) -> None:
        """Shut out all threads but this one, and wait until the others have left."""
        deadline = time.monotonic() + wait
        for lock in self._locks_of_others():
            lock.acquire(timeout=max(deadline - time.monotonic(), 0.0))

    def open(self) -> None:
        """Let threads in again."""
        for lock in self._locks_of_others():
            if lock.is_own():
                lock.release()

    def _locks_of_others(self) -> Iterator[ForkLock]:
        own = self.own_lock()
        yield self._joining
        yield from set(self._locks) - {own}


_finishers: weakref.WeakKeyDictionary[Finisher, None] = weakref.WeakKeyDictionary()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_ending = False
_gate = _Gate()


def at_program_end(finisher: Finisher) -> None:
    """Have a finisher called at the program's end, unless it is garbage-collected before.

    It is called before those that were registered earlier; registering it again counts.
    """
    _finishers.pop(finisher, None)
    _finishers[finisher] = None


def program_is_ending() -> bool:
    """Return whether requests are interrupted because the program ends."""
    return _ending


def start_thread(
    target: Callable[[], object], name: str, *, in_turns: bool = False
) -> threading.Thread | None:
    """Start a thread and return it, or None if none can be started any more.

    From Python 3.12 on none can be once the main thread has ended, while others may still run.

    Args:
        target: what the thread does.
        name: the name of the thread.
        in_turns: whether to call `target` until it returns False. No error ends such a thread,
            since others wait for what it does next.
    """

    def take_turns() -> None:
        while True:
            try:
                if not target():
                    return
            except Exception as error:
                warn_once(name, f"{name}: {type(error).__name__}: {error}")
                time.sleep(AFTER_ERROR)

    if _ending:
        return None
    try:
        thread = threading.Thread(target=take_turns if in_turns else target, name=name, daemon=True)
        thread.start()
    except RuntimeError:
        return None
    _threads.add(thread)
    return thread


_Item = TypeVar("_Item")


class WriterThread(Finisher, ABC, Generic[_Item]):
    """Queue of what a thread writes, so that nobody waits for a disk.

    The thread begins with an item, and ends when there is none left. Items that come while it
    writes are written together. The program's end has them written at once.

    Args:
        name: the name of the thread.
        quiet: seconds that items wait, so that no write takes time from what follows in a row.
    """

    def __init__(self, name: str, quiet: float = 0.0) -> None:
        """Begin without a thread."""
        self._name, self._quiet = name, quiet
        self._queued: list[_Item] = []
        self._changed = ForkCondition()
        self._has_thread = self._hurries = False
        self._process = os.getpid()

    @abstractmethod
    def write(self, items: list[_Item]) -> None:
        """Write items that were queued, in order, and handle all errors."""

    @property
    def is_done(self) -> bool:
        """Whether all items are written."""
        return not (self._queued or self._has_thread)

    def add(self, item: _Item) -> None:
        """Queue an item; write it at once where no thread can be started any more."""
        with self._changed:
            if self._process != os.getpid():  # a forked child has neither the thread nor its work
                self._queued, self._has_thread, self._process = [], False, os.getpid()
            self._queued.append(item)
            if not self._has_thread:
                at_program_end(self)
                self._has_thread = start_thread(self._turn, self._name, in_turns=True) is not None
            if self._has_thread:
                return
            queued, self._queued = self._queued, []
        self.write(queued)

    def finish(self, seconds: float) -> None:
        """Write what is queued at once, and wait for it up to a number of seconds."""
        if self._process != os.getpid():
            return
        with self._changed:
            self._hurries = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.is_done, seconds)
            self._hurries = False

    def _turn(self) -> bool:
        with self._changed:
            if not self._queued:
                self._has_thread = False
                self._changed.notify_all()
                return False
            self._changed.wait_for(lambda: self._hurries, self._quiet)
            queued, self._queued = self._queued, []
        self.write(queued)
        return True


def uninterrupted() -> AbstractContextManager[bool]:
    """Run a block that a fork and the program's end wait for; it is short, and waits for nothing.

    Whatever enters an extension module that is not CPython's own belongs into such a block, and so
    does what takes locks of a library, which would stay locked for ever in a forked child.
    """
    return _gate.own_lock()


def _end_threads() -> None:
    global _ending
    if _ending:
        return
    finishers = list(_finishers)[::-1]
    deadline = time.monotonic() + FLUSH_SECONDS
    try:
        for finisher in finishers:
            finisher.finish(max(deadline - time.monotonic(), 0.0))
    finally:  # also if the user loses patience and presses Ctrl-C
        _ending = True
        try:
            for finisher in finishers:
                finisher.interrupt()
            deadline = time.monotonic() + JOIN_SECONDS
            for thread in list(_threads):
                thread.join(max(deadline - time.monotonic(), 0.0))
        finally:
            _gate.close(END_SECONDS)


def _before_fork() -> None:
    if not _ending:
        _gate.close(FORK_SECONDS)


def _after_fork_in_parent() -> None:
    if not _ending:
        _gate.open()


def _after_fork_in_child() -> None:
    """Forget the threads, which are the parent's."""
    global _ending, _gate
    _ending = False
    _gate = _Gate()
    _threads.clear()


def _end_with_worker(_: object = None) -> None:
    """Run at the end of a worker of `multiprocessing`, which calls no function of `atexit`."""
    multiprocessing_util.Finalize(None, _end_threads, exitpriority=0)


atexit.register(_end_threads)
os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
multiprocessing_util.register_after_fork(_end_threads, _end_with_worker)
if multiprocessing.parent_process() is not None:
    _end_with_worker()


def is_from_signal_handler(error: BaseException) -> bool:
    """Return whether a signal handler of this program has raised an error, or its cause.

    Python runs handlers between any two instructions of the main thread, so their errors appear in
    the library's calls and are not about them. Triton raises errors of its own from what is raised
    while it compiles.
    """
    handlers = filter(callable, map(signal.getsignal, range(1, signal.NSIG)))
    codes = set(map(_code_of, handlers))
    return any(
        frame.f_code in codes
        for cause in causes_of(error, contexts=False)
        for frame, _ in traceback.walk_tb(cause.__traceback__)
    )


def let_signals_through(error: BaseException, usual: tuple[type[Exception], ...] = ()) -> None:
    """Raise an error that its caller would drop, if a signal handler of this program raised it.

    A look takes 0.2 ms; errors of the `usual` types, of which there are many, are not looked at.
    """
    if not isinstance(error, usual) and is_from_signal_handler(error):
        raise error


@contextmanager
def dropping_errors(said: str = "", *, about: str = "") -> Iterator[None]:
    """Drop the errors of a block, but for those that a signal handler of this program raised.

    Args:
        said: what is said of an error, before the error itself; by default, nothing is.
        about: what a warning is about, which says it once; without it, debug messages do.
    """
    try:
        yield
    except Exception as error:
        let_signals_through(error)
        text = f"{said}: {type(error).__name__}: {error}"
        if about:
            warn_once(about, text)
        elif said:
            logger.debug("%s", text)


def causes_of(error: BaseException | None, *, contexts: bool) -> Iterator[BaseException]:
    """Yield an error and its causes, also if `from None` hides them, and all contexts if wanted."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        is_cause = contexts or error.__suppress_context__
        error = error.__cause__ or (error.__context__ if is_cause else None)


def _code_of(handler: object) -> types.CodeType | None:
    """Return the code of a handler: of a function, a method, a partial, or a callable object."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not isinstance(handler, (types.FunctionType, types.MethodType)):
        handler = type(handler).__call__  # of one in C, a wrapper without code
    return getattr(handler, "__code__", None)
