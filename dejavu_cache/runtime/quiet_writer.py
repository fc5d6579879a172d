"""Write what nobody waits for in a thread, a moment after a program's first launches."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from ..system.background_threads import at_program_end, start_thread, uninterrupted
from ..system.fork_lock import ForkCondition

__all__ = ["QuietWriter"]

QUIET_SECONDS = 1.0
"""Seconds that a write waits, so that it takes no time from launches that follow in a row."""


class QuietWriter:
    """Queue of functions that a thread calls a moment later, and the program's end at once."""

    def __init__(self) -> None:
        """Begin without a thread."""
        self._queued: list[Callable[[], object]] = []
        self._changed = ForkCondition()
        self._has_thread = self._hurries = False
        self._process = os.getpid()

    def submit(self, write: Callable[[], object]) -> None:
        """Queue a function; its errors are ignored."""
        with self._changed:
            self._queued.append(write)
            if not self._has_thread:
                at_program_end(self)
                self._has_thread = start_thread(self._work, "dejavu-cache launches") is not None
            if self._has_thread:
                return
            queued, self._queued = self._queued, []
        self._call(queued)

    def finish(self, seconds: float) -> None:
        """Call what is queued at once, and wait for it up to a number of seconds."""
        if self._process != os.getpid():  # a forked child has neither the thread nor its work
            return
        with self._changed:
            self._hurries = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._has_thread, seconds)
            self._hurries = False

    def interrupt(self) -> None:
        """Do nothing: no function waits for long."""

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._queued:
                    self._has_thread = False
                    self._changed.notify_all()
                    return
                self._changed.wait_for(lambda: self._hurries, QUIET_SECONDS)
                queued, self._queued = self._queued, []
            self._call(queued)

    def _call(self, queued: list[Callable[[], object]]) -> None:
        for write in queued:
            with uninterrupted(), suppress(Exception):
                write()
