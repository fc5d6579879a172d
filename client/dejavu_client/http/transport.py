"""The process's HTTP connections: a thread for each request, and a deadline for all of it.

A socket's timeout limits the gap between two bytes, not the whole answer, and Python cannot stop a
thread. So whoever asks waits beside a thread that sends the request, and leaves when the server is
silent for too long. At the deadline and at the program's end, the connections are shut down, so
that the threads end.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401
import math
import os
import queue
import re
import socket
import time
import weakref
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

# httpx and sockets import these with the first request. A child that is forked while a background
# thread does that would find them half imported, and could never send anything.
import certifi  # noqa: F401
import httpcore  # noqa: F401
import httpx

from dejavu_cache.errors import SettingsError
from dejavu_cache.stores import current_look
from dejavu_cache.system import background_threads
from dejavu_cache.system.fork_lock import ForkLock
from dejavu_cache.system.notices import size_text, warn_once
from dejavu_cache.system.safe_files import read_file

from .errors import NonsenseError, SilenceError, UnreachableError

TICK = 0.01
"""Seconds between two looks at a request that may not be silent for long."""

WHOLE_SECONDS = 60.0
"""Seconds from the first byte of a request to the last one of its answer."""

CONNECT_SECONDS = 5.0
"""Seconds for each step of the set-up of a connection."""

SLOWEST_UPLOAD = 16 * 1024
"""Bytes a second that a server takes at least, beyond the deadline; ours asks for 32 KiB."""

LARGEST_BODY = 256 * 2**20
"""Bytes of a decompressed answer beyond which it is not read."""

_LOST = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
"""Errors of a connection that a server has closed, as one does that restarts or has been idle."""

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
"""Errors of requests that no server can have received."""

TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""Characters of a bearer token (RFC 6750)."""


class ServerAnswer(NamedTuple):
    """An answer that is still to be judged and parsed; its body is decompressed."""

    status: int
    headers: httpx.Headers
    body: bytes
    redirects: list[httpx.Response]


class Transport(background_threads.Finisher):
    """Connections to servers, which requests of all threads share; tests give another handler."""

    _connections: _Connections | None = None

    def __init__(self, handler: httpx.BaseTransport | None = None) -> None:
        """Open no connection yet."""
        self._handler = handler
        self.abandon()
        background_threads.at_program_end(self)

    def abandon(self) -> None:
        """Begin anew in a forked child: the connections are its parent's."""
        self._lock = ForkLock()
        if self._connections is not None:
            self._connections.closing.detach()  # it would wait for locks of the parent's threads
            for connection in list(self._connections.sockets):
                connection.close()
        self._connections = None

    def send(
        self,
        method: str,
        url: str,
        *,
        server: str,
        silence: float = math.inf,
        seconds: float | None = None,
        repeatable: bool = True,
        largest: int = 0,
        body_seconds: float = 0.0,
        **request: Any,
    ) -> ServerAnswer:
        """Send a request, and return its answer, whatever its status.

        Args:
            method: the HTTP method.
            url: the absolute URL.
            server: the server's URL, which errors name.
            silence: seconds for which the server may be silent, while a connection is set up and
                again from then on. This process's own work is not counted.
            seconds: deadline of the request and its whole answer; `WHOLE_SECONDS` by default.
            repeatable: whether to send the request again if the connection is lost meanwhile.
            largest: bytes beyond which the answer is not read; 0 stands for `LARGEST_BODY`.
            body_seconds: what is added to the deadline once the answer's headers are there.
            **request: `params`, `headers`, `content` and others as httpx takes them.

        Raises:
            UnreachableError: there is no answer, or none in time.
            NonsenseError: the answer is too large, or compressed in an unknown way.
            SettingsError: the URL is not one.
        """
        seconds = (seconds or WHOLE_SECONDS) + len(request.get("content", "")) / SLOWEST_UPLOAD
        # The deadline is kept here. A socket's own comes later, where no thread can be started.
        timeout = httpx.Timeout(seconds + CONNECT_SECONDS, connect=CONNECT_SECONDS)
        request |= {"method": method, "url": url, "timeout": timeout}
        exchange = partial(self._exchange, server, 2 if repeatable else 1, largest, request)
        try:
            return self.wait_for(exchange, silence, Waiting(seconds, body_seconds))
        except httpx.InvalidURL as error:
            raise SettingsError(f"{url}: {error}") from None
        except zlib.error as error:
            raise NonsenseError(f"{server} sent a damaged gzip stream: {error}") from None
        except SilenceError as error:
            raise SilenceError(f"{server} {error}{_hint(error, repeatable)}") from None
        except (httpx.HTTPError, UnicodeError) as error:  # a host may have no name that IDNA allows
            reason = (str(error) or type(error).__name__) + _hint(error, repeatable)
            raise UnreachableError(f"{server} does not answer: {reason}") from error

    def wait_for(
        self, exchange: Callable[[Waiting], ServerAnswer], silence: float, progress: Waiting
    ) -> ServerAnswer:
        """Return what an exchange returns in a thread of its own, unless it takes too long."""
        outcomes: queue.SimpleQueue[ServerAnswer | BaseException] = queue.SimpleQueue()

        def ask() -> None:
            try:
                outcomes.put(exchange(progress))
            except BaseException as error:
                outcomes.put(error)

        if background_threads.start_thread(ask, "dejavu-cache request") is None:
            ask()
        start, before = time.monotonic(), (look := current_look()).waited
        while True:
            asked = time.monotonic()
            left = max(progress.until - asked, 0.0)
            try:
                outcome = outcomes.get(timeout=TICK if silence < math.inf else left)
                look.waited += min(time.monotonic() - asked, TICK)
            except queue.Empty:
                look.waited = before + progress.tick()
                is_silent = look.waited >= silence
                if not is_silent and progress.until > time.monotonic():
                    continue
                progress.is_left = True
                if is_silent:
                    span = f"{silence - before:.2g} s" + (" left of its look" if before else "")
                    raise SilenceError(f"did not answer within {span}") from None
                self.interrupt()
                seconds = time.monotonic() - start
                raise SilenceError(f"had not answered after {seconds:.0f} s") from None
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

    def interrupt(self) -> None:
        """Shut the connections down, which wakes whoever waits for them; later ones are new."""
        with self._lock:
            connections, self._connections = self._connections, None
        if connections is not None:
            connections.shut_down()

    def _exchange(
        self, server: str, attempts: int, largest: int, request: dict[str, Any], progress: Waiting
    ) -> ServerAnswer:
        """Send a request and read its whole answer; send it again if the connection is lost."""
        connections = self._open_connections()

        def trace(event: str, details: Mapping[str, Any]) -> None:
            progress.trace(event)
            if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
                connections.add(details["return_value"].get_extra_info("socket"))

        try:
            with connections.client.stream(**request, extensions={"trace": trace}) as response:
                body = _read_body(response, server, largest or LARGEST_BODY, progress)
            return ServerAnswer(response.status_code, response.headers, body, response.history)
        except _LOST:
            if attempts == 1 or progress.is_left:
                raise
        return self._exchange(server, attempts - 1, largest, request, progress)

    def _open_connections(self) -> _Connections:
        """Return what later requests use too, with what the environment names."""
        with background_threads.uninterrupted(), self._lock:
            if background_threads.program_is_ending():
                raise UnreachableError("no server is asked while the program ends")
            try:  # to set up OpenSSL
                self._connections = self._connections or _Connections(self._handler)
            except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
                raise UnreachableError(
                    "no connection is possible with the proxies and certificates of this machine "
                    "(ALL_PROXY, HTTP_PROXY, HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE, SSL_CERT_DIR): "
                    f"{error}"
                ) from error
            return self._connections


class _Connections:
    """A client, which is closed when no request uses it and no later one could."""

    def __init__(self, handler: httpx.BaseTransport | None) -> None:
        self.client = httpx.Client(transport=handler, event_hooks={"response": [_read_no_redirect]})
        self.client.headers["Accept-Encoding"] = "gzip"  # or servers may choose what is not read
        self.sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._lock, self._is_shut_down = ForkLock(), False
        self.closing = weakref.finalize(self, self.client.close)
        self.closing.atexit = False  # others may wait for answers until then

    def add(self, connection: socket.socket) -> None:
        with self._lock:
            self.sockets.add(connection)
            if self._is_shut_down:
                self.shut_down()

    def shut_down(self) -> None:
        """Wake the threads that wait for a connection, also for one that is added later."""
        with self._lock:
            self._is_shut_down = True
            for connection in self.sockets:
                with suppress(OSError):  # it is closed, or its file now belongs to a TLS socket
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)


shared_transport = Transport()
"""The transport of this process."""

os.register_at_fork(after_in_child=shared_transport.abandon)


class Waiting:
    """What a request has waited for, by steps of httpcore.

    Loading certificates, decompressing and all else that this process does itself is no step. The
    set-up of a connection and the exchange over it are counted apart: a distant server may need
    several round trips to set up a connection, and one for each answer from then on.

    Attributes:
        is_left: whether nobody waits for the answer any more.
        until: time after which no more is read.
        body_seconds: what the answer's headers add to that.
    """

    def __init__(self, seconds: float = math.inf, body_seconds: float = 0.0) -> None:
        """Wait for nothing yet."""
        self._silence, self.body_seconds = [0.0, 0.0], body_seconds
        self.until = time.monotonic() + seconds
        self._is_waiting = self._is_exchange = self.is_left = False

    def trace(self, event: str) -> None:
        """Note that a step has started or ended: httpcore's `trace` extension."""
        self._is_exchange = event.startswith("http")
        self._is_waiting = event.endswith(".started")

    def tick(self) -> float:
        """Count a tick if the request waits now; return the seconds of the longer silence."""
        # The nominal length: a tick that lasted longer found this process without a processor.
        if self._is_waiting:
            self._silence[self._is_exchange] += TICK
        return max(self._silence)


def _read_no_redirect(response: httpx.Response) -> None:
    """Leave out the body of a redirect, which httpx reads without a limit before it follows."""
    if response.has_redirect_location and isinstance(response.stream, httpx.SyncByteStream):
        response.stream.close()
        response.stream = httpx.ByteStream(b"")


def _read_body(response: httpx.Response, server: str, largest: int, progress: Waiting) -> bytes:
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip"):  # nothing would bound the expansion of two
        raise NonsenseError(f"{server} sent a body with the encoding {encoding[:80]!r}")
    packed = zlib.decompressobj(zlib.MAX_WBITS | 16) if encoding == "gzip" else None
    body = bytearray()
    progress.until += progress.body_seconds
    for piece in cast(Any, response.stream):  # httpx would pass over what follows a gzip stream
        if time.monotonic() > progress.until:
            raise SilenceError("had not answered in time")
        body += packed.decompress(piece, largest + 1 - len(body)) if packed else piece
        if len(body) > largest:
            raise NonsenseError(f"{server} sent more than {size_text(largest)}")
        if packed and packed.unused_data:  # which may have no end, and zlib keeps all of it
            raise zlib.error("more follows its end")
    return bytes(body)


def _hint(error: Exception, repeatable: bool) -> str:
    if str(error).startswith("[Errno "):  # the system has made no connection, or lost it
        return "; check its URL, and that it runs"
    may_be_done = not (repeatable or isinstance(error, _NOT_SENT))
    return "; it may have done what was asked all the same" if may_be_done else ""


class TokenSource:
    """A token, or a file that is read for each request, since its token may be replaced.

    A text that cannot be a token is never sent, and no message contains it.
    """

    def __init__(self, token: str = "", file: str | Path = "") -> None:
        """Take the token from a file, or from a text if no file is named."""
        self._file = Path(os.path.expanduser(file)) if file else None  # raises nothing
        self._headers = _token_headers(token, "DEJAVU_CACHE_TOKEN")

    def headers(self) -> dict[str, str]:
        """Return the headers that carry the token; none without one."""
        if self._file is not None:
            try:
                text = read_file(Path(os.path.realpath(self._file))).decode(errors="replace")
                # Who writes a file in place empties it first: the new token is on its way.
                if text.strip():
                    self._headers = _token_headers(text, str(self._file))
            except OSError as error:
                # The last token stays: a file may be away for a moment while it is replaced.
                warn_once(f"token file {self._file}", f"{self._file} cannot be read: {error}")
        return self._headers


def _token_headers(text: str, source: str) -> dict[str, str]:
    # Files and secrets often end with a line break, and environment files may keep quotes.
    token = text.strip().strip("\"'").strip()
    if token and TOKEN.fullmatch(token) is None:
        warn_once(
            f"token of {source}",
            f"{source} has characters that no token has, so no token is sent: copy it again",
        )
        token = ""
    return {"Authorization": f"Bearer {token}"} if token else {}
