"""Who may do what: roles, namespaces, tokens."""

import asyncio
import base64
import itertools
import sqlite3
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from dejavu_service.app import create_app
from dejavu_service.errors import NotFoundError
from dejavu_service.services import tokens
from dejavu_service.services.access import ANYBODY
from dejavu_service.settings import ServerSettings
from dejavu_service.storage.database import Database
from dejavu_service.storage.tables import metadata
from dejavu_service.storage.tables import tokens as token_table
from fastapi.routing import APIRoute
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError
from support.service import body, client_of, context, record_set, scenario

MakeToken = Callable[..., dict[str, str]]
WHERE = f"contexts/{context().digest}"


def test_open_reading_is_only_reading_and_adds_no_rows(
    url: str, database: Database, token: MakeToken
) -> None:
    app = create_app(ServerSettings(database=url, open_read=True))
    admin, reader = token("admin"), token("read")
    names = {"namespace": "none", "context": context().digest, "scenario": scenario().digest}
    with client_of(app) as client:
        client.post("/v1/main/records", json=body(record_set()), headers=admin)
        # Reuse is counted in one row for each namespace with records and each day.
        rows = count_rows(database) | {"days": 1}
        readable = [
            route.path_format
            for route in app.routes
            if isinstance(route, APIRoute) and "GET" in (route.methods or ())
            if route.param_convertors.keys() <= names.keys()
        ]
        for headers, namespace in itertools.product(({}, reader), ("main", "none")):
            asked = [
                client.get(path.format(**{**names, "namespace": namespace}), headers=headers)
                for path in readable
            ]
            assert max(answer.status_code for answer in asked) < 500
            assert sum(answer.is_success for answer in asked) > 10
            app.state.server.reader.flush()
            assert count_rows(database) == rows
        for path in ("/v1/main/contexts", "/metrics", "/pages/main"):
            assert client.get(path).status_code == 200
        assert client.post("/v1/main/records", json=body(record_set())).status_code == 403


def count_rows(database: Database) -> dict[str, int]:
    with database.read() as connection:
        return {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in metadata.sorted_tables
        }


def test_a_token_lives_until_it_is_revoked(client: httpx.Client, database: Database) -> None:
    assert client.get("/v1/main/contexts").status_code == 200, "there are no tokens yet"
    made = tokens.issue(database, ANYBODY, "ci", {"*": "read"})
    mine = {"Authorization": f"Bearer {made.token}"}
    assert client.get("/v1/main/contexts").status_code == 401, "from the first token on"
    assert client.get("/v1/main/contexts", headers=mine).status_code == 200
    secret = made.token.split("_", 2)[2]
    with database.read() as connection:
        assert secret not in str(connection.execute(select(token_table)).all())
    tokens.revoke(database, made.id)
    assert client.get("/v1/main/contexts", headers=mine).status_code == 401
    with pytest.raises(NotFoundError):
        tokens.revoke(database, made.id)
    answer = client.get("/v1/main/contexts")
    assert answer.status_code == 401, "without a valid token, the server is still not open"
    assert "set DEJAVU_CACHE_TOKEN or DEJAVU_CACHE_TOKEN_FILE" in answer.json()["detail"]


def test_a_server_without_tokens_wants_one_soon_after_the_first_is_made(
    url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes it, in the database."""
    monkeypatch.setattr("dejavu_service.server.TOKEN_SECONDS", 1.0)
    with client_of(create_app(ServerSettings(database=url))) as client:
        assert client.get("/v1/main/contexts").status_code == 200
        tokens.issue(database, ANYBODY, "ci", {"*": "read"})
        time.sleep(1.0)
        assert client.get("/v1/main/contexts").status_code == 401


@pytest.mark.anyio
@pytest.mark.parametrize(("is_locked", "status"), [(False, 200), (True, 503)])
async def test_requests_that_come_at_once_share_a_look_up(
    url: str, token: MakeToken, monkeypatch: pytest.MonkeyPatch, is_locked: bool, status: int
) -> None:
    """Else each would wait for a locked table in its turn, two at a time for one address."""
    asked: list[str] = []
    verify = tokens.verify

    def look_up(database: Database, presented: str) -> Any:
        asked.append(presented)
        time.sleep(0.5)
        if is_locked:
            raise OperationalError("SELECT", {}, sqlite3.OperationalError("database is locked"))
        return verify(database, presented)

    headers = token("read")
    monkeypatch.setattr(tokens, "verify", look_up)
    app = create_app(ServerSettings(database=url))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        requests = (client.get("/v1/main/contexts", headers=headers) for _ in range(10))
        assert {answer.status_code for answer in await asyncio.gather(*requests)} == {status}
    assert len(asked) == 1


WRONG = ["", "x", "{token}", "Basic {basic}", "Bearer", "Bearer Bearer", "Bearer dejavu__"]
WRONG += ["Bearer dejavu_{id}_wrong", "Bearer dejavu_\x7f_x"]


@pytest.mark.parametrize("path", ["/v1/main/contexts", "/pages/main"])
def test_what_is_no_bearers_token_is_refused(
    client: httpx.Client, token: MakeToken, path: str
) -> None:
    secret = token("admin")["Authorization"].removeprefix("Bearer ")
    basic = base64.b64encode(f"anyone:{secret}".encode()).decode()
    for presented in WRONG:
        sent = presented.format(id=secret.split("_")[1], basic=basic, token=secret)
        answer = client.get(path, headers={"Authorization": sent})
        assert answer.status_code == 401, presented
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["www-authenticate"] == "Bearer"


LOCAL = [{"Host": host} for host in ("127.0.0.1:8765", "[::1]:8765", "localhost")]
STRANGE = [{"Host": host} for host in ("evil.example", "localhost.evil.example", "10.0.0.1")]
STRANGE += [{name: "203.0.113.9"} for name in ("Forwarded", "Via", "X-Forwarded-For", "X-Real-IP")]


def test_without_tokens_only_this_machine_is_answered(client: httpx.Client) -> None:
    for sent in (*LOCAL, *STRANGE):
        status = client.get("/v1/main/contexts", headers=sent).status_code
        assert status == (200 if sent in LOCAL else 403), sent


ORIGINS = ("https://evil.example", "http://localhost:1", "null", "http://[evil")
FOREIGN_PAGES = [{"Origin": origin} for origin in ORIGINS]
FOREIGN_PAGES += [{"Sec-Fetch-Site": site} for site in ("cross-site", "same-site")]


@pytest.mark.parametrize("named", FOREIGN_PAGES, ids=str)
def test_a_page_of_another_site_can_do_nothing(client: httpx.Client, named: dict[str, str]) -> None:
    line = record_set().model_dump_json(exclude_none=True)
    for kind in ("text/plain", "application/json", "application/x-ndjson", ""):
        headers = {**named, **({"Content-Type": kind} if kind else {})}
        for method, path in (
            ("POST", "main/import"),
            ("POST", "main/records"),
            ("DELETE", f"main/{WHERE}/records"),
            ("GET", f"main/{WHERE}/records"),
            ("OPTIONS", "main/records"),
        ):
            answer = client.request(method, f"/v1/{path}", content=line, headers=headers)
            assert answer.status_code == 403, (kind, method, path)
    assert client.get("/v1/main/contexts").json()["contexts"] == []
    assert client.get("/pages/main", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200
    own = {"Origin": "http://localhost", "Host": "localhost", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/v1/main/import", content=line, headers=own).status_code == 200
