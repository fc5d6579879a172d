"""A server that hangs, drips or sends what a test wants."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

__all__ = ["SlowServer", "drip", "hang"]


class SlowServer:
    """A socket that accepts connections and treats each in one bad way."""

    def __init__(self, treat: Callable[[socket.socket], None]) -> None:
        self._treat = treat
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._handle, args=(peer,), daemon=True).start()

    def _handle(self, peer: socket.socket) -> None:
        with peer:
            try:
                peer.recv(65536)
                self._treat(peer)
            except OSError:
                pass

    def close(self) -> None:
        self._socket.close()


def hang(peer: socket.socket) -> None:
    """Read and never answer."""
    while peer.recv(65536):
        pass


def drip(peer: socket.socket) -> None:
    """Answer a byte at a time."""
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        peer.sendall(b" ")
        time.sleep(0.05)
