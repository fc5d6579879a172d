"""When a server is asked, and how long a launch waits for one that is silent, busy or away."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from dejavu_cache.stores import current_look
from dejavu_cache.system.fork_lock import ForkLock

from . import errors
from .protocol_client import ProtocolClient

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds after a failure in which no call is sent, and the limit to which this pause doubles.

So is a busy server left alone, which may ask for no pause, or name a date by another clock.
"""

BUSY_SECONDS = 10.0
"""Seconds that a launch waits for a server that asks it to, where it would tune otherwise."""

PATIENCE = 8
"""How many times longer a launch waits for a silent server where it would tune otherwise."""

jitter = random.SystemRandom()
"""Random numbers of its own: those of the program's `random` module may be seeded."""


class ServerCalls:
    """Calls to one server, bounded in time and spared to a server that has failed or is busy.

    A failure opens the circuit: for a pause, calls raise at once. Then one of them is sent, and
    closes the circuit or doubles the pause. A server that asks its clients to wait has not failed,
    but is left alone as long as it asks, and longer each time in a row.

    Attributes:
        wait: seconds for which a look waits for servers; more for commands than for launches.
        is_hopeful: whether a server that is silent is worth a longer wait: none is that was silent
            to one who waited longer, until it has answered such a one; that it answers look-ups
            says nothing of leases.
    """

    def __init__(self, client: ProtocolClient, wait: float) -> None:
        """Close the circuit; nothing is sent yet."""
        self.client = client
        self.wait = wait
        self.is_hopeful = True
        self._lock = ForkLock()
        self._busy: errors.BusyError | None = None
        self._reason = ""
        self._pause = self._next_try = self._failed_at = 0.0

    @property
    def closed(self) -> bool:
        """Whether the server answered when it was last asked."""
        return self._busy is not None or self._pause == 0.0

    @property
    def due_in(self) -> float:
        """Seconds until the server may be asked; zero or negative if it may be now."""
        return self._next_try - time.monotonic()

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
            silence: seconds for which a look may wait for servers; by default those of this object.
            at_once: whether to ask one that has failed, too, and not leave it a pause.

        Raises:
            BusyError: the server asks to be asked later, or did so a moment ago.
            RemoteError: the request failed, the circuit is open, or the look has waited enough.
        """
        look, silence = current_look(self.client.url), self.wait if silence is None else silence
        before = look.waited
        if before >= silence:
            raise errors.UnreachableError(f"it has been waited for {before:.2g} s in this look")
        asked_at = self._require_due(at_once)
        try:
            answer = question(self.client.waiting(silence))
        except (errors.RefusedError, errors.ServerFaultError):  # it answers, and may serve others
            self._note_answer()
            raise
        except errors.RemoteError as error:
            # A silence in what little time others have left says nothing of this server.
            if silence - before >= self.wait / 2 or not isinstance(error, errors.SilenceError):
                self._leave_alone(error, asked_at)
            raise
        self._note_answer()
        return answer

    def ask_patiently(self, question: Callable[[ProtocolClient], T], seconds: float) -> T:
        """Call a server as `ask` does, but wait up to some seconds for one that is busy or silent.

        A server that is silent may be busy or hang. The wait for it is `PATIENCE` times the usual
        one. After that, such calls have the usual one, each its own, until one is answered.
        """
        if seconds <= 0 or not (self.closed or self.is_hopeful):
            return self.ask(question)
        look = current_look(self.client.url)
        while True:
            patience = min(PATIENCE * self.wait, seconds)
            silence = max(self.wait, patience) if self.is_hopeful else look.waited + self.wait
            try:
                answer = self.ask(question, silence, at_once=True)
                self.is_hopeful = True
                return answer
            except errors.BusyError as error:
                look.paused += error.retry_after
                if look.paused > seconds:
                    raise
                time.sleep(error.retry_after)
            except errors.UnreachableError:
                self.is_hopeful &= self.closed
                raise

    def _require_due(self, at_once: bool) -> float:
        """Raise an error where the server is left alone; else return when it is asked: now."""
        with self._lock:
            now = time.monotonic()
            if now < self._next_try and self._busy is not None:
                raise errors.BusyError(str(self._busy), self._busy.status, self._next_try - now)
            if now < self._next_try and not at_once:
                raise errors.UnreachableError(f"{self._reason}; it is asked again later")
            if not self.closed:
                self._next_try = now + self._pause  # others do not wait for it at the same time
            return now

    def _leave_alone(self, error: errors.RemoteError, asked_at: float) -> None:
        """Send nothing for a while: twice as long as the last time in a row.

        A busy server is left alone as long as it asks at least, and differently long by each
        process of a fleet; the error gets the seconds.
        """
        with self._lock:
            if (self._busy is not None) != isinstance(error, errors.BusyError):
                self._pause = 0.0
            if asked_at >= self._failed_at:  # else other threads asked at the same time
                self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
            now = time.monotonic()
            self._busy, self._reason = None, str(error)
            self._failed_at, self._next_try = now, now + self._pause
            if isinstance(error, errors.BusyError):
                seconds = max(error.retry_after, self._pause) * jitter.uniform(1.0, 1.5)
                error.retry_after = min(seconds, LONGEST_PAUSE)
                self._next_try = now + error.retry_after
                self._busy = errors.BusyError(str(error), error.status, error.retry_after)
                self.is_hopeful = True
            else:
                self.is_hopeful &= isinstance(error, errors.SilenceError)

    def _note_answer(self) -> None:
        """Close the circuit."""
        with self._lock:
            self._busy = None
            self._pause = self._next_try = 0.0
