"""Load generator: raw HTTP/1.1 requests over a fixed number of connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .processes import Server, cpu_seconds, wait_until_quiet


class Connection(asyncio.Protocol):
    """Connection that sends its next request as soon as the last is answered.

    Args:
        requests: the encoded requests, sent in turn.
        on_answer: called with the seconds that each answer took.
        ends: when to send no further request, by `time.perf_counter`.
    """

    def __init__(
        self, requests: list[bytes], on_answer: Callable[[float], None], ends: float
    ) -> None:
        self._requests, self._on_answer, self._ends = requests, on_answer, ends
        self._next_request = 0
        self._head = b""
        self._body_left = -1
        """Bytes of the body that are still to come; -1 while the head is not complete."""
        self.busy, self._asked_at = False, 0.0
        self.statuses: set[bytes] = set()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def ask(self) -> None:
        """Send the next request."""
        self.busy, self._asked_at = True, time.perf_counter()
        self._transport.write(self._requests[self._next_request % len(self._requests)])
        self._next_request += 1

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._body_left < 0:
            self._head += data
            head, separator, data = self._head.partition(b"\r\n\r\n")
            if not separator:
                return
            self._head = b""
            self.statuses.add(head[9:12])
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._body_left = int(length or 0)
        self._body_left -= len(data)
        if self._body_left <= 0:
            self._body_left, self.busy = -1, False
            now = time.perf_counter()
            self._on_answer(now - self._asked_at)
            if now < self._ends:
                self.ask()


class Load(NamedTuple):
    """What a server did while each connection asked as soon as it was answered.

    Attributes:
        rate: Requests answered in a second.
        cpu_us: Microseconds of processor time that the server took for each.
        p99_ms: The time to an answer that 1 of 100 exceeded.
    """

    rate: float
    cpu_us: float
    p99_ms: float


def measure_load(
    server: Server, requests: list[bytes], connections: int, seconds: float, expect: bytes
) -> Load:
    """Ask a server over some connections as fast as it answers.

    Args:
        server: the server, on this machine.
        requests: the encoded requests, sent in turn.
        connections: how many there are.
        seconds: how long to ask.
        expect: the HTTP status that every answer must have.
    """
    wait_until_quiet()
    before, start = cpu_seconds(server.process), time.perf_counter()
    times = asyncio.run(_ask(server.port, requests, connections, seconds, expect))
    lasted, spent = time.perf_counter() - start, cpu_seconds(server.process) - before
    p99 = sorted(times)[int(len(times) * 0.99)]
    return Load(len(times) / lasted, spent / len(times) * 1e6, p99 * 1e3)


async def _ask(
    port: int, requests: list[bytes], number: int, seconds: float, expect: bytes
) -> list[float]:
    loop, times = asyncio.get_running_loop(), list[float]()
    ends = time.perf_counter() + seconds
    step = max(len(requests) // number, 1)
    connections = []
    for index in range(number):  # each begins in another part of the requests
        rotated = requests[index * step :] + requests[: index * step]
        _, connection = await loop.create_connection(
            lambda rotated=rotated: Connection(rotated, times.append, ends), "127.0.0.1", port
        )
        connections.append(connection)
    for connection in connections:
        connection.ask()
    while any(connection.busy for connection in connections):
        await asyncio.sleep(0.01)
    for connection in connections:
        connection.close()
    assert set().union(*(connection.statuses for connection in connections)) == {expect}
    return times


def encode_get(path: str, token: str = "", etag: str = "") -> bytes:
    """Encode a GET request; with `etag`, one that asks whether the answer has changed."""
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Accept-Encoding: gzip"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    if etag:
        lines.append(f"If-None-Match: {etag}")
    return "\r\n".join([*lines, "", ""]).encode()
