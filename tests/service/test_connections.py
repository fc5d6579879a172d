"""Connections that send or read nothing for long, on a real socket with short limits."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
import uvicorn
from dejavu_service import connections
from dejavu_service.app import create_app
from dejavu_service.connections import BoundedConnection
from dejavu_service.joined_writes import JoinedWrites
from dejavu_service.middleware import request_body
from dejavu_service.pages import rendering
from dejavu_service.services import tokens
from dejavu_service.services.access import ANYBODY
from dejavu_service.settings import ServerSettings
from dejavu_service.storage.database import Database
from support.service import free_port
from support.sweeping import wait_until

SECONDS = 0.4


@pytest.fixture
def port(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Serve the app in a thread and yield its port."""
    for name in ("_HEAD_SECONDS", "_DRAIN_SECONDS", "_STALL_SECONDS"):
        monkeypatch.setattr(connections, name, SECONDS)
    monkeypatch.setattr(request_body, "_PATIENCE", SECONDS)
    monkeypatch.setattr(BoundedConnection, "max_connections", 20)
    app = create_app(ServerSettings(database=sqlite_url))
    port = free_port()
    config = uvicorn.Config(
        app, port=port, http=BoundedConnection, ws="none", log_config=None, access_log=False
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield port
    server.should_exit = True
    thread.join(240)
    assert not thread.is_alive()


@pytest.fixture
def bearer(sqlite_url: str) -> str:
    database = Database(sqlite_url)
    issued = tokens.issue(database, ANYBODY, "a writer", "write", ["*"], None)
    database.close()
    return f"Authorization: Bearer {issued.token}\r\n"


def _livez(port: int) -> int:
    return httpx.get(f"http://127.0.0.1:{port}/livez", timeout=240).status_code


def _send(port: int, text: str) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", port), timeout=240)
    opened.sendall(text.encode())
    return opened


def _read_until_closed(opened: socket.socket) -> bytes:
    answer = b""
    with opened:
        try:
            while chunk := opened.recv(65536):
                answer += chunk
        except ConnectionResetError:
            pass
    return answer


def _drip(text: str) -> Callable[[socket.socket], None]:
    def send_on(opened: socket.socket) -> None:
        try:
            while True:
                opened.sendall(text.encode())
                time.sleep(0.05)
        except OSError:
            pass

    return send_on


POST = "POST /v1/main/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BEGUN: dict[str, tuple[str, str]] = {
    "nothing": ("", ""),
    "half a head": ("GET /livez HTTP/1.1\r\nX-A: ", ""),
    "a head that drips": ("GET /livez HTTP/1.1\r\n", "X-A: b\r\n"),
    "empty lines": ("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", "\r\n"),
    "a second head that drips": (
        "GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n",
        "X: y",
    ),
    "half a body": (POST + "{bearer}Content-Length: 100\r\n\r\n{{", ""),
    "a body that drips": (POST + "{bearer}Content-Length: 9000\r\n\r\n{{", " "),
    "chunks without end": (POST + "{bearer}Transfer-Encoding: chunked\r\n\r\n", "1\r\n \r\n"),
    "a refused body that drips": (POST + "Content-Length: 9000\r\n\r\n", " "),
}


@pytest.mark.parametrize("name", BEGUN)
def test_a_request_that_does_not_end_is_ended(port: int, bearer: str, name: str) -> None:
    begun, more = BEGUN[name]
    opened = _send(port, begun.format(bearer=bearer))
    sending = threading.Thread(target=_drip(more), args=(opened,), daemon=True)
    if more:
        sending.start()
    answer = _read_until_closed(opened)
    if "body" in name or "chunks" in name:
        assert b" 408 " in answer or b" 401 " in answer
    assert _livez(port) == 200


@pytest.mark.parametrize(
    "head",
    [
        "GET /livez HTTP/1.1\r\nX-A: " + "a" * 300_000,
        "GET /livez HTTP/1.1\r\n" + "X-A: b\r\n" * 40_000,
        "GET /" + "a" * 300_000,
        POST + "{bearer}Transfer-Encoding: chunked\r\n\r\n1;" + "e" * 300_000,
        POST + "{bearer}Transfer-Encoding: chunked\r\n\r\n0\r\n" + "X-A: b\r\n" * 40_000,
    ],
    ids=["one header", "many headers", "a path", "a chunk's extension", "trailers"],
)
def test_a_head_without_end_is_refused(port: int, bearer: str, head: str) -> None:
    opened = socket.create_connection(("127.0.0.1", port), timeout=240)
    with suppress(ConnectionError):
        opened.sendall(head.format(bearer=bearer).encode())
    answer = _read_until_closed(opened)
    assert b"200" not in answer[:15]
    assert _livez(port) == 200


@pytest.mark.parametrize("path", ["/livez", "/v1/openapi.json"])
def test_an_answer_is_sent_as_one(port: int, path: str) -> None:
    """Its head waits for its body, so that one packet wakes the client once."""
    with _send(port, "") as opened:
        for _ in range(20):
            opened.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            _, _, body = opened.recv(2**20).partition(b"\r\n\r\n")
            assert body.startswith(b"{"), "the head came alone"
            while not body.endswith(b"}"):
                body += opened.recv(2**20)


def test_answers_without_a_body_are_sent(port: int) -> None:
    url = f"http://127.0.0.1:{port}/livez"
    with httpx.Client() as client:
        for _ in range(3):
            assert client.head(url).status_code == 405
            assert client.get(url).json() == {"status": "ok"}


def test_a_client_that_asks_whether_to_go_on_is_told(port: int, bearer: str) -> None:
    """`100 Continue` does not wait for an answer that waits for the body."""
    head = f"{POST}{bearer}Content-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    with _send(port, head) as opened:
        assert opened.recv(1000).startswith(b"HTTP/1.1 100 ")
        opened.sendall(b"{}")
        assert opened.recv(10_000).startswith(b"HTTP/1.1 422 ")


def test_half_sent_requests_keep_nobody_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_HEAD_SECONDS", 60.0)
    opened = [_send(port, "GET /livez HTTP/1.1\r\nX-A: ") for _ in range(60)]
    assert _livez(port) == 200
    closed = 0
    for connection in opened:
        connection.settimeout(0.05)
        try:
            closed += connection.recv(1) == b""
        except ConnectionResetError:
            closed += 1
        except TimeoutError:
            pass
        connection.close()
    assert 38 <= closed < 60


def test_a_client_that_is_gone_is_not_written_to(port: int) -> None:
    """Its transport raises an error then, until its protocol is told."""
    loop = pytest.importorskip("uvloop").new_event_loop()

    async def write_after_the_end() -> None:
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
        writes = JoinedWrites(transport)
        transport.abort()
        await asyncio.sleep(0.01)
        writes.write(b"head")
        writes.write(b"body")
        writes.close()

    loop.run_until_complete(write_after_the_end())
    loop.close()


def test_answers_that_nobody_reads_share_the_memory(
    port: int, bearer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_MOST_UNREAD", 16 * 2**20), ("_STALL_SECONDS", 600.0)):
        monkeypatch.setattr(connections, name, value)
    answer = b"x" * 12 * 2**20  # the kernel takes a few MiB of each
    monkeypatch.setattr(rendering, "stylesheet", lambda: answer)
    slow = []
    for _ in range(8):
        opened = socket.create_connection(("127.0.0.1", port))
        opened.sendall(b"GET /style.css HTTP/1.1\r\nHost: localhost\r\n\r\n")
        opened.recv(1)
        slow.append(opened)
    unread = BoundedConnection._unread
    wait_until(lambda: 0 < len(unread) < 8 and sum(unread.values()) <= 16 * 2**20)
    assert len(httpx.get(f"http://127.0.0.1:{port}/style.css").content) == len(answer)
    assert len(_read_until_closed(slow[0])) < len(answer), "it was the first, and did not read"
    for opened in slow[1:]:
        opened.close()
    wait_until(lambda: not unread)


def test_a_connection_in_use_is_never_closed_for_another(port: int, bearer: str) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(3):
            assert client.get("/livez").status_code == 200
            time.sleep(SECONDS * 1.5)
    waiting = _send(port, f"GET {_LONG_POLL} HTTP/1.1\r\nHost: localhost\r\n{bearer}\r\n")
    assert _livez(port) == 200  # the request before it has been read too
    idle: list[Any] = [_send(port, "") for _ in range(40)]
    time.sleep(SECONDS * 3)
    assert b"404" in waiting.recv(100)
    waiting.close()
    for connection in idle:
        connection.close()


_LONG_POLL = f"/v1/main/contexts/{'0' * 24}/records/{'1' * 24}?wait=1"
