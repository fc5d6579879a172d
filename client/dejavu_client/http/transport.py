"""The process's HTTP connections: one thread that runs an event loop, and a deadline for all.

A launch waits in its own thread for what it asks here, so nothing is locked while a request is on
its way, and whatever nobody waits for any more is cancelled: when a server is silent, when the user
presses Ctrl-C, and when the program ends.
"""

from __future__ import annotations

import asyncio
import encodings.idna  # noqa: F401
import math
import os
import queue
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

# httpx and sockets import these with the first request. A child that is forked while the loop does
# that would find them half imported, and could never send anything.
import anyio._backends._asyncio  # noqa: F401
import certifi  # noqa: F401
import httpcore  # noqa: F401
import httpx

from dejavu_cache.errors import SettingsError
from dejavu_cache.system.background_threads import (
    Finisher,
    at_program_end,
    program_is_ending,
    start_thread,
    uninterrupted,
)
from dejavu_cache.system.fork_lock import ForkLock
from dejavu_cache.system.notices import warn_once

from .errors import NonsenseError, SilenceError, UnreachableError

__all__ = ["ServerAnswer", "TokenSource", "Transport", "shared_transport"]

T = TypeVar("T")

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

_ENCODINGS = ("", "identity", "gzip")
"""What a body may be encoded by. Its expansion is bounded, which that of two encodings is not."""

_LOST = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
"""Errors of a connection that a server has closed, as one does that restarts or has been idle."""

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
"""Errors of requests that no server can have received."""

_VARIABLES = {
    "ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_DIR", "SSL_CERT_FILE",
}  # fmt: skip
"""Environment variables that decide how httpx connects; those of proxies in small letters too."""


_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""Characters of a bearer token (RFC 6750)."""


class ServerAnswer(NamedTuple):
    """An answer that is still to be judged and parsed.

    Attributes:
        status: the HTTP status.
        headers: the headers, whose names are in any letters.
        body: the decompressed body.
    """

    status: int
    headers: httpx.Headers
    body: bytes


class Transport(Finisher):
    """Connections to servers, which requests of all threads share.

    Args:
        handler: answers requests in place of connections, for tests.
    """

    def __init__(self, handler: httpx.AsyncBaseTransport | None = None) -> None:
        """Start no thread, and open no connection yet."""
        self._handler = handler
        self._lock = ForkLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: httpx.AsyncClient | None = None

    def send(
        self,
        method: str,
        url: str,
        *,
        server: str,
        silence: float = math.inf,
        seconds: float | None = None,
        repeatable: bool = True,
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
            **request: `params`, `headers` and `content` as httpx takes them.

        Raises:
            UnreachableError: there is no answer, or none in time.
            NonsenseError: the answer is too large, or compressed in an unknown way.
            SettingsError: the URL is not one.
        """
        deadline = WHOLE_SECONDS if seconds is None else seconds
        deadline += len(request.get("content", "")) / SLOWEST_UPLOAD
        attempts = 2 if repeatable else 1
        exchange = partial(self._exchange, attempts, server, method, url, **request)
        try:
            return self._wait_for(partial(_bounded, exchange, silence, deadline))
        except httpx.InvalidURL as error:
            raise SettingsError(f"{url}: {error}") from None
        except httpx.DecodingError as error:
            raise NonsenseError(f"{server} sent a damaged gzip stream: {error}") from None
        except SilenceError as error:
            hint = _hint(error, repeatable)
            raise SilenceError(f"{server} {error}{hint}", error.is_connected) from None
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(
                f"{server} does not answer: {reason}{_hint(error, repeatable)}"
            ) from error

    def _wait_for(self, work: Callable[[], Coroutine[Any, Any, ServerAnswer]]) -> ServerAnswer:
        """Have the loop do some work, and return its result."""
        # Not a `Future`, whose lock in Python a signal handler that raises could leave locked.
        outcomes: queue.SimpleQueue[asyncio.Task[ServerAnswer]] = queue.SimpleQueue()
        loop, tasks = self._running_loop(), []

        def begin() -> None:
            tasks.append(loop.create_task(work()))
            tasks[0].add_done_callback(outcomes.put)

        try:
            loop.call_soon_threadsafe(begin)
            return outcomes.get().result()
        except BaseException as error:
            # Cancelled with the program, or too late for a loop that is closed.
            if isinstance(error, (asyncio.CancelledError, RuntimeError)) and program_is_ending():
                raise UnreachableError("no server is asked while the program ends") from None
            if isinstance(error, KeyboardInterrupt):
                loop.call_soon_threadsafe(tasks[0].cancel)
            raise

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if program_is_ending():
            raise UnreachableError("no server is asked while the program ends")
        with uninterrupted(), self._lock:
            if self._loop is None:
                loop = asyncio.SelectorEventLoop()
                loop.set_default_executor(_DaemonThreads())
                if start_thread(partial(_run, loop), "dejavu-cache connections") is None:
                    raise UnreachableError("no thread for connections can be started any more")
                self._loop = loop
                at_program_end(self)
            return self._loop

    def interrupt(self) -> None:
        """End all requests and the thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def abandon(self) -> None:
        """Begin anew in a forked child: thread and connections are its parent's."""
        # Closing the loop, or its connections being garbage-collected, would change the parent's.
        _abandoned.append((self._loop, self._client))
        self._loop = self._client = None

    async def _exchange(
        self, attempts: int, server: str, method: str, url: str, progress: _Progress, **request: Any
    ) -> ServerAnswer:
        """Send a request and read its whole answer; send it again if the connection is lost."""
        client = self._open_client()
        try:
            async with client.stream(
                method, url, extensions={"trace": progress.trace}, **request
            ) as response:
                body = await _read_body(response, server)
            return ServerAnswer(response.status_code, response.headers, body)
        except _LOST:
            if attempts == 1:
                raise
        return await self._exchange(attempts - 1, server, method, url, progress, **request)

    def _open_client(self) -> httpx.AsyncClient:
        """Return the client, made with the proxies and certificates that the environment names."""
        if self._client is None:
            timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
            try:
                with uninterrupted():  # it sets up OpenSSL
                    self._client = httpx.AsyncClient(timeout=timeout, transport=self._handler)
            except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
                names = ", ".join(name for name in os.environ if name.upper() in _VARIABLES)
                raise UnreachableError(
                    "no connection is possible with what this environment says of proxies and "
                    f"certificates ({names or 'the system certificates'}): {error}"
                ) from error
        return self._client


shared_transport = Transport()
"""The transport of this process."""

_abandoned: list[object] = []

os.register_at_fork(after_in_child=shared_transport.abandon)


class _Progress:
    """What a request has waited for, by steps of httpcore.

    The set-up of a connection and the exchange over it are counted apart: a distant server may need
    several round trips to set up a connection, and one for each answer from then on.

    Attributes:
        is_connected: whether a server has taken the connection, and so may only be busy.
    """

    def __init__(self) -> None:
        self._silence = [0.0, 0.0]
        self._is_exchange = False
        self.is_connected = False

    async def trace(self, event: str, _: Any) -> None:
        """Note a step of a request: httpcore's `trace` extension."""
        self._is_exchange = event.startswith("http")
        if self._is_exchange or event.endswith(".connect_tcp.complete"):
            self.is_connected = True

    def tick(self) -> float:
        """Count a tick, and return the seconds of the longer silence."""
        # The nominal length: in a longer tick, this process worked or had no processor.
        self._silence[self._is_exchange] += TICK
        return max(self._silence)


async def _bounded(
    exchange: Callable[..., Coroutine[Any, Any, ServerAnswer]], silence: float, seconds: float
) -> ServerAnswer:
    """Return an exchange's answer, unless its server is silent or slow; then cancel it.

    Raises:
        SilenceError: there was no answer in time.
    """
    progress = _Progress()
    task = asyncio.ensure_future(exchange(progress=progress))
    deadline = asyncio.get_running_loop().time() + seconds
    try:
        while not task.done():
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise SilenceError(f"had not answered after {seconds:.0f} s", progress.is_connected)
            await asyncio.wait({task}, timeout=TICK if silence < math.inf else left)
            if progress.tick() >= silence and not task.done():
                raise SilenceError(f"did not answer within {silence:g} s", progress.is_connected)
        return task.result()
    finally:
        task.cancel()


async def _read_body(response: httpx.Response, server: str) -> bytes:
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in _ENCODINGS:
        raise NonsenseError(f"{server} sent a body with the encoding {encoding[:80]!r}")
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > LARGEST_BODY:
            raise NonsenseError(f"{server} sent more than {LARGEST_BODY >> 20} MiB")
    return bytes(body)


def _hint(error: Exception, repeatable: bool) -> str:
    if isinstance(error, httpx.ConnectError):
        return "; check its URL, and that it runs"
    may_be_done = not (repeatable or isinstance(error, _NOT_SENT))
    return "; it may have done what was asked all the same" if may_be_done else ""


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop until the program ends; then end what it does."""
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.wait(tasks) if tasks else asyncio.sleep(0))
    loop.close()


class _DaemonThreads(ThreadPoolExecutor):
    """Threads in which the loop looks up names; the interpreter waits for those of other pools."""

    def submit(self, function: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        """Run a function in a thread of its own."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function(*args, **options))
            except BaseException as error:
                future.set_exception(error)

        if start_thread(run, "dejavu-cache name look-up") is None:
            future.set_exception(UnreachableError("no thread can be started any more"))
        return future


class TokenSource:
    """A token, read again whenever its file has changed.

    A text that cannot be a token is never sent, and no message contains it.
    """

    def __init__(self, token: str = "", file: str | Path = "") -> None:
        """Take the token from a file, or from a text if no file is named."""
        self._file = Path(os.path.expanduser(file)) if file else None  # raises nothing
        self._state: tuple[int, int, int] | None = None
        self._headers = _token_headers(token, "DEJAVU_CACHE_TOKEN")

    def headers(self) -> dict[str, str]:
        """Return the headers that carry the token; none without one."""
        if self._file is not None:
            try:
                status = os.stat(self._file)
                state = (status.st_mtime_ns, status.st_ino, status.st_size)
                if state != self._state:
                    text = self._file.read_text(encoding="utf-8", errors="replace")
                    # Who writes a file in place empties it first: the new token is on its way.
                    if text.strip():
                        self._headers = _token_headers(text, str(self._file))
                    self._state = state
            except OSError as error:
                # The last token stays: a file may be away for a moment while it is replaced.
                warn_once(f"token file {self._file}", f"{self._file} cannot be read: {error}")
        return self._headers


def _token_headers(text: str, source: str) -> dict[str, str]:
    # Files and secrets often end with a line break, and environment files may keep quotes.
    token = text.strip().strip("\"'").strip()
    if not token:
        return {}
    if _TOKEN.fullmatch(token) is None:
        warn_once(
            f"token of {source}",
            f"{source} has characters that no token has, so no token is sent: copy it again",
        )
        return {}
    return {"Authorization": f"Bearer {token}"}
