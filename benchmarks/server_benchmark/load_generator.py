"""Load generator: raw HTTP/1.1 requests over a fixed number of connections."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

from .processes import coreless_ms, wait_until_quiet

__all__ = ["CONNECTIONS", "encode_get", "measure_half_load", "measure_throughput"]

CONNECTIONS = 16


class Connection(asyncio.Protocol):
    """Connection that sends its next request when told to, or as soon as the last is answered.

    Args:
        requests: the encoded requests, sent in turn.
        on_answer: called with the seconds that each answer took.
        ask_again: whether to send the next request at once after an answer.
    """

    def __init__(
        self,
        requests: list[bytes],
        on_answer: Callable[[float], None],
        ask_again: Callable[[], bool],
    ) -> None:
        self._requests, self._on_answer, self._ask_again = requests, on_answer, ask_again
        self._next_request = 0
        self._head = b""
        self._body_left = -1
        """Bytes of the body that are still to come; -1 while the head is not complete."""
        self.busy, self._due_at = False, 0.0
        self.statuses: set[bytes] = set()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def ask(self, due_at: float | None = None) -> None:
        """Send the next request; its time counts from `due_at`, or from now."""
        self.busy, self._due_at = True, due_at or time.perf_counter()
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
            self._on_answer(time.perf_counter() - self._due_at)
            if self._ask_again():
                self.ask()


async def _connect(
    port: int,
    requests: list[bytes],
    on_answer: Callable[[float], None],
    ask_again: Callable[[], bool],
) -> list[Connection]:
    """Open all connections; each begins in another part of the requests."""
    loop = asyncio.get_running_loop()
    step = max(len(requests) // CONNECTIONS, 1)
    connections = []
    for index in range(CONNECTIONS):
        rotated = requests[index * step :] + requests[: index * step]
        _, connection = await loop.create_connection(
            lambda rotated=rotated: Connection(rotated, on_answer, ask_again), "127.0.0.1", port
        )
        connections.append(connection)
    return connections


async def _wait_and_close(connections: list[Connection]) -> None:
    while any(connection.busy for connection in connections):
        await asyncio.sleep(0.01)
    for connection in connections:
        connection.close()


def measure_throughput(port: int, requests: list[bytes], seconds: float, expect: bytes) -> float:
    """Return requests per second while each connection asks as soon as it is answered.

    Args:
        port: the server's port on this machine.
        requests: the encoded requests, sent in turn.
        seconds: how long to ask.
        expect: the HTTP status that every answer must have.
    """
    wait_until_quiet()

    async def load() -> float:
        answered, ends = 0, time.perf_counter() + seconds

        def count(_: float) -> None:
            nonlocal answered
            answered += 1

        connections = await _connect(port, requests, count, lambda: time.perf_counter() < ends)
        start = time.perf_counter()
        for connection in connections:
            connection.ask()
        await _wait_and_close(connections)
        assert set().union(*(connection.statuses for connection in connections)) == {expect}
        return answered / (time.perf_counter() - start)

    return asyncio.run(load())


def measure_half_load(
    process: subprocess.Popen[bytes], port: int, requests: list[bytes], full: float, seconds: float
) -> dict[str, float]:
    """Return the latencies at half of a throughput, and the time that the server had no core.

    Args:
        process: the server.
        port: its port on this machine.
        requests: the encoded requests, sent in turn.
        full: its throughput in requests per second.
        seconds: how long to ask.
    """
    wait_until_quiet()
    before = coreless_ms(process)
    latencies = _measure_latency(port, requests, full / 2, seconds)
    return latencies | {"coreless_ms": round(coreless_ms(process) - before, 1)}


def _measure_latency(
    port: int, requests: list[bytes], rate: float, seconds: float
) -> dict[str, float]:
    """Return milliseconds from when a request was due to its answer, at a fixed rate."""

    async def load() -> list[float]:
        times: list[float] = []
        connections = await _connect(port, requests, times.append, lambda: False)
        start, sent = time.perf_counter(), 0
        while (now := time.perf_counter()) < start + seconds:
            free = [connection for connection in connections if not connection.busy]
            while free and start + sent / rate <= now:
                free.pop().ask(start + sent / rate)
                sent += 1
            await asyncio.sleep(0.0005)
        await _wait_and_close(connections)
        return times

    times = sorted(asyncio.run(load()))
    p99 = times[int(len(times) * 0.99)]
    median = statistics.median(times)
    return {
        "median_ms": round(median * 1e3, 3),
        "p99_ms": round(p99 * 1e3, 3),
        "ratio": round(p99 / median, 2),
    }


def encode_get(path: str, token: str = "", etag: str = "") -> bytes:
    """Encode a GET request; with `etag`, one that asks whether the answer has changed."""
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Accept-Encoding: gzip"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    if etag:
        lines.append(f"If-None-Match: {etag}")
    return "\r\n".join([*lines, "", ""]).encode()
