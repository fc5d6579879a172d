"""Transport that sends the head of an answer together with its body."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["JoinedWrites"]

_INTERIM = b"HTTP/1.1 1"
"""How an interim answer such as `100 Continue` begins, which has no body."""


class JoinedWrites:
    """Holds the head of an answer back until a part of its body, or the connection's end, follows.

    Uvicorn writes them one after the other. The answer then takes two packets and wakes its client
    twice, which costs more than reading a cached record does. ASGI has a server wait: it sends no
    head before the application has sent a part of the body.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        """Write to a transport, which does all the rest."""
        self._transport = transport
        self._awaits_head = True
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        """Return what the transport has by this name."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write a part of an answer; its head waits for the next part."""
        if self._awaits_head and not data.startswith(_INTERIM):
            self._awaits_head = False
            self._head = data
            return
        head, self._head = self._head, b""
        if not self._transport.is_closing():  # uvloop's refuses to be written to once it is closed
            self._transport.write(head + data)

    def end_answer(self) -> None:
        """Write what was held back, and take what follows for the head of another answer."""
        if self._head:  # an answer to HEAD has no body
            self.write(b"")
        self._awaits_head = True

    def close(self) -> None:
        """Write what was held back, and close the transport."""
        self.end_answer()
        self._transport.close()
