"""One HTTP request to the server and its whole answer, or an error that says what went wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import httpx
import stamina

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.scenario import correct_clock
from dejavu_cache.system.notices import warn_once

from .answer_body import ACCEPTED_ENCODING, decode_body
from .answers import problem_detail, retry_after
from .errors import BusyError, NonsenseError, RefusedError, ServerFaultError, UnreachableError
from .request_deadline import RequestDeadline, request_deadline
from .server_silence import current_clock
from .shared_client import SharedHttpClient
from .token_source import TokenSource

__all__ = ["HttpExchange", "ServerAnswer"]

LARGEST_BODY = 256 * 2**20
"""Bytes of a decompressed answer beyond which it is not read."""

SLOWEST_BODY = 60.0
"""Seconds that the body of an answer may take from its first byte to its last.

Its head may begin as late as the server may be silent: the `timeout` of the request.
"""

SLOWEST_HEAD = 40.0
"""Seconds that the head of an answer may take from its first byte to its last."""

SLOWEST_UPLOAD = 16 * 1024
"""Bytes a second that a server takes at least, beyond the `timeout`; ours asks for 32 KiB."""

RETRYABLE_STATUSES = {408, 425, 429, 500, 502, 503, 504}

BUSY_STATUSES = {429, 503}
"""Statuses that, with `Retry-After`, tell a client to wait and not that the server has failed."""

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
"""Errors of requests that no server can have received."""


class ServerAnswer(NamedTuple):
    """An answer that is still to be parsed, which no server should be blamed for.

    Attributes:
        status: 2xx, 304 or 404; any other status is raised as an error.
        etag: the answer's entity tag; empty if it has none.
        body: the decompressed body.
    """

    status: int
    etag: str
    body: bytes


class HttpExchange:
    """Requests to one server. Thread-safe.

    Args:
        url: the server's base URL, which errors name.
        token: bearer token to send, or where to read it; empty for none.
        attempts: how often a request is tried while the server is unreachable.
        http_client: replaces the own connections, for tests and special transports; `connections`
            leaves it open.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | TokenSource = "",
        attempts: int = 1,
        http_client: httpx.Client | None = None,
    ) -> None:
        """Set up the requests; nothing is sent yet."""
        self.connections = SharedHttpClient()
        self._url = url
        self._attempts = attempts
        self._token = token if isinstance(token, TokenSource) else TokenSource(token)
        self._injected_client = http_client

    def send(
        self, method: str, url: str, *, repeatable: bool = True, **request: Any
    ) -> ServerAnswer:
        """Send a request and return the answer.

        Args:
            method: the HTTP method.
            url: the absolute URL.
            repeatable: whether the request has the same effect, and answer, twice as once; any
                other is sent once.
            **request: `params`, `headers`, `content` and `timeout` as `httpx` takes them; content
                is JSON.

        Raises:
            UnreachableError: the server does not answer, or a proxy answers in its place.
            BusyError: the server says for how long it wants to be left alone.
            ServerFaultError: the server failed on this request.
            RefusedError: the server does not take the request.
            NonsenseError: the answer is too large, a redirect, or compressed in an unknown way.
            SettingsError: the URL is not one.
        """
        for attempt in stamina.retry_context(
            on=UnreachableError, attempts=self._attempts if repeatable else 1, timeout=60.0
        ):
            with attempt:
                return self._call_once(method, url, repeatable, **request)
        raise AssertionError("stamina always tries once")

    def _call_once(self, method: str, url: str, repeatable: bool, **request: Any) -> ServerAnswer:
        headers = {
            "Accept-Encoding": ACCEPTED_ENCODING,
            **self._token.headers(),
            **request.pop("headers", {}),
        }
        if "content" in request:
            headers["Content-Type"] = "application/json"
        try:
            exchange = self._exchange if repeatable else self._exchange_once
            status, response_headers, body = exchange(method, url, headers, request)
        except httpx.InvalidURL as error:
            raise SettingsError(f"{url}: {error}") from None
        except httpx.HTTPError as error:
            may_be_done = not (repeatable or isinstance(error, _NOT_SENT))
            hint = "; it may have done what was asked all the same" if may_be_done else ""
            if str(error).startswith("[Errno "):  # the system has made no connection, or lost it
                hint = hint or "; check its URL, and that it runs"
            raise UnreachableError(
                f"{self._url} does not answer: {error or type(error).__name__}{hint}"
            ) from error
        self._check_clock(response_headers.get("date", ""))
        if status == 500:
            raise ServerFaultError(f"{self._url} answered {status}: {problem_detail(body)}")
        if status in RETRYABLE_STATUSES:
            message = f"{self._url} answered {status}: {problem_detail(body)}"
            seconds = retry_after(response_headers.get("retry-after", ""))
            if status in BUSY_STATUSES and seconds is not None:
                raise BusyError(message, status, seconds)
            raise UnreachableError(message)
        if 300 <= status < 400 and status != 304:
            raise NonsenseError(f"{self._url} answered with a redirect, which is not followed")
        if status >= 400 and status != 404:
            raise RefusedError(f"{self._url} refused with {status}: {problem_detail(body)}", status)
        return ServerAnswer(status, response_headers.get("etag", ""), body)

    def _check_clock(self, date: str) -> None:
        """Date records by the server's clock if this machine's is wrong by more than a day."""
        try:
            present = parsedate_to_datetime(date).astimezone(timezone.utc)
        except (ValueError, OverflowError):
            return
        if correct_clock(present):
            warn_once(
                f"clock {self._url}",
                f"this machine's clock is more than a day off that of {self._url}: records are "
                "dated by the server's; set the clock right",
            )

    def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], request: dict[str, Any]
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request and read its answer, once more if the connection was lost meanwhile.

        A server that restarts or has been idle closes connections, also while a request is on its
        way.
        """
        for is_last in (False, True):
            try:
                return self._exchange_once(method, url, headers, request)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                if is_last:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _exchange_once(
        self, method: str, url: str, headers: Mapping[str, str], request: dict[str, Any]
    ) -> tuple[int, Mapping[str, str], bytes]:
        clock = current_clock()
        with self._http_client() as client, request_deadline() as deadline:
            timeout = httpx.Timeout(request.get("timeout", client.timeout))
            upload_seconds = len(request.get("content", "")) / SLOWEST_UPLOAD

            def trace(event: str, details: Mapping[str, Any]) -> None:
                self.connections.trace(event, details)
                clock.trace(event)
                if event.endswith(".send_request_headers.started"):
                    deadline.begin_phase((timeout.write or math.inf) + upload_seconds)
                elif event.endswith(".receive_response_headers.started"):
                    deadline.begin_phase(timeout.read or math.inf, after_first=SLOWEST_HEAD)

            try:
                with client.stream(
                    method, url, headers=headers, extensions={"trace": trace}, **request
                ) as response:
                    deadline.begin_phase(SLOWEST_BODY)
                    body = self._read_body(response, deadline)
                    return response.status_code, response.headers, body
            except httpx.TimeoutException as error:
                if deadline.cuts_off_answer:
                    raise self._still_answering(deadline) from error
                raise

    @contextmanager
    def _http_client(self) -> Iterator[httpx.Client]:
        if self._injected_client is None:
            with self.connections.request() as client:
                yield client
        else:
            # It may have a transport that reports no steps.
            with current_clock().count_wait():
                yield self._injected_client

    def _read_body(self, response: httpx.Response, deadline: RequestDeadline) -> bytes:
        encoding = response.headers.get("content-encoding", "")
        # Not `iter_raw`, which refuses answers that a special transport has as a whole.
        assert isinstance(response.stream, httpx.SyncByteStream)
        body = bytearray()
        for piece in decode_body(response.stream, encoding, self._url):
            body += piece
            if len(body) > LARGEST_BODY:
                raise NonsenseError(f"{self._url} sent more than {LARGEST_BODY >> 20} MiB")
            if deadline.is_over:
                raise self._still_answering(deadline)
        return bytes(body)

    def _still_answering(self, deadline: RequestDeadline) -> UnreachableError:
        return UnreachableError(f"{self._url} was still answering after {deadline.seconds:.0f} s")
