"""A server that hangs, drips or sends what a test wants."""

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

SLOW_SECONDS = 60.0
"""Length of the slow treatments; no client is to wait that long."""


class BadServer:
    """A socket that accepts connections, counts them and treats each in one bad way.

    Attributes:
        url: the server's URL.
        connections: the number of connections.
        finished: the number of those whose treatment ended before the client gave up.
    """

    def __init__(self, treat: Callable[[socket.socket], None]) -> None:
        self._treat = treat
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._peers: list[socket.socket] = []
        self.connections = 0
        self.finished = 0
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def slow(self) -> bool:
        """Return whether a treatment takes `SLOW_SECONDS`."""
        return self._treat in (hang, drip)

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            self._peers.append(peer)
            threading.Thread(target=self._handle, args=(peer,), daemon=True).start()

    def _handle(self, peer: socket.socket) -> None:
        with peer:
            try:
                peer.recv(65536)
                self._treat(peer)
                self.finished += 1
            except OSError:
                pass

    def close(self) -> None:
        """End what would go on beside later tests."""
        for opened in (self._socket, *self._peers):
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def hang(peer: socket.socket) -> None:
    """Read and never answer."""
    until = time.monotonic() + SLOW_SECONDS
    while (left := until - time.monotonic()) > 0:
        if select.select([peer], [], [], left)[0] and not peer.recv(65536):
            raise ConnectionAbortedError("the client gave up")


def drips(head: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    """Return the treatment that sends a head, and then a piece more often than any timeout."""

    def treat(peer: socket.socket) -> None:
        until = time.monotonic() + SLOW_SECONDS
        peer.sendall(head)
        while time.monotonic() < until:
            peer.sendall(piece)
            time.sleep(0.05)

    return treat


drip = drips(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" ")
"""Answers a byte at a time."""


def answer(status: str, body: bytes, *headers: str) -> bytes:
    """Return an answer as a server sends it."""
    length = f"Content-Length: {len(body)}"
    return "\r\n".join([f"HTTP/1.1 {status}", length, *headers, "", ""]).encode() + body


def say(content: bytes) -> Callable[[socket.socket], None]:
    """Return the treatment that sends the same to everybody."""
    return lambda peer: peer.sendall(content)


@contextmanager
def serve_answer(status: str, body: bytes, *headers: str) -> Iterator[BadServer]:
    """Run a server that gives everybody the same answer."""
    with closing(BadServer(say(answer(status, body, *headers)))) as server:
        yield server
