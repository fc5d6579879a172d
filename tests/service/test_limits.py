"""How many requests are served at a time and for how long, and in which turn."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from dejavu_service.middleware import bodies, limits
from dejavu_service.middleware.bodies import BodyTurns
from dejavu_service.middleware.limits import RateLimiter, RequestLimits
from dejavu_service.problems import ProblemError
from fastapi import FastAPI
from starlette.types import ASGIApp
from support.service import Running, running_server
from support.sweeping import wait_until

LARGE = 10**6
FORM = "Content-Type: application/x-www-form-urlencoded"
HALF_SENT = {
    "bodies": f"POST /login HTTP/1.1\r\nHost: x\r\n{FORM}\r\nContent-Length: 9\r\n\r\nt".encode(),
    "heads": b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: ",
    "nothing": b"",
}


@pytest.fixture
def server(sqlite_url: str, tmp_path: Path) -> Iterator[Running]:
    few = {"DEJAVU_SERVER_REQUESTS": "100", "DEJAVU_SERVER_RATE": "0"}
    with running_server(sqlite_url, tmp_path / "log", few) as started:
        yield started


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
                    assert (busy.status_code, busy.headers["retry-after"]) == (503, "2")
            wait_until(lambda: httpx.get(f"{server.base}/v1/main/contexts").status_code == 200)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def ask(
    limited: ASGIApp, path: str = "/v1/main/contexts", headers: Any = (), reads: bool = True
) -> asyncio.Task[list[int]]:
    """Send a request to an app behind the limits; its statuses are those of what it sent."""
    statuses: list[int] = []
    scope: Any = {"type": "http", "method": "GET", "path": path, "headers": headers}
    scope["query_string"] = b""

    async def receive() -> Any:
        await asyncio.sleep(3600)

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 0))
        if not reads:
            await asyncio.sleep(3600)

    async def run() -> list[int]:
        await limited(scope, receive, send)
        return statuses

    return asyncio.get_running_loop().create_task(run())


async def wait_for_body(scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
    """Answer as an app does to whose request no body comes."""
    if scope["path"] == "/begun":
        await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] != "/livez":
        await receive()
    await send({"type": "http.response.start", "status": 204, "headers": []})


def test_a_request_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_SECONDS", 0.05)
    monkeypatch.setattr(limits, "_CHECK_SECONDS", 0.02)

    async def serve() -> None:
        limited = RequestLimits(wait_for_body, 1)
        first, begun, health = ask(limited), ask(limited), ask(limited, "/livez")
        assert (await begun)[0] == 503, "there was one already"
        assert await health == [204]
        assert (await first)[0] == 503
        assert await ask(limited, "/begun") == [200], "an answer that has begun is cut off"
        long = asyncio.ensure_future(ask(limited, "/v1/main/import"))
        await asyncio.sleep(0.2)
        assert not long.done(), "an import may take longer"
        long.cancel()

    asyncio.run(serve())


def test_exports_that_nobody_reads_leave_room_for_other_requests(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LONGEST_WAIT", 0.2)

    async def serve() -> None:
        local = [(b"host", b"localhost")]
        unread = [ask(app, "/v1/main/export", local, reads=False) for _ in range(2)]
        assert (await ask(app, "/v1/main/export", local))[0] == 503
        assert (await ask(app, "/v1/main/contexts", local))[0] == 200
        for one in unread:
            one.cancel()
        await asyncio.wait(unread)
        assert (await ask(app, "/v1/main/export", local))[0] == 200
        await app.state.server.close()

    asyncio.run(serve())


def test_a_bucket_fills_again() -> None:
    moment = [0.0]
    rate = RateLimiter(2, 2, lambda: moment[0])
    for _ in range(2):
        rate.take("a")
    with pytest.raises(ProblemError):
        rate.take("a")
    rate.take("b")
    moment[0] = 0.5
    rate.take("a")
    with pytest.raises(ProblemError):
        rate.take("a")


def test_what_a_large_body_waited_for_others_it_does_not_wait_for_its_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients and proxies give up on an answer that comes after all waits in a row."""
    monkeypatch.setattr(bodies, "LONGEST_WAIT", 60.0)

    async def wait_in_turn() -> float:
        turns = BodyTurns(10 * LARGE, 8)

        async def hold() -> None:
            async with turns.turn_for("a job", LARGE):
                await asyncio.sleep(0.2)

        holding = [asyncio.create_task(hold()) for _ in range(2)]
        await asyncio.sleep(0)
        async with turns.turn_for("a job", LARGE) as seconds:
            await asyncio.gather(*holding)
            return seconds

    assert 0 < asyncio.run(wait_in_turn()) <= 60.0 - 0.15


def test_who_has_waited_long_enough_gets_a_free_turn_and_waits_for_no_other() -> None:
    async def take_turns() -> None:
        turns = BodyTurns(10 * LARGE, 8)
        async with turns.queue.turn("a", 0.0), turns.queue.turn("a", 0.0):
            with pytest.raises(ProblemError) as refused:
                async with turns.queue.turn("a", 0.0):
                    raise AssertionError("a third one got a turn")
            assert refused.value.headers == {"Retry-After": "2"}

    asyncio.run(take_turns())


def test_one_principal_leaves_room_for_the_large_bodies_of_others() -> None:
    """Also one whose bodies do not say how large they are."""

    async def take_turns() -> None:
        turns = BodyTurns(10 * LARGE, 8)
        async with turns.turn_for("greedy", None), turns.turn_for("greedy", LARGE):
            third = asyncio.create_task(turns.turn_for("greedy", LARGE).__aenter__())
            with anyio.fail_after(5):
                async with turns.turn_for("modest", LARGE):
                    assert not third.done()
            third.cancel()

    asyncio.run(take_turns())
