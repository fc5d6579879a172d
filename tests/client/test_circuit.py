"""How long a launch waits for a server that is silent, busy or away, and what ends its hope."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from dejavu_client.http import circuit as circuit_module
from dejavu_client.http.circuit import ServerCalls
from dejavu_client.http.errors import BusyError, RemoteError, SilenceError, UnreachableError
from dejavu_client.http.protocol_client import ProtocolClient

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
    return ServerCalls(client, wait=WAIT)


def ask(client: ProtocolClient) -> None:
    client.check_ready()


def test_who_would_tune_waits_longer_for_a_silent_server_once(
    client: SlowClient, calls: ServerCalls
) -> None:
    client.seconds = 3600
    with pytest.raises(UnreachableError):
        calls.ask(ask)
    assert (client.limit, calls.closed) == (WAIT, False)
    for limit in (8 * WAIT, WAIT):
        with pytest.raises(UnreachableError):
            calls.ask_patiently(ask, 10)
        assert client.limit == limit
        calls._note_answer()  # it answers other calls
    client.seconds = 0.0
    calls.ask_patiently(ask, 10)
    client.seconds = 2 * WAIT
    calls.ask_patiently(ask, 10)
    assert calls.closed


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
    calls.spend_patience(circuit_module.MOST_PATIENCE - 0.8)
    client.error = BusyError("later", 503, 0.1)
    for _ in range(20):
        with suppress(BusyError):
            calls.ask_patiently(ask, 10)
    assert client.requests <= 20 + 8


def test_a_server_that_always_answers_late_is_waited_for_a_bounded_time(
    client: SlowClient, calls: ServerCalls
) -> None:
    calls.spend_patience(circuit_module.MOST_PATIENCE - 0.8)
    client.seconds = 0.3
    answers = 0
    for _ in range(20):
        with suppress(UnreachableError):
            calls.ask_patiently(ask, 10)
            answers += 1
    assert 1 <= answers <= 4


def test_patience_comes_back(calls: ServerCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls.spend_patience(1000) == 0
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 600)
    assert 10 <= calls.spend_patience() < 11
    monkeypatch.setattr(time, "monotonic", lambda: now + 1e6)
    assert calls.spend_patience() == circuit_module.MOST_PATIENCE


def test_a_server_that_failed_is_asked_once_after_each_pause(
    client: SlowClient, calls: ServerCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.error = UnreachableError("away")
    moment = time.monotonic()
    asked = []
    for second in range(300):
        monkeypatch.setattr(time, "monotonic", lambda at=moment + second: at)
        before = client.requests
        for _ in range(3):
            with pytest.raises(UnreachableError):
                calls.ask(ask)
        if client.requests > before:
            asked.append(second)
    assert client.requests == len(asked)
    assert asked == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]
    client.error = None
    monkeypatch.setattr(time, "monotonic", lambda: moment + 303)
    calls.ask(ask)
    assert calls.closed
