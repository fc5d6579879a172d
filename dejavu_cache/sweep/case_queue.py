"""The cases that a sweep has left, as the threads of its hosts take them."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..system.fork_lock import ForkCondition

__all__ = ["CaseQueue", "TakenCase"]

LEASE_WAIT = 2.0
"""Seconds to wait in each attempt for a case that another sweep measures."""

PATIENCE = 900.0
"""Seconds without progress after which cases that another sweep measures are left to it."""


class TakenCase(NamedTuple):
    """A case that a host works on.

    Attributes:
        name: the name of the case.
        host: the number of the host.
        wait: seconds to wait for the case's lease.
    """

    name: str
    host: int
    wait: float


class CaseQueue:
    """Cases on their way through a sweep.

    A case *waits* until a host takes it. It then *runs*, until it is finished, put back because its
    host was lost, or postponed because another sweep measures it. Postponed cases are tried again
    when none waits.

    Each host works through a part of the cases of its own, then helps where most are left.
    Neighbours in a suite mostly share their binaries, and two hosts that took turns would both
    compile all of them.

    Args:
        cases: the cases, in order.
        hosts: the number of hosts.
        deadline: when no case is handed out any more, in seconds of `time.monotonic`.
        next_phase: is called once, when all cases are finished; returns more of them.
    """

    def __init__(
        self,
        cases: Sequence[str],
        hosts: int,
        deadline: float,
        next_phase: Callable[[], Sequence[str]] | None,
    ) -> None:
        """Let the cases wait; the arguments are described at the class."""
        self._deadline = deadline
        self._next_phase = next_phase
        self._parts: list[deque[str]] = [deque() for _ in range(hosts)]
        self._deal_out(cases)
        self._postponed: deque[str] = deque()
        self._running = 0
        self._last_progress = time.monotonic()
        self._is_stopped = False
        self._changed = ForkCondition()

    def take(self, host: int) -> TakenCase | None:
        """Return the next case for a host, or None at the end; wait while one may be put back."""
        with self._changed:
            while not self._is_stopped and time.monotonic() < self._deadline:
                if any(self._parts):
                    own = self._parts[host]
                    case = own.popleft() if own else max(self._parts, key=len).pop()
                    return self._run(TakenCase(case, host, 0.0))
                if self._postponed and time.monotonic() < self._last_progress + PATIENCE:
                    return self._run(TakenCase(self._postponed.popleft(), host, LEASE_WAIT))
                if self._running:
                    self._changed.wait(0.2)
                elif self._next_phase is None:
                    return None
                else:
                    self._deal_out(self._next_phase())
                    self._next_phase = None
            return None

    def put_back(self, case: TakenCase) -> None:
        """Let a case wait again, since its host was lost."""
        with self._changed:
            self._parts[case.host].appendleft(case.name)
            self._end()

    def postpone(self, case: TakenCase) -> None:
        """Try a case again at the end, since another sweep measures it."""
        with self._changed:
            self._postponed.append(case.name)
            self._end()

    def finish(self) -> None:
        """Note that a running case has its outcome."""
        with self._changed:
            self._last_progress = time.monotonic()
            self._end()

    def stop(self) -> None:
        """Hand out no case any more."""
        self._is_stopped = True

    @property
    def is_stopped(self) -> bool:
        """Whether no case is handed out any more."""
        return self._is_stopped

    @property
    def is_done(self) -> bool:
        """Whether all cases are finished."""
        with self._changed:
            return not (self._running or self.has_cases)

    @property
    def has_cases(self) -> bool:
        """Whether cases are left that do not run."""
        return bool(any(self._parts) or self._postponed or self._next_phase)

    def _deal_out(self, cases: Sequence[str]) -> None:
        """Split cases into consecutive parts of about equal length, one for each host."""
        hosts = len(self._parts)
        edges = [number * len(cases) // hosts for number in range(hosts + 1)]
        for part, (start, end) in zip(self._parts, itertools.pairwise(edges), strict=True):
            part.extend(cases[start:end])

    def _run(self, case: TakenCase) -> TakenCase:
        self._running += 1
        return case

    def _end(self) -> None:
        self._running -= 1
        self._changed.notify_all()
