"""How many requests are served at a time and for how long, and in which turn."""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from dejavu_service import server as edge
from dejavu_service.errors import UnavailableError
from dejavu_service.server import Gate, Server, Turns
from dejavu_service.services import tokens
from dejavu_service.services.access import ANYBODY
from dejavu_service.services.records import post_records
from dejavu_service.settings import ServerSettings
from dejavu_service.storage.database import Database
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp
from support.service import Running, call_on, context, make_token, record_set
from support.sweeping import wait_until

FORM = "Content-Type: application/x-www-form-urlencoded"
SERVER = {"DEJAVU_SERVER_MAX_CONCURRENT_REQUESTS": "100"}
HALF_SENT = {
    "bodies": f"POST /login HTTP/1.1\r\nHost: x\r\n{FORM}\r\nContent-Length: 9\r\n\r\nt".encode(),
    "heads": b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: ",
    "nothing": b"",
}


def test_a_server_serves_again_once_a_flood_has_ended(server: Running) -> None:
    """Without a restart, whatever the flood was made of, also beyond the limit of requests."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        for data in HALF_SENT.values():
            with ExitStack() as flood:
                for _ in range(1000):
                    opened = socket.create_connection(("127.0.0.1", server.port))
                    flood.enter_context(opened).sendall(data)
                assert httpx.get(f"{server.base}/livez").status_code == 200
                assert httpx.get(f"{server.base}/readyz").status_code == 200
                if data == HALF_SENT["bodies"]:
                    busy = httpx.get(f"{server.base}/v1/main/contexts")
                    assert (busy.status_code, busy.headers["retry-after"]) == (429, "2")
            wait_until(lambda: httpx.get(f"{server.base}/v1/main/contexts").status_code == 200)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def ask(
    gate: ASGIApp, path: str = "/login", headers: Any = (), read: Any = None, address: str = "::1"
) -> asyncio.Task[list[int]]:
    """Send a request to an app behind the gate; its statuses are those of what it sent."""
    statuses: list[int] = []
    scope: Any = {"type": "http", "method": "GET", "path": path, "headers": headers}
    scope |= {"query_string": b"", "client": (address, 1)}

    async def receive() -> Any:
        await asyncio.sleep(3600)

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 0))
        if read is not None:
            await read(message)

    async def run() -> list[int]:
        await gate(scope, receive, send)
        return statuses

    return asyncio.get_running_loop().create_task(run())


async def wait_for_body(scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
    """Answer as an app does to whose request no body comes."""
    if scope["path"] == "/favicon.ico":
        await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] != "/livez":
        await receive()
    await send({"type": "http.response.start", "status": 204, "headers": []})


@pytest.mark.anyio
async def test_a_request_that_does_not_end_is_ended(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_paths = "/v1/x/import", "/v1/x/quarantines", "/v1/x/quarantines/1"
    monkeypatch.setattr(edge, "_SECONDS", 0.05)
    # Without a token, these would be refused; they stand for requests of any kind.
    monkeypatch.setattr(edge, "_WITHOUT_TOKEN", {"/login", "/favicon.ico", *long_paths})
    settings = ServerSettings(database=sqlite_url, max_concurrent_requests=1)
    gate = Gate(wait_for_body, Server(settings))
    first, another, health = ask(gate), ask(gate), ask(gate, "/livez")
    assert (await another)[0] == 503, "there was one already"
    assert await health == [204]
    assert (await first)[0] == 503
    assert await ask(gate, "/favicon.ico") == [200], "an answer that has begun is cut off"
    for path in long_paths:
        long = ask(gate, path)
        await asyncio.sleep(0.2)
        assert not long.done(), "what concerns a whole namespace may take longer"
        await cancel(long)


async def cancel(*waiting: asyncio.Task[list[int]]) -> None:
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


@pytest.mark.anyio
async def test_exports_that_nobody_reads_leave_room_for_other_requests(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge, "LONGEST_WAIT", 0.2)
    local = [(b"host", b"localhost")]
    unread: list[Any] = []

    async def read_no_more(message: Any) -> None:
        unread.append(message)
        await asyncio.sleep(3600)

    waiting = [ask(app, "/v1/main/export", local, read_no_more) for _ in range(2)]
    while len(unread) < 2:
        await asyncio.sleep(0.01)
    assert (await ask(app, "/v1/main/export", local))[0] == 503
    assert (await ask(app, "/v1/main/export", local, address="192.0.2.1"))[0] == 200
    assert (await ask(app, "/v1/main/contexts", local))[0] == 200
    await cancel(*waiting)
    assert (await ask(app, "/v1/main/export", local))[0] == 200
    await app.state.server.close()


@pytest.mark.anyio
async def test_an_export_ends_when_its_token_is_revoked(
    app: FastAPI, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that reads slowly would otherwise get what is written for hours to come."""
    for kernel in ("a", "b", "c"):
        post_records("main", record_set(of=context(kernel)), call_on(database))
    made = tokens.issue(database, ANYBODY, "leaver", {"main": "read"})
    messages: list[Any] = []

    async def read_and_revoke(message: Any) -> None:
        messages.append(message)
        if message.get("body"):
            await run_in_threadpool(tokens.revoke, database, made.id)

    await ask(app, "/v1/main/export", bearer(made.token), read_and_revoke)
    assert len([message for message in messages if message.get("body")]) == 1
    assert messages[-1]["more_body"], "the client must notice that it lacks the rest"
    (line,) = (line for line in caplog.records if line.message == "an answer was cut off")
    assert "revoked" in line.__dict__["fields"]["error"]
    await app.state.server.close()


@pytest.fixture
async def gate(sqlite_url: str) -> AsyncIterator[Gate]:
    """Yield the gate of a server that serves three requests at a time."""
    server = Server(ServerSettings(database=sqlite_url, max_concurrent_requests=3))
    yield Gate(wait_for_body, server)
    await server.close()


@pytest.mark.anyio
async def test_one_caller_leaves_some_requests_to_the_others(gate: Gate, sqlite_url: str) -> None:
    """Guesses count for their address, and shut out no token that is known."""
    greedy, modest = (bearer(make_token(sqlite_url, "read")) for _ in range(2))
    waiting: list[asyncio.Task[list[int]]] = []

    async def start(headers: Any, count: int) -> None:
        waiting.append(ask(gate, "/v1/main/contexts", headers))
        while gate._held["::1"] or gate._held.total() < count:
            await asyncio.sleep(0.01)

    await start(greedy, 1)
    await start(greedy, 2)
    assert (await ask(gate, "/v1/main/contexts", greedy))[0] == 429
    assert (await ask(gate, "/v1/main/contexts", bearer("dejavu_0_x")))[0] == 401
    await start(modest, 3)
    await cancel(*waiting)
    assert not gate._held


@pytest.mark.anyio
async def test_one_address_leaves_some_requests_where_no_token_is_needed(gate: Gate) -> None:
    waiting = [ask(gate, "/style.css") for _ in range(2)]
    assert (await ask(gate, "/v1/openapi.json"))[0] == 429
    await cancel(*waiting)


def bearer(token: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {token}".encode())]


@pytest.mark.anyio
async def test_callers_take_turns_however_much_each_wants() -> None:
    turns, served = Turns(1, 1), list[str]()

    async def take(caller: str) -> None:
        async with turns.turn("main", caller):
            await asyncio.sleep(0)
            served.append(caller)

    await asyncio.gather(*map(take, ("greedy", "greedy", "greedy", "modest")))
    assert served == ["greedy", "greedy", "modest", "greedy"]


@pytest.mark.anyio
async def test_one_principal_or_namespace_leaves_turns_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edge, "LONGEST_WAIT", 0.05)
    turns = Turns(3, 2)
    async with turns.turn("greedy"), turns.turn("greedy"):
        with pytest.raises(UnavailableError) as refused:
            await turns.turn("greedy").__aenter__()
        assert refused.value.headers["Retry-After"] == "2"
        async with turns.turn("modest"):
            with pytest.raises(UnavailableError):
                await turns.turn("late").__aenter__()
    async with turns.turn("greedy"), turns.turn("greedy"):
        pass
