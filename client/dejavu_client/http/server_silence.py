"""Stop waiting for a server that is silent, without counting this process's own work as silence."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from dejavu_cache.system.background_threads import program_is_ending, start_thread

from .errors import UnreachableError

__all__ = ["OWN_WORK_SECONDS", "SilenceClock", "SilenceError", "call_within", "current_clock"]

T = TypeVar("T")

TICK = 0.01
"""Seconds between two looks at a request."""

OWN_WORK_SECONDS = 30.0
"""Limit of a call as a whole, however busy this machine is and however much a server sends."""


class SilenceError(TimeoutError):
    """A call took too long.

    Attributes:
        is_connected: whether the server had taken the connection, and so may only be busy.
    """

    def __init__(self, is_connected: bool) -> None:
        """Say how far the call had come."""
        super().__init__()
        self.is_connected = is_connected


class SilenceClock:
    """Seconds for which a call's requests have waited for their server.

    Loading certificates, starting threads, decompressing and all else that this process does itself
    is not counted; nor is the time for which the machine was too busy to run it. The set-up of a
    connection and the exchange over it are counted separately: a distant server may need several
    round trips to set up a connection, and one for each answer from then on.

    Attributes:
        is_connected: whether a server has taken the connection of a request.
    """

    def __init__(self) -> None:
        """Begin with no silence."""
        self._silence = {"set-up": 0.0, "exchange": 0.0}
        self._waiting: list[str] = []
        self.is_connected = False

    def trace(self, event: str, _: Any = None) -> None:
        """Note that a step of a request has started or ended: httpcore's `trace` extension."""
        if event.startswith("http") or event.endswith(".connect_tcp.complete"):
            self.is_connected = True
        if event.endswith(".started"):
            self._waiting.append("exchange" if event.startswith("http") else "set-up")
        elif self._waiting:
            self._waiting.pop()

    @contextmanager
    def count_wait(self) -> Iterator[None]:
        """Count the time inside as waiting, for a transport that reports no steps."""
        self.trace("http.request.started")
        try:
            yield
        finally:
            self.trace("http.request.complete")

    def tick(self) -> float:
        """Count a tick if a request waits now; return the seconds of the longer silence."""
        # The nominal length: a tick that lasted longer found this process without a processor.
        for part in self._waiting[-1:]:
            self._silence[part] += TICK
        return max(self._silence.values())


_clock: ContextVar[SilenceClock | None] = ContextVar("dejavu-cache silence clock", default=None)


def current_clock() -> SilenceClock:
    """Return the clock of the call that this thread makes; one that nobody reads outside a call."""
    return _clock.get() or SilenceClock()


def call_within(
    seconds: float,
    question: Callable[[], T],
    limit: float = OWN_WORK_SECONDS,
    when_late: Callable[[BaseException | None], None] = lambda error: None,
) -> T:
    """Return a function's result unless its server is silent; then its thread runs on.

    Where no thread can be started any more, the function runs in this one.

    Args:
        seconds: how long the server may be silent.
        question: sends requests through a `ProtocolClient`; runs in a thread of its own.
        limit: seconds that the call may take as a whole.
        when_late: is called in that thread with the error of a question, or None, if nobody waits
            for its end any more.

    Raises:
        SilenceError: the server was silent for too long.
        UnreachableError: the program ends.
    """
    if program_is_ending():
        raise UnreachableError("no server is asked while the program ends")
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    clock = SilenceClock()
    is_late = threading.Event()

    def ask() -> None:
        _clock.set(clock)
        failure: BaseException | None = None
        try:
            answers.put((question(), None))
        except BaseException as error:
            failure = error
            answers.put((None, error))
        if is_late.is_set():
            when_late(failure)

    if start_thread(ask, "dejavu-cache request") is None:
        return question()
    deadline = time.monotonic() + limit
    answer: T
    while True:
        try:
            answer, error = answers.get(timeout=TICK)
        except queue.Empty:
            if clock.tick() >= seconds or time.monotonic() > deadline:
                is_late.set()
                raise SilenceError(clock.is_connected) from None
            continue
        if error is not None:
            raise error
        return answer
