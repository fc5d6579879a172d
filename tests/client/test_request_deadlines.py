"""A request ends in time, however steadily the server sends or reads a little of it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import httpx
import pytest
from dejavu_client.http import http_exchange, shared_client
from dejavu_client.http.errors import UnreachableError
from dejavu_client.http.protocol_client import ProtocolClient
from support.bad_server import SLOW_SECONDS, BadServer
from support.command_line import run_cli

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"writers": []}'


def repeat(peer: socket.socket, piece: bytes) -> None:
    """Send a piece again and again, more often than any timeout."""
    until = time.monotonic() + SLOW_SECONDS
    while time.monotonic() < until:
        peer.sendall(piece)
        time.sleep(0.05)


def drip_head(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\nX-Filler: ")
    repeat(peer, b"a")


def drip_hints(peer: socket.socket) -> None:
    repeat(peer, b"HTTP/1.1 103 Early Hints\r\n\r\n")


def drip_body(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    repeat(peer, b" ")


def drip_second_head(peer: socket.socket) -> None:
    """Answer the first request on a connection, and never finish the second answer's head."""
    peer.sendall(ANSWER)
    if peer.recv(65536):
        drip_head(peer)


def drip_chunks(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    repeat(peer, b"1\r\n \r\n")


Treatment = Callable[[socket.socket], None]
Serve = Callable[[Treatment], BadServer]


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_client, "REQUEST_TIMEOUT", httpx.Timeout(1.0, connect=30.0))
    monkeypatch.setattr(http_exchange, "SLOWEST_BODY", 1.0)
    monkeypatch.setattr(http_exchange, "SLOWEST_UPLOAD", 2**30)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Provide a function that starts a server with a treatment."""
    servers: list[BadServer] = []

    def start(treat: Treatment) -> BadServer:
        servers.append(BadServer(treat))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize("treat", [drip_head, drip_hints, drip_body, drip_chunks])
def test_an_answer_that_drips_is_left(treat: Treatment, serve: Serve) -> None:
    server = serve(treat)
    with (
        closing(ProtocolClient(server.url)) as client,
        pytest.raises(UnreachableError, match="answer"),
    ):
        client.list_writers()
    assert (server.connections, server.finished) == (1, 0)


def test_an_answer_that_drips_on_a_used_connection_is_left(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_client, "REQUEST_TIMEOUT", httpx.Timeout(5.0, connect=30.0))
    monkeypatch.setattr(http_exchange, "SLOWEST_BODY", 60.0)
    server = serve(drip_second_head)
    with closing(ProtocolClient(server.url)) as client:
        assert client.list_writers() == []
        with pytest.raises(UnreachableError, match="was still answering after 5 s"):
            client.list_writers()
    assert (server.connections, server.finished) == (1, 0)


def test_a_server_that_reads_a_little_now_and_then_is_left(serve: Serve) -> None:
    received: list[int] = []

    def read_slowly(peer: socket.socket) -> None:
        while content := peer.recv(2**18):
            received.append(len(content))
            time.sleep(0.05)

    server = serve(read_slowly)
    with (
        closing(ProtocolClient(server.url)) as client,
        pytest.raises(UnreachableError, match="does not answer"),
    ):
        client.send_json(bytes(2**25), 1)
    assert sum(received) < 2**24


@pytest.mark.parametrize("command", ["log", "show --misses", "quarantine list", "promote --to x"])
def test_a_command_ends_although_its_answer_drips(command: str, serve: Serve) -> None:
    server = serve(drip_head)
    seen = run_cli(*command.split(), "--store", server.url)
    assert (seen.returncode, server.finished) == (3, 0), seen
    assert server.url in seen.stderr


def test_a_long_work_s_answer_may_begin_late_but_not_drip(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promotion may take an hour; a head that has begun does not."""

    def begin_late(peer: socket.socket) -> None:
        time.sleep(2.0)
        peer.sendall(ANSWER.replace(b'{"writers": []}', b'{"records": 12}'))

    monkeypatch.setattr(http_exchange, "SLOWEST_HEAD", 1.0)
    with closing(ProtocolClient(serve(begin_late).url)) as client:
        assert client.promote("other") == 12
    server = serve(drip_head)
    with (
        closing(ProtocolClient(server.url)) as client,
        pytest.raises(UnreachableError, match="was still answering after 1 s"),
    ):
        client.promote("other")
    assert (server.connections, server.finished) == (1, 0)
