"""HTTP client that several threads share and any of them may close."""

from __future__ import annotations

import encodings.idna  # noqa: F401
import os
import socket
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

# httpx and sockets import these with the first request. A child that is forked while a background
# thread does that would find them half imported, and could never send anything.
import certifi  # noqa: F401
import httpcore  # noqa: F401
import httpx

from dejavu_cache.system.background_threads import uninterrupted
from dejavu_cache.system.fork_lock import ForkLock

from .request_deadline import enforce_deadlines

__all__ = ["SharedHttpClient"]

REQUEST_TIMEOUT = httpx.Timeout(40.0, connect=5.0)

_VARIABLES = {
    "ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_DIR", "SSL_CERT_FILE",
}  # fmt: skip
"""Environment variables that decide how httpx connects; those of proxies in small letters too."""


class SharedHttpClient:
    """HTTP client that opens with the first request and closes once nobody uses it.

    `close` may be called while other threads wait for an answer. Closing their `httpx.Client` then
    would fail a request that is about to start, and leak a connection that is being established.
    Therefore `close` only sets the client aside, and the last of its requests closes it.
    """

    def __init__(self) -> None:
        """Open no connection yet."""
        self.abandon()

    def abandon(self) -> None:
        """Drop the connections without closing them: after a fork they belong to the parent."""
        # Reentrant, since the garbage collector may close a store while this thread opens a client.
        self._lock = ForkLock()
        self._client: httpx.Client | None = None
        self._requests: Counter[httpx.Client] = Counter()
        self._sockets_lock = ForkLock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._is_interrupted = False

    def interrupt(self) -> None:
        """Shut the connections down, so that all requests fail at once, also later ones."""
        self._is_interrupted = True
        with self._sockets_lock:
            sockets = list(self._sockets)
        for connection in sockets:
            _shut_down(connection)

    def trace(self, event: str, details: Mapping[str, Any]) -> None:
        """Prepare new connections for deadlines and `interrupt`: the `trace` of each request."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            stream = details["return_value"]
            enforce_deadlines(stream)
            connection = stream.get_extra_info("socket")
            with self._sockets_lock:
                self._sockets.add(connection)
            if self._is_interrupted:
                _shut_down(connection)

    @contextmanager
    def request(self) -> Iterator[httpx.Client]:
        """Provide the client for one request."""
        if self._is_interrupted:
            raise httpx.ConnectError("the program ends")
        with uninterrupted(), self._lock:
            if self._client is None:
                self._client = _open_client()
            client = self._client
            self._requests[client] += 1
        try:
            yield client
        finally:
            with self._lock:
                self._requests[client] -= 1
                is_last = self._requests[client] <= 0
                if is_last:
                    del self._requests[client]
                is_set_aside = client is not self._client
            if is_last and is_set_aside:
                client.close()

    def close(self) -> None:
        """Close the connections once their requests are answered; `request` opens new ones."""
        with self._lock:
            client, self._client = self._client, None
            in_use = client in self._requests
        if client is not None and not in_use:
            client.close()


def _open_client() -> httpx.Client:
    """Open a client with the proxies and the certificates that the environment names.

    Raises:
        httpx.ConnectError: they cannot be used.
    """
    try:
        return httpx.Client(timeout=REQUEST_TIMEOUT, follow_redirects=False)  # sets up OpenSSL
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
        raise httpx.ConnectError(
            "no connection is possible with what this environment says of proxies and "
            f"certificates ({_name_variables() or 'the system certificates'}): {error}"
        ) from error


def _name_variables() -> str:
    """Name the environment variables that httpx reads and that are set."""
    return ", ".join(name for name in os.environ if name.upper() in _VARIABLES)


def _shut_down(connection: socket.socket) -> None:
    """Wake the thread that waits for a connection; the socket is still closed by its owner."""
    with suppress(OSError):  # it is closed already, or its file now belongs to a TLS socket
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
