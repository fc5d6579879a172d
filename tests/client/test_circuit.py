"""How long a launch waits for a server that is silent, busy or away, and what ends its hope."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest
from dejavu_client.http import circuit as circuit_module
from dejavu_client.http.circuit import CircuitBreaker, ServerCalls
from dejavu_client.http.errors import BusyError, RemoteError, SilenceError, UnreachableError
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.sender import Sender
from dejavu_client.http.spool import Spool

WAIT = 0.05


class SlowClient(ProtocolClient):
    """Client of a server that answers after some seconds, or fails with an error.

    Attributes:
        seconds: how long the server is silent.
        error: what it fails with.
        is_connected: whether it takes connections.
        requests: how many it was sent.
    """

    def __init__(self) -> None:
        super().__init__("http://server")
        self.seconds = 0.0
        self.error: RemoteError | None = None
        self.is_connected = True
        self.requests = 0
        self.limit = 0.0

    def waiting(self, silence: float) -> ProtocolClient:
        self.limit = silence
        return self

    def check_ready(self) -> None:
        self.requests += 1
        time.sleep(min(self.seconds, self.limit))
        if self.seconds > self.limit:
            raise SilenceError("silent", self.is_connected)
        if self.error:
            raise self.error


@pytest.fixture
def client() -> SlowClient:
    return SlowClient()


@pytest.fixture
def calls(client: SlowClient) -> ServerCalls:
    return ServerCalls(client, CircuitBreaker(), wake=lambda: None, wait=WAIT)


def ask(client: ProtocolClient) -> None:
    client.check_ready()


def test_who_would_tune_waits_longer_for_a_silent_server_once(
    client: SlowClient, calls: ServerCalls
) -> None:
    client.seconds = 3600
    with pytest.raises(UnreachableError):
        calls.ask(ask)
    assert (client.limit, calls._circuit.closed) == (WAIT, False)
    for limit in (8 * WAIT, WAIT):
        with pytest.raises(UnreachableError):
            calls.ask_patiently(ask, 10)
        assert client.limit == limit
        calls._circuit.record_success()  # it is ready, or answers other calls
    client.seconds = 0.0
    calls.ask_patiently(ask, 10)
    client.seconds = 2 * WAIT
    calls.ask_patiently(ask, 10)
    assert calls._circuit.closed


def test_an_open_circuit_is_not_asked_without_hope(client: SlowClient, calls: ServerCalls) -> None:
    client.seconds, client.is_connected = 3600, False
    for _ in range(3):
        with pytest.raises(UnreachableError):
            calls.ask_patiently(ask, 10)
    assert client.requests == 1


def test_a_server_that_always_asks_for_patience_gets_it_for_a_bounded_time(
    client: SlowClient, calls: ServerCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit_module, "SHORTEST_BUSY", 0.01)
    calls._circuit.spend_patience(circuit_module.MOST_PATIENCE - 0.8)
    client.error = BusyError("later", 503, 0.1)
    for _ in range(20):
        with suppress(BusyError):
            calls.ask_patiently(ask, 10)
    assert client.requests <= 20 + 8


def test_a_server_that_always_answers_late_is_waited_for_a_bounded_time(
    client: SlowClient, calls: ServerCalls
) -> None:
    calls._circuit.spend_patience(circuit_module.MOST_PATIENCE - 0.8)
    client.seconds = 0.3
    answers = 0
    for _ in range(20):
        with suppress(UnreachableError):
            calls.ask_patiently(ask, 10)
            answers += 1
    assert 1 <= answers <= 4


def test_patience_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    circuit = CircuitBreaker()
    assert circuit.spend_patience(1000) == 0
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 600)
    assert 10 <= circuit.spend_patience() < 11
    monkeypatch.setattr(time, "monotonic", lambda: now + 1e6)
    assert circuit.spend_patience() == circuit_module.MOST_PATIENCE


def test_an_empty_spool_is_no_reason_to_wait_for_a_server(tmp_path: Path) -> None:
    """A sender that is told to look, and has nothing to send, has learnt nothing of the server."""
    circuit = CircuitBreaker()
    circuit.is_hopeful = False
    sender = Sender(ProtocolClient("http://127.0.0.1:1"), circuit, Spool("x", tmp_path / "spool"))
    sender.wake()
    sender.stop()
    deadline = time.monotonic() + 240
    while sender._has_thread and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not circuit.is_hopeful
