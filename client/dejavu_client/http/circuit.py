"""When a server is asked, and how long a launch waits for one that is silent, busy or away."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from dejavu_cache.system.fork_lock import ForkLock

from .errors import (
    BusyError,
    RefusedError,
    RemoteError,
    ServerFaultError,
    SilenceError,
    UnreachableError,
)
from .protocol_client import ProtocolClient

__all__ = ["BUSY_SECONDS", "CircuitBreaker", "ServerCalls", "jitter"]

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds until the first probe after a failure, and the limit to which the pause doubles."""

SHORTEST_BUSY = 0.5
"""Seconds to leave a busy server alone at least, doubled each time that it asks again.

What it asks for may be nothing, or, by this machine's clock, a moment that has passed.
"""

BUSY_SECONDS = 10.0
"""Seconds that a launch waits for a server that asks it to, where it would tune otherwise."""

PATIENCE = 8
"""How many times longer a launch waits for a silent server where it would tune otherwise."""

MOST_PATIENCE = 60.0
"""Seconds that a program may wait for a server beyond its usual wait, at first and at most."""

REGAINED = 1 / 60
"""Seconds of patience that each second gives back: a minute an hour."""

jitter = random.SystemRandom()
"""Random numbers of its own: those of the program's `random` module may be seeded."""


class CircuitBreaker:
    """Keep a launch from asking a server that has failed, until a probe has succeeded.

    A failure opens the circuit. A launch only reads `closed`; the background thread that probes the
    server reads `probe_due_in`, and whoever sends a request does so while `watching`. A server that
    asks its clients to wait has not failed: `busy` tells how long to leave it alone.

    Attributes:
        is_hopeful: whether a server that is silent is worth a longer wait: none is that took no
            connection or was silent to one who waited longer, until it has answered such a one;
            that it is ready, or answers look-ups, says nothing of leases.
    """

    def __init__(self) -> None:
        """Close the circuit: the server may be asked."""
        self._lock = ForkLock()
        self._pause = self._next_probe = 0.0
        self._busy: BusyError | None = None
        self._busy_until = self._busy_pause = 0.0
        self._patience_whole_at = 0.0
        self.is_hopeful = True

    @property
    def closed(self) -> bool:
        """Whether the server may be asked."""
        return self._pause == 0.0

    @property
    def probe_due_in(self) -> float:
        """Seconds until the next probe; zero or negative if it is due now."""
        return self._next_probe - time.monotonic()

    @property
    def busy(self) -> BusyError | None:
        """Return the server's request to wait, with the seconds that are left of it, or None."""
        error, left = self._busy, self._busy_until - time.monotonic()
        return BusyError(str(error), error.status, left) if error and left > 0 else None

    def spend_patience(self, seconds: float = 0.0) -> float:
        """Take seconds that a thread has waited, and return those that may still be spent.

        All threads share them. A server that always asks for patience, or always answers late, then
        costs a program a minute at first and a sixtieth of its time later, however many scenarios
        it looks up.
        """
        with self._lock:
            now = time.monotonic()
            whole_at = max(self._patience_whole_at, now) + seconds / REGAINED
            self._patience_whole_at = min(whole_at, now + MOST_PATIENCE / REGAINED)
            return MOST_PATIENCE - (self._patience_whole_at - now) * REGAINED

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note what the request inside, whose errors are passed on, tells of the server."""
        try:
            yield
        except BusyError as error:
            raise self.record_busy(error) from None
        except (RefusedError, ServerFaultError):  # it answers, and may serve others
            self.record_success()
            raise
        except RemoteError:
            self.record_failure()
            raise
        else:
            self.record_success()

    def record_failure(self) -> None:
        """Open the circuit; if it is open, double the pause before the next probe."""
        with self._lock:
            self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
            self._next_probe = time.monotonic() + self._pause

    def record_busy(self, error: BusyError) -> BusyError:
        """Close the circuit, since the server answered, and leave it alone as long as it asks.

        Returns:
            The error with the seconds for which the server is left alone: from `SHORTEST_BUSY` to
            `LONGEST_PAUSE`, more each time in a row, and different in each process of a fleet.
        """
        with self._lock:
            self._pause, now = 0.0, time.monotonic()
            if now >= self._busy_until:  # else other threads were answered at the same time
                self._busy_pause = max(self._busy_pause * 2, SHORTEST_BUSY)
            seconds = max(error.retry_after, self._busy_pause) * jitter.uniform(1.0, 1.5)
            seconds = min(seconds, LONGEST_PAUSE)
            self._busy = BusyError(str(error), error.status, seconds)
            self._busy_until = now + seconds
            self.is_hopeful = True
            return self._busy

    def record_success(self) -> None:
        """Close the circuit."""
        with self._lock:
            self._pause = self._busy_pause = 0.0
            self._busy = None


class ServerCalls:
    """Calls to one server, bounded in time and spared to a server that fails.

    Args:
        client: the connection to the namespace.
        circuit: opened when the server fails; while it is open, nothing is asked.
        wake: makes the background thread look whether the server is back.
        wait: seconds for which the server may be silent.
    """

    def __init__(
        self, client: ProtocolClient, circuit: CircuitBreaker, wake: Callable[[], None], wait: float
    ) -> None:
        """Set up the calls; nothing is sent yet."""
        self._client = client
        self._circuit = circuit
        self._wake = wake
        self.wait = wait

    def ask(self, question: Callable[[ProtocolClient], T], silence: float | None = None) -> T:
        """Call a server, unless it has failed or is busy; stop waiting once it is silent.

        Args:
            question: calls a method of the client that it is given.
            silence: seconds for which the server may be silent; by default those of this object.

        Raises:
            BusyError: the server asks to be asked later, or did so a moment ago.
            RemoteError: the request failed, or the circuit is open.
        """
        if not self._circuit.closed:
            self._wake()
            raise UnreachableError(f"{self._client.url} did not answer; it is asked again later")
        return self.try_once(question, self.wait if silence is None else silence)

    def ask_patiently(self, question: Callable[[ProtocolClient], T], seconds: float) -> T:
        """Call a server as `ask` does, but wait longer for one that is busy or silent.

        A server that has taken the connection and is silent may be busy or hang. The wait for it is
        `PATIENCE` times the usual one, and after that it must have answered such a call to be
        waited for again.

        Args:
            question: as for `ask`.
            seconds: how long to wait; shorter where the program's patience is spent.
        """
        circuit, seconds = self._circuit, min(seconds, self._circuit.spend_patience())
        if seconds <= 0 or not (circuit.closed or circuit.is_hopeful):
            return self.ask(question)
        start = time.monotonic()
        try:
            while True:
                left = start + seconds - time.monotonic()
                patience = min(PATIENCE * self.wait, left) if circuit.is_hopeful else 0.0
                try:
                    answer = self.try_once(question, max(self.wait, patience))
                    circuit.is_hopeful = True
                    return answer
                except BusyError as error:
                    pause = error.retry_after
                    if time.monotonic() + pause > start + seconds:
                        raise
                except UnreachableError:
                    circuit.is_hopeful = False
                    raise
                time.sleep(pause)
        finally:
            circuit.spend_patience(max(time.monotonic() - start - self.wait, 0.0))

    def try_once(self, question: Callable[[ProtocolClient], T], silence: float) -> T:
        """Call a server, be the circuit open or closed, unless it asked to be asked later."""
        if busy := self._circuit.busy:
            raise busy
        try:
            with self._circuit.watching():
                return question(self._client.waiting(silence))
        except (BusyError, RefusedError, ServerFaultError):
            raise
        except RemoteError as error:
            self._circuit.is_hopeful &= isinstance(error, SilenceError) and error.is_connected
            self._wake()
            raise
