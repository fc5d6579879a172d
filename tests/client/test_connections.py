"""Connections to a server are closed once nobody uses them, and not before."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from dejavu_client.http.circuit_breaker import CircuitBreaker
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.sender import Sender
from dejavu_client.http.shared_client import SharedHttpClient
from dejavu_client.http.spool import Spool
from support.records import context, record


def test_requests_share_a_client_until_it_is_closed() -> None:
    shared = SharedHttpClient()
    with shared.request() as first, shared.request() as second:
        assert first is second
    assert not first.is_closed
    shared.close()
    assert first.is_closed
    with shared.request() as third:
        assert not third.is_closed
    shared.close()
    assert third.is_closed


def test_a_client_closes_with_the_last_of_its_requests() -> None:
    shared = SharedHttpClient()
    with shared.request() as first:
        with shared.request() as second:
            shared.close()
        assert first is second
        assert not first.is_closed
    assert first.is_closed


def test_a_child_process_leaves_its_parent_the_connections() -> None:
    shared = SharedHttpClient()
    with shared.request() as parents_client:
        pass
    shared.abandon()
    shared.close()
    assert not parents_client.is_closed
    parents_client.close()


class LoggingClient(ProtocolClient):
    """Client of no server, which logs what it is asked to do."""

    def __init__(self) -> None:
        super().__init__("http://server")
        self.log: list[str] = []
        self.may_answer = threading.Event()

    def send_json(self, body: bytes, records: int) -> None:
        self.may_answer.wait(60)
        self.log.append("sent")

    def close(self) -> None:
        self.log.append("closed")


def test_the_sender_closes_the_connections_after_the_last_record(tmp_path: Path) -> None:
    """Also if the store was closed or dropped while it sent."""
    client = LoggingClient()
    sender = Sender(client, CircuitBreaker(), Spool("x", tmp_path))
    sender.put(context(), [record(1)])
    sender.stop()
    client.may_answer.set()
    deadline = time.monotonic() + 240
    while "closed" not in client.log and time.monotonic() < deadline:
        time.sleep(0.01)
    assert client.log == ["sent", "closed"]
