"""Requests to a server: bounded in time, and spared to a server that fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from .circuit_breaker import FIRST_PAUSE, CircuitBreaker
from .errors import BusyError, NonsenseError, RemoteError, UnreachableError
from .server_silence import OWN_WORK_SECONDS, SilenceError, call_within
from .wait_budget import WaitBudget

__all__ = ["BUSY_SECONDS", "ServerCalls"]

T = TypeVar("T")

BUSY_SECONDS = 10.0
"""Seconds that a launch waits for a server that asks it to, where it would tune otherwise."""

ABSENT_SECONDS = 0.7
"""Seconds between two requests of one who waits for a server that is away."""

PATIENCE = 8
"""How many times longer a launch waits for a silent server where it would tune otherwise."""


class ServerCalls:
    """Calls to one server.

    Args:
        url: the server's URL, for messages.
        circuit: opened when the server fails; while it is open, nothing is asked.
        wake: makes the background thread look whether the server is back.
        wait: seconds for which the server may be silent, and, if that is more than a second, away;
            the attribute `wait` changes the former alone.
    """

    def __init__(
        self, url: str, circuit: CircuitBreaker, wake: Callable[[], None], wait: float
    ) -> None:
        """Set up the calls; nothing is sent yet."""
        self._url = url
        self.circuit = circuit
        self._wake = wake
        self.wait = wait
        self._absence = wait if wait > FIRST_PAUSE else 0.0
        self._budget = WaitBudget()

    def reset(self, circuit: CircuitBreaker) -> None:
        """Begin anew in a forked child, where other threads' locks stay taken."""
        self.circuit = circuit
        self._budget = WaitBudget()

    def ask(
        self,
        question: Callable[[], T],
        wait: float | None = None,
        *,
        limit: float = OWN_WORK_SECONDS,
    ) -> T:
        """Call a server; stop waiting once it has been silent for too long.

        Args:
            question: sends the request; runs in a thread of its own.
            wait: seconds for which the server may be silent; by default those of this object.
            limit: seconds that the call may take as a whole, this process's own work included.

        Raises:
            BusyError: the server asks to be asked later, or did so a moment ago.
            RemoteError: the request failed, or the circuit is open.
        """
        if not self.circuit.closed:
            self._wake()
            raise UnreachableError(f"{self._url} did not answer; it is asked again later")
        if busy := self.circuit.busy:
            raise busy
        return self._ask(question, self.wait if wait is None else wait, limit)

    def ask_patiently(self, question: Callable[[], T], seconds: float) -> T:
        """Call a server as `ask` does, but wait for a busy one, for some seconds in all.

        A server that has taken the connection and is silent may be busy or hang. The wait for it is
        `PATIENCE` times the usual one, and after that it must have answered such a call, or any
        call late, to be waited for again.

        Args:
            question: sends the request.
            seconds: how long to wait for a server that answers late, or asks to be asked later;
                shorter where the `WaitBudget` is spent.
        """
        start = time.monotonic()
        seconds = min(seconds, self._budget.seconds)
        try:
            answer = self._ask_until(question, start + seconds)
        finally:
            if seconds > 0:
                self._budget.spend(max(time.monotonic() - start - self.wait, 0.0))
        if seconds > 0:
            self.circuit.record_success(gives_hope=True)
        return answer

    def _ask_until(self, question: Callable[[], T], deadline: float) -> T:
        while True:
            patience = self._patience if self.circuit.is_hopeful else 0.0
            try:
                return self.ask(
                    question, max(self.wait, min(patience, deadline - time.monotonic()))
                )
            except BusyError as error:
                pause = _pause(error)
                if time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
            except UnreachableError:
                if time.monotonic() > deadline or not self.circuit.await_answer(deadline):
                    raise

    def ask_again(self, question: Callable[[], T], seconds: float) -> T:
        """Call a server that has answered before, and may be restarting, until it answers.

        Args:
            question: sends the request.
            seconds: how long to go on asking.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self._ask(question, self.wait, OWN_WORK_SECONDS)
            except UnreachableError as error:
                pause = _pause(error)
                if time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)

    @contextmanager
    def blaming_nonsense(self) -> Iterator[None]:
        """Open the circuit if an answer, which the caller parses, does not follow the protocol."""
        try:
            yield
        except NonsenseError:
            self._open_circuit()
            raise

    def _ask(self, question: Callable[[], T], wait: float, limit: float) -> T:
        start = time.monotonic()
        try:
            answer = call_within(wait, question, limit, self._note_late_end)
        except SilenceError as error:
            self._open_circuit(self._patience - wait if error.is_connected else 0.0)
            raise UnreachableError(f"{self._url} did not answer within {wait:g} s") from None
        except BusyError as error:
            raise self.circuit.record_busy(error) from None
        except RemoteError as error:
            if not hasattr(error, "status"):
                # A server that restarts refuses connections.
                is_away = type(error) is UnreachableError
                self._open_circuit(self._absence - (time.monotonic() - start) if is_away else 0.0)
            raise
        self.circuit.record_success()
        return answer

    @property
    def _patience(self) -> float:
        return min(PATIENCE * self.wait, BUSY_SECONDS)

    def _note_late_end(self, error: BaseException | None) -> None:
        """Close the circuit if a server answers whom nobody waits for any more: it is only busy."""
        if isinstance(error, BusyError):
            self.circuit.record_busy(error)
        elif error is None or hasattr(error, "status"):
            self.circuit.record_success(gives_hope=True)

    def _open_circuit(self, hope: float = 0.0) -> None:
        self.circuit.record_failure(hope)
        self._wake()


def _pause(error: UnreachableError) -> float:
    """Return the seconds to wait after an error."""
    return error.retry_after if isinstance(error, BusyError) else ABSENT_SECONDS
