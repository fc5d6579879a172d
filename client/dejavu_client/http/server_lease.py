"""The server's lease on a scenario: acquired, waited for through a restart, and renewed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.system.background_threads import program_is_ending, start_thread
from dejavu_cache.system.notices import whoami

from .circuit_breaker import jitter
from .errors import RefusedError, RemoteError, UnreachableError
from .protocol_client import ProtocolClient
from .server_calls import BUSY_SECONDS, ServerCalls

__all__ = ["LEASE_SECONDS", "ServerLease"]

LEASE_SECONDS = 30.0
"""Lifetime of a lease that is not renewed, and so the delay after a tuner has died."""

ASK_SECONDS = 1.0
"""Seconds, on average, after which a waiting process asks again whether the record is there."""

ASKS_FOR_LEASE = 3
"""Of so many questions one is for the lease, which may have ended without a record."""

RESTART_SECONDS = 60.0
"""Absence of the server through which a process waits for another one's tune."""


class ServerLease:
    """The right to tune one scenario of a server's namespace.

    Args:
        client: the connection to the namespace.
        calls: bounds the requests of a caller that waits.
        context: the scenario's context.
        scenario: the scenario to tune.
        seconds: lifetime of a lease that is not renewed.
    """

    def __init__(
        self,
        client: ProtocolClient,
        calls: ServerCalls,
        context: Context,
        scenario: Scenario,
        seconds: float,
    ) -> None:
        """Name the lease; nothing is asked yet."""
        self._client = client
        self._calls = calls
        self._context = context
        self._scenario = scenario
        self._seconds = seconds
        self._holder = f"{whoami()}:{os.getpid()}:{threading.get_ident()}"
        self._lease: str | None = None
        self._etag = ""
        self._has_winner = False

    def acquire(self, wait: float) -> bool:
        """Acquire the lease; return False if another holder still has it after `wait` seconds.

        Whoever waits has been answered once. The tune that it waits for goes on while the server
        restarts, so the server may then be away for `RESTART_SECONDS`.

        Raises:
            RemoteError: the server does not answer, or refuses.
        """
        deadline = time.monotonic() + wait
        self._lease = self._calls.ask_patiently(self._request, min(wait, BUSY_SECONDS))
        asked = 0
        while self._lease is None and (remaining := deadline - time.monotonic()) > 0:
            # The processes of a fleet must not ask all at once.
            time.sleep(min(remaining, ASK_SECONDS * jitter.uniform(0.75, 1.25)))
            asked += 1
            if not self._is_tuned() and asked % ASKS_FOR_LEASE:
                continue
            remaining = max(deadline - time.monotonic(), 0.0)
            try:
                self._lease = self._calls.ask_again(self._request, min(remaining, RESTART_SECONDS))
            except UnreachableError:
                if remaining > RESTART_SECONDS:
                    raise
                break
        return self._lease is not None

    def _request(self) -> str | None:
        return self._client.lease(self._context, self._scenario, self._holder, self._seconds)

    def _is_tuned(self) -> bool:
        """Return whether the scenario had a winner when the server was last reached."""
        with suppress(RemoteError):
            ask = partial(self._client.fetch_record, self._context, self._scenario, self._etag)
            answer = self._calls.ask(ask)
            if answer.status != 304:
                record = self._client.parse_record(self._scenario, answer)
                self._has_winner = record is not None and record.winner is not None
                self._etag = answer.etag
        return self._has_winner

    @contextmanager
    def keep_alive(self, release: Callable[[str], None]) -> Iterator[None]:
        """Renew the acquired lease in a thread of its own, and hand it to `release` at the end."""
        done = threading.Event()
        start_thread(partial(self._renew, done), "dejavu-cache lease")
        try:
            yield
        finally:
            done.set()
            if self._lease is not None:
                release(self._lease)

    def _renew(self, done: threading.Event) -> None:
        while not (done.wait(self._seconds / 3) or program_is_ending()):
            with suppress(RemoteError):
                try:
                    self._client.renew(str(self._lease), self._seconds)
                except RefusedError as error:
                    if error.status != 404:
                        raise
                    # It expired while the server was away; nobody else may have taken it since.
                    self._lease = self._request() or self._lease
