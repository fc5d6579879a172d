"""HTTP client that several threads share and any of them may close."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

__all__ = ["SharedHttpClient"]

REQUEST_TIMEOUT = httpx.Timeout(40.0, connect=5.0)


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
        self._lock = threading.RLock()
        self._client: httpx.Client | None = None
        self._requests: Counter[httpx.Client] = Counter()

    @contextmanager
    def request(self) -> Iterator[httpx.Client]:
        """Provide the client for one request."""
        with self._lock:
            if self._client is None:
                self._client = httpx.Client(timeout=REQUEST_TIMEOUT, follow_redirects=False)
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
