"""A TCP proxy before all replicas that can be slow, hang, or cut connections."""

from __future__ import annotations

import random
import selectors
import socket
import threading
import time
from typing import Literal

Behaviour = Literal["pass", "slow", "hang", "cut"]
CHUNK = 2048
PAUSE = 0.1
"""Seconds between two chunks of a slow connection."""


class FaultyProxy:
    """Forwards each connection to any replica that accepts it.

    Attributes:
        behaviour: what happens to connections from now on: they pass; they are slow; what arrives
            is kept and never forwarded; they are closed in the middle of what they carry.
    """

    def __init__(self, ports: list[int]) -> None:
        """Listen on a free port of loopback."""
        self.behaviour: Behaviour = "pass"
        self._ports = ports
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._handle, args=(client,), daemon=True).start()

    def _handle(self, client: socket.socket) -> None:
        with client:
            for port in random.sample(self._ports, len(self._ports)):
                try:
                    replica = socket.create_connection(("127.0.0.1", port), timeout=1)
                except OSError:
                    continue
                replica.settimeout(None)
                with replica:
                    self._forward(client, replica)
                return

    def _forward(self, client: socket.socket, replica: socket.socket) -> None:
        other = {client: replica, replica: client}
        with selectors.DefaultSelector() as selector:
            for end in other:
                selector.register(end, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(timeout=0.5):
                    source = key.fileobj
                    assert isinstance(source, socket.socket)
                    try:
                        if not self._pass_on(source, other[source]):
                            return
                    except OSError:
                        return

    def _pass_on(self, source: socket.socket, target: socket.socket) -> bool:
        """Forward one chunk; return False to close the connection."""
        if self.behaviour == "hang":
            while self.behaviour == "hang":
                time.sleep(0.1)
        is_slow = self.behaviour == "slow"
        data = source.recv(CHUNK if is_slow else 65536)
        if self.behaviour == "cut":
            target.sendall(data[: len(data) // 2])
            return False
        if is_slow:
            time.sleep(PAUSE)
        target.sendall(data)
        return bool(data)
