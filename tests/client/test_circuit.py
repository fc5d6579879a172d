"""How long a launch waits for a server that is silent, busy or away, and what ends its hope."""

import time
from types import SimpleNamespace

import pytest
from dejavu_client.http.circuit import ServerCalls
from dejavu_client.http.errors import BusyError, RemoteError, SilenceError, UnreachableError
from dejavu_client.http.protocol_client import ProtocolClient

from dejavu_cache.stores import current_look, one_look

WAIT = 0.05


class SlowClient(ProtocolClient):
    """Client of a server that answers after some seconds, or fails with an error.

    Attributes:
        seconds: how long the server is silent.
        error: what it fails with.
        requests: how many it was sent.
    """

    seconds = limit = 0.0
    error: RemoteError | None = None
    requests = 0

    def waiting(self, silence: float) -> ProtocolClient:
        self.limit = silence
        return self

    def release(self, lease: str) -> None:
        self.requests += 1
        look = current_look(self.url)
        look.waited += (waits := min(self.seconds, self.limit - look.waited))
        time.sleep(waits)
        if self.seconds > waits:
            raise SilenceError("silent")
        if self.error:
            raise self.error


@pytest.fixture
def client() -> SlowClient:
    return SlowClient("http://server")


@pytest.fixture
def calls(client: SlowClient) -> ServerCalls:
    return ServerCalls(client, wait=WAIT)


def ask(client: ProtocolClient) -> None:
    client.release("lease")


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


def test_a_look_waits_once_and_blames_no_server_for_the_last_of_it(
    client: SlowClient, calls: ServerCalls
) -> None:
    client.seconds = 0.6 * WAIT
    with one_look():
        calls.ask(ask)
        for _ in range(3):
            with pytest.raises(UnreachableError):
                calls.ask(ask)
        assert (client.requests, calls.closed) == (2, True)
        calls.is_hopeful = False  # or it would stay so at any server that takes a while
        calls.ask_patiently(ask, 10)
        client.url = "http://another"
        calls.ask(ask)


def test_a_server_that_always_asks_for_patience_is_asked_ever_more_rarely(
    client: SlowClient, calls: ServerCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [time.monotonic()]
    own = SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda s: clock.append(clock.pop() + s))
    monkeypatch.setattr("dejavu_client.http.circuit.time", own)
    client.error = BusyError("later", 503, 0.1)
    start = clock[0]
    waited = 0.0
    for _ in range(3600):  # a launch a second
        asked_at = clock[0]
        with pytest.raises(BusyError):
            calls.ask_patiently(ask, 10)
        waited += clock[0] - asked_at
        clock[0] += 1
    assert client.requests <= (clock[0] - start) / 60 + 8
    assert waited <= (clock[0] - start) / 5
    client.error = None
    clock[0] += 60
    calls.ask(ask)
    assert calls.due_in <= 0


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
        with pytest.raises(UnreachableError):  # also for who would tune
            calls.ask_patiently(ask, 10)
        if client.requests > before:
            asked.append(second)
    assert client.requests == len(asked)
    assert asked == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]
    client.error = None
    monkeypatch.setattr(time, "monotonic", lambda: moment + 303)
    calls.ask(ask)
    assert calls.closed
