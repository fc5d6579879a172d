"""When a server is asked, and how long a launch waits for one that is silent, busy or away."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
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

__all__ = ["BUSY_SECONDS", "ServerCalls", "jitter"]

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds after a failure in which no call is sent, and the limit to which this pause doubles."""

SHORTEST_BUSY = 0.5
"""Seconds to leave a busy server alone at least, doubled each time that it asks again.

What it asks for may be nothing, or a date, which is by another clock.
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


class ServerCalls:
    """Calls to one server, bounded in time and spared to a server that has failed or is busy.

    A failure opens the circuit: for a pause, calls raise at once. Then one of them is sent, and
    closes the circuit or doubles the pause. A server that asks its clients to wait has not failed,
    but is left alone as long as it asks.

    Args:
        client: the connection to the namespace.
        wait: seconds for which the server may be silent.

    Attributes:
        is_hopeful: whether a server that is silent is worth a longer wait: none is that took no
            connection or was silent to one who waited longer, until it has answered such a one;
            that it answers look-ups says nothing of leases.
    """

    def __init__(self, client: ProtocolClient, wait: float) -> None:
        """Close the circuit; nothing is sent yet."""
        self.client = client
        self.wait = wait
        self.is_hopeful = True
        self._lock = ForkLock()
        self._pause = self._next_try = 0.0
        self._busy: BusyError | None = None
        self._busy_until = self._busy_pause = 0.0
        self._patience_whole_at = 0.0

    @property
    def closed(self) -> bool:
        """Whether the server answered when it was last asked."""
        return self._pause == 0.0

    @property
    def due_in(self) -> float:
        """Seconds until the server may be asked; zero or negative if it may be now."""
        until = max(self._busy_until if self._busy else 0.0, self._next_try if self._pause else 0.0)
        return until - time.monotonic()

    def ask(
        self,
        question: Callable[[ProtocolClient], T],
        silence: float | None = None,
        *,
        at_once: bool = False,
    ) -> T:
        """Call a server, unless it has failed or is busy; stop waiting once it is silent.

        Args:
            question: calls a method of the client that it is given.
            silence: seconds for which the server may be silent; by default those of this object.
            at_once: whether to ask one that has failed, too, and not leave it a pause.

        Raises:
            BusyError: the server asks to be asked later, or did so a moment ago.
            RemoteError: the request failed, or the circuit is open.
        """
        self._require_due(at_once)
        try:
            answer = question(self.client.waiting(self.wait if silence is None else silence))
        except BusyError as error:
            raise self._note_busy(error) from None
        except (RefusedError, ServerFaultError):  # it answers, and may serve others
            self._note_answer()
            raise
        except RemoteError as error:
            self._note_failure(error)
            raise
        self._note_answer()
        return answer

    def ask_patiently(self, question: Callable[[ProtocolClient], T], seconds: float) -> T:
        """Call a server as `ask` does, but wait longer for one that is busy or silent.

        A server that has taken the connection and is silent may be busy or hang. The wait for it is
        `PATIENCE` times the usual one, and after that it must have answered such a call to be
        waited for again.

        Args:
            question: as for `ask`.
            seconds: how long to wait; shorter where the program's patience is spent.
        """
        seconds = min(seconds, self.spend_patience())
        if seconds <= 0 or not (self.closed or self.is_hopeful):
            return self.ask(question)
        start = time.monotonic()
        try:
            while True:
                left = start + seconds - time.monotonic()
                patience = min(PATIENCE * self.wait, left) if self.is_hopeful else 0.0
                try:
                    answer = self.ask(question, max(self.wait, patience), at_once=True)
                    self.is_hopeful = True
                    return answer
                except BusyError as error:
                    pause = error.retry_after
                    if time.monotonic() + pause > start + seconds:
                        raise
                except UnreachableError:
                    self.is_hopeful = False
                    raise
                time.sleep(pause)
        finally:
            self.spend_patience(max(time.monotonic() - start - self.wait, 0.0))

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

    def _require_due(self, at_once: bool) -> None:
        """Raise an error where the server is left alone; else the caller must ask it."""
        with self._lock:
            now = time.monotonic()
            if (busy := self._busy) and now < self._busy_until:
                raise BusyError(str(busy), busy.status, self._busy_until - now)
            if self._pause and now < self._next_try and not at_once:
                url = self.client.url
                raise UnreachableError(f"{url} did not answer; it is asked again later")
            self._next_try = now + self._pause  # others do not wait for it at the same time

    def _note_failure(self, error: RemoteError) -> None:
        """Open the circuit; if it is open, double the pause before the next call."""
        with self._lock:
            self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
            self._next_try = time.monotonic() + self._pause
            self.is_hopeful &= isinstance(error, SilenceError) and error.is_connected

    def _note_busy(self, error: BusyError) -> BusyError:
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

    def _note_answer(self) -> None:
        """Close the circuit."""
        with self._lock:
            self._pause = self._busy_pause = 0.0
            self._busy = None
