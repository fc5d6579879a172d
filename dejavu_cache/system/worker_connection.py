"""The worker's side of the connection to its parent."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import IO, Any

from .fork_lock import ForkLock

__all__ = ["ParentConnection"]


class ParentConnection:
    """Reads the parent's requests and sends it events, one JSON document per line.

    Args:
        requests: the lines that the parent writes.
        events: the stream that the parent reads.
    """

    def __init__(self, requests: IO[str], events: IO[str]) -> None:
        """Connect through two streams."""
        self.requests = requests
        self._events = events
        self._lock = ForkLock()

    @classmethod
    def take_standard_streams(cls) -> ParentConnection:
        """Connect through the standard streams, and keep all other code of the process off them.

        From then on, code that reads standard input finds it empty, and what code prints goes to
        standard error, so that neither can disturb the exchange with the parent.
        """
        connection = cls(
            os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
        )
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        return connection

    def send(self, event: str, **fields: Any) -> None:
        """Send an event; any thread may call this, and nothing is raised if the parent is gone.

        Args:
            event: the kind of the event.
            fields: its content, of types that JSON has.
        """
        line = json.dumps({"event": event, **fields})
        with self._lock, suppress(BrokenPipeError):
            self._events.write(line + "\n")
            self._events.flush()
