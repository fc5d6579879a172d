"""Connections that do not wait for ever: time and room for a request's head, and for its answer."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .joined_writes import JoinedWrites

__all__ = ["BoundedConnection", "raise_open_files"]

_HEAD_SECONDS = 10.0
"""Seconds in which a request's head must arrive, from the first byte or from the connection on."""
_DRAIN_SECONDS = 10.0
"""Seconds in which the rest of a body must arrive once its request is answered."""
_STALL_SECONDS = 60.0
"""Seconds for which a client may stop reading an answer."""
_MOST_UNREAD = 256 * 2**20
"""Bytes of all answers that may wait for clients to read them."""
_MAX_HEAD = 64 * 1024
"""Bytes of a head, of a chunk's head, and of the lines after the last chunk."""
_HEAD_TOO_LARGE = b"HTTP/1.1 431 Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_OTHER_FILES = 200
"""Open files that the server needs besides its connections."""
_MAX_CONNECTIONS = 10_000


def raise_open_files() -> int:
    """Allow this process as many open files as it may, and return how many connections fit."""
    if sys.platform == "win32":
        return _MAX_CONNECTIONS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # some systems report a limit that they do not grant
    if soft == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return max(16, min(_MAX_CONNECTIONS, soft - _OTHER_FILES))


class BoundedConnection(HttpToolsProtocol):
    """A connection of uvicorn's with limits that uvicorn lacks.

    When there are too many connections, the one that has waited longest for a request is closed:
    half-sent requests keep nobody else out. When too much is unread, so is the connection whose
    client has been reading longest.
    """

    max_connections = _MAX_CONNECTIONS
    _without_request: ClassVar[dict[BoundedConnection, None]] = {}
    """Connections that wait for a request or for its head, the longest waiting first."""
    _unread: ClassVar[dict[BoundedConnection, int]] = {}
    """Bytes that wait at the connections that are being read, the longest waiting first."""

    _timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_message = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a request's head."""
        super().connection_made(transport)
        self._writes = JoinedWrites(transport)
        self.transport = self._writes  # type: ignore[assignment]
        self._wait_for_head()
        if len(self.connections) > self.max_connections:
            oldest = next(iter(self._without_request))
            del self._without_request[oldest]
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._unread.pop(self, None)
        self._without_request.pop(self, None)
        self._cancel(self._timer)
        self._cancel(self._stall_timer)
        self._cancel(self.timeout_keep_alive_task)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, and refuse a head that does not end."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > _MAX_HEAD and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(_HEAD_TOO_LARGE)
                self.transport.close()
            else:
                self.transport.abort()
        answered = self.cycle is not None and self.cycle.response_complete
        if answered and self._timer is None and not self._in_message:
            self._wait_for_head()  # bytes between two requests end uvicorn's own timer

    def on_message_begin(self) -> None:
        """Start to wait for a request's head."""
        super().on_message_begin()
        self._in_message = True
        if self._timer is None:
            self._wait_for_head()

    def on_headers_complete(self) -> None:
        """Stop to wait: from here on the application bounds the time of the body."""
        self._without_request.pop(self, None)
        self._stop_timer()
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass a part of a body on."""
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request has arrived."""
        self._in_message = False
        self._head_bytes = 0
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of a body that nobody read."""
        self._writes.end_answer()
        super().on_response_complete()
        if self.transport.is_closing() or not self.cycle.response_complete:
            return
        self._without_request[self] = None
        if self._in_message:
            # uvicorn closes a connection that says nothing for some seconds; this one may drip.
            self._start_timer(_DRAIN_SECONDS)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also if its client does not read the last of its answer."""
        super().timeout_keep_alive_handler()
        self._stall_timer = self.loop.call_later(_STALL_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        """Start to wait for a client that does not read its answer."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(_STALL_SECONDS, self.transport.abort)
        self._unread[self] = self.transport.get_write_buffer_size()
        while len(self._unread) > 1 and sum(self._unread.values()) > _MOST_UNREAD:
            slowest = next(iter(self._unread))
            del self._unread[slowest]
            slowest.transport.abort()

    def resume_writing(self) -> None:
        """Stop to wait: the client reads."""
        super().resume_writing()
        self._cancel(self._stall_timer)
        self._unread.pop(self, None)

    def _wait_for_head(self) -> None:
        self._without_request.pop(self, None)
        self._without_request[self] = None
        self._start_timer(_HEAD_SECONDS)

    def _start_timer(self, seconds: float) -> None:
        self._cancel(self._timer)
        self._timer = self.loop.call_later(seconds, self._give_up, seconds)

    def _stop_timer(self) -> None:
        self._cancel(self._timer)
        self._timer = None

    def _give_up(self, seconds: float) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._start_timer(seconds)  # a request before this one is still being answered
        else:
            self.transport.abort()

    @staticmethod
    def _cancel(timer: Any) -> None:
        if timer is not None:
            timer.cancel()
