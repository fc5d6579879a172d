"""The wait for a server counts its silence, not this process's own work."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from dejavu_client.http import wait_budget
from dejavu_client.http.circuit_breaker import CircuitBreaker
from dejavu_client.http.errors import BusyError, UnreachableError
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.sender import Sender
from dejavu_client.http.server_calls import ServerCalls
from dejavu_client.http.server_silence import TICK, SilenceClock, call_within, current_clock
from dejavu_client.http.spool import Spool
from support.records import context, record


def be_silent(seconds: float) -> Callable[[], str]:
    def question() -> str:
        with current_clock().count_wait():
            time.sleep(seconds)
        return "answer"

    return question


def test_own_work_is_not_counted() -> None:
    def work() -> str:
        time.sleep(0.5)
        return "answer"

    assert call_within(0.05, work) == "answer"


def test_a_silent_server_is_left_long_before_it_answers() -> None:
    with pytest.raises(TimeoutError):
        call_within(0.05, be_silent(3600))


def test_a_call_ends_however_much_the_client_has_to_do() -> None:
    with pytest.raises(TimeoutError):
        call_within(3600, lambda: time.sleep(3600), limit=0.05)


def test_an_error_is_passed_on() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        call_within(5, fail)


def test_the_set_up_of_a_connection_is_counted_apart_from_the_answer() -> None:
    clock = SilenceClock()
    seconds = []
    for step in ("connection.connect_tcp", "connection.start_tls", "http11.receive_response_body"):
        clock.trace(f"{step}.started")
        seconds.append([clock.tick() for _ in range(3)][-1])
        clock.trace(f"{step}.complete")
        clock.tick()
    assert [round(count / TICK) for count in seconds] == [3, 6, 6]


def test_a_tick_counts_its_nominal_length_however_late_the_machine_was() -> None:
    clock = SilenceClock()
    with clock.count_wait():
        time.sleep(20 * TICK)
        assert clock.tick() == TICK


def test_hope_ends_and_is_not_renewed_before_the_server_has_answered() -> None:
    circuit = CircuitBreaker()
    circuit.record_failure(hope=0.05)
    assert not circuit.await_answer(math.inf)
    circuit.record_failure(hope=math.inf)
    assert not circuit.await_answer(math.inf)
    circuit.record_success()
    circuit.record_failure(hope=math.inf)
    assert not circuit.await_answer(math.inf), "it is ready, and never answers"
    circuit.record_success(gives_hope=True)
    assert circuit.is_hopeful


def test_a_late_answer_closes_the_circuit_for_all_who_wait() -> None:
    circuit = CircuitBreaker()
    calls = ServerCalls("http://server", circuit, wake=lambda: None, wait=0.2)
    questions = iter([0.3])

    def question() -> str:
        return be_silent(next(questions, 0.0))()

    assert calls.ask_patiently(question, 30) == "answer"
    assert circuit.closed
    with pytest.raises(UnreachableError):
        calls.ask(be_silent(1.0))
    assert not circuit.closed
    assert calls.ask_patiently(question, 30) == "answer"


def test_a_server_that_always_asks_for_patience_gets_it_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wait_budget, "MOST_SECONDS", 0.8)
    calls = ServerCalls("http://server", CircuitBreaker(), wake=lambda: None, wait=0.05)
    questions = 0

    def question() -> None:
        nonlocal questions
        questions += 1
        raise BusyError("later", 503, 0.1)

    for _ in range(20):
        with suppress(BusyError):
            calls.ask_patiently(question, 10)
    assert questions <= 20 + 8


def test_a_server_that_always_answers_late_is_waited_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wait_budget, "MOST_SECONDS", 0.8)
    calls = ServerCalls("http://server", CircuitBreaker(), wake=lambda: None, wait=0.05)
    answers = 0
    for _ in range(20):
        calls.circuit.record_success(gives_hope=True)
        with suppress(UnreachableError):
            calls.ask_patiently(be_silent(0.3), 10)
            answers += 1
    assert 1 <= answers <= 4


def test_waiting_time_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = wait_budget.WaitBudget()
    budget.spend(1000)
    assert budget.seconds < 1
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 600)
    assert 10 <= budget.seconds < 11
    monkeypatch.setattr(time, "monotonic", lambda: now + 1e6)
    assert budget.seconds == wait_budget.MOST_SECONDS


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_child_waits_for_no_thread_of_its_parent(tmp_path: Path) -> None:
    store = RemoteStore(ProtocolClient("http://127.0.0.1:9"), wait=0.05, spool=Spool("x", tmp_path))
    with store._calls._budget._lock:  # as another thread may hold it at any moment
        child = os.fork()
        if not child:
            with suppress(UnreachableError):
                store.get(context(), record(1).scenario, fresh=True)
            os._exit(0)
    deadline = time.monotonic() + 240
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.05)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    store.close()
    assert ended == (child, 0)


def test_who_has_no_connection_is_not_hoped_for() -> None:
    calls = ServerCalls("http://server", CircuitBreaker(), wake=lambda: None, wait=0.05)
    released = threading.Event()

    def connect() -> None:
        current_clock().trace("connection.connect_tcp.started")
        released.wait(60)

    with pytest.raises(UnreachableError):
        calls.ask(connect)
    with pytest.raises(UnreachableError):
        calls.ask_patiently(connect, math.inf)
    released.set()


def test_answers_to_other_calls_are_no_reason_to_wait_for_leases() -> None:
    """A server that answers look-ups and hangs at leases costs the long wait once."""
    circuit = CircuitBreaker()
    calls = ServerCalls("http://server", circuit, wake=lambda: None, wait=0.05)
    for _ in range(2):
        assert calls.ask_patiently(be_silent(0.0), 0.0) == "answer"
        with pytest.raises(UnreachableError):
            calls.ask_patiently(be_silent(3600), 10)
        assert not circuit.is_hopeful
        circuit.record_success()
        assert not circuit.is_hopeful


def test_an_empty_spool_is_no_reason_to_wait_for_a_server(tmp_path: Path) -> None:
    """A sender that is told to look, and has nothing to send, has learnt nothing of the server."""
    circuit = CircuitBreaker()
    circuit.record_failure()
    circuit.record_success()
    client = ProtocolClient("http://127.0.0.1:1")
    sender = Sender(client, circuit, Spool("x", tmp_path / "spool"))
    sender.wake()
    sender.stop()
    deadline = time.monotonic() + 240
    while sender._has_thread and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not circuit.is_hopeful
