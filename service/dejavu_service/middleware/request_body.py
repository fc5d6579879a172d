"""Reading of request bodies: their size, their time, and the memory that all of them may take."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import anyio
from fastapi import Request
from starlette.requests import ClientDisconnect

from ..problems import ProblemError

__all__ = ["BodyBudget", "body_chunks", "read_body"]

_PATIENCE = 20.0
"""Seconds that a body may take, however short it is."""
_SLOWEST = 32 * 1024
"""Bytes a second at which a long body must arrive."""


class BodyBudget:
    """Bytes of bodies that are in memory at a time, for all requests and for one principal."""

    def __init__(self, total: int) -> None:
        """Allow `total` bytes for all principals, and half of them for one of them."""
        self._total, self._share = total, total // 2
        self._used: Counter[str] = Counter()

    @contextmanager
    def reserve(self, principal: str) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves bytes until the end of the block.

        The function raises `ProblemError` 503 when there is no room.
        """
        reserved = 0

        def take(size: int) -> None:
            nonlocal reserved
            used = self._used[principal]
            # A principal alone always gets one body through, however small the budget is.
            if used > reserved and (
                used + size > self._share or self._used.total() + size > self._total
            ):
                raise ProblemError(
                    503,
                    "the server reads too many large bodies now: try again",
                    headers={"Retry-After": "1"},
                )
            reserved += size
            self._used[principal] += size

        try:
            yield take
        finally:
            self._used[principal] -= reserved
            if not self._used[principal]:
                del self._used[principal]


async def body_chunks(request: Request, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield a body as it arrives, counted whatever the headers declare.

    Raises:
        ClientDisconnect: The client hung up before the end.
        ProblemError: 408, the body arrives too slowly, or 413, it is too long.
    """
    declared = request.headers.get("content-length")
    if declared is not None and declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    size, started, more = 0, time.monotonic(), True
    while more:
        left = _PATIENCE + size / _SLOWEST - (time.monotonic() - started)
        try:
            with anyio.fail_after(left):
                message = await request.receive()
        except TimeoutError:
            raise ProblemError(408, "the body arrived too slowly: send it again") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        if chunk:
            yield chunk


async def read_body(request: Request, max_bytes: int, take: Callable[[int], None]) -> bytes:
    """Read a body into memory, calling `take` with the size of each chunk before it is kept."""
    chunks = []
    async for chunk in body_chunks(request, max_bytes):
        take(len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large(max_bytes: int) -> ProblemError:
    return ProblemError(413, f"the body has over {max_bytes} bytes: send fewer records at a time")
