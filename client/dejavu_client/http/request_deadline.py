"""Deadline of all reads and writes of a request together.

A socket's timeout limits each of them alone: a server that sends a byte now and then is never late.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpcore

__all__ = ["RequestDeadline", "enforce_deadlines", "request_deadline"]

_PIECE_BYTES = 64 * 1024
"""Most bytes that are written at once, so that a slow reader meets the deadline between them."""


class RequestDeadline:
    """Time limit of one phase of a request after the other: sending, the head, and the body.

    Attributes:
        seconds: the limit of the current phase.
    """

    def __init__(self) -> None:
        """Set no limit yet."""
        self.seconds = math.inf
        self._end = math.inf
        self._after_first = math.inf
        self._has_received = False

    def begin_phase(self, seconds: float, after_first: float = math.inf) -> None:
        """End the phase before, and limit the next one.

        Args:
            seconds: the limit.
            after_first: the limit from the first bytes on that the server sends in the phase.
        """
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._after_first = after_first
        self._has_received = False

    def note_received(self) -> None:
        """Note that the server has sent something in this phase."""
        end = time.monotonic() + self._after_first
        if not self._has_received and end < self._end:
            self.seconds, self._end = self._after_first, end
        self._has_received = True

    @property
    def is_over(self) -> bool:
        """Whether the phase has reached its limit."""
        return time.monotonic() >= self._end

    @property
    def cuts_off_answer(self) -> bool:
        """Whether the phase has reached its limit while the server was sending."""
        return self.is_over and self._has_received

    def shorten(self, timeout: float | None) -> float | None:
        """Return a timeout that ends no later than the phase; zero or negative if that is over."""
        left = self._end - time.monotonic()
        return timeout if left == math.inf else min(left, math.inf if timeout is None else timeout)


_deadline: ContextVar[RequestDeadline | None] = ContextVar(
    "dejavu-cache request deadline", default=None
)


@contextmanager
def request_deadline() -> Iterator[RequestDeadline]:
    """Provide the deadline of the request that this thread makes inside."""
    deadline = RequestDeadline()
    token = _deadline.set(deadline)
    try:
        yield deadline
    finally:
        _deadline.reset(token)


def enforce_deadlines(connection: Any) -> None:
    """Make a connection's reads and writes end by the deadline of whichever request makes them.

    Connections outlive requests, and httpx has no setting for what they do: so the methods of
    `httpcore.NetworkStream` are replaced.
    """
    read, write = connection.read, connection.write

    def read_in_time(max_bytes: int, timeout: float | None = None) -> bytes:
        deadline = _deadline.get() or RequestDeadline()
        shortened = deadline.shorten(timeout)
        if shortened is not None and shortened <= 0:
            raise httpcore.ReadTimeout("timed out")
        received: bytes = read(max_bytes, timeout=shortened)
        deadline.note_received()
        return received

    def write_in_time(buffer: bytes, timeout: float | None = None) -> None:
        deadline = _deadline.get() or RequestDeadline()
        for start in range(0, len(buffer), _PIECE_BYTES):
            shortened = deadline.shorten(timeout)
            if shortened is not None and shortened <= 0:
                raise httpcore.WriteTimeout("timed out")
            write(buffer[start : start + _PIECE_BYTES], timeout=shortened)

    connection.read, connection.write = read_in_time, write_in_time
