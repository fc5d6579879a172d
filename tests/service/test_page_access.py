"""Who sees the pages: a browser's login, roles, and errors as pages."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from dejavu_service.services import tokens
from fastapi import FastAPI
from support.service import body, record, record_set

MakeToken = Callable[..., dict[str, str]]
HTML = {"Accept": "text/html"}
# The walk in a browser does the same on the other database.
url = pytest.fixture(lambda postgres_url: postgres_url)


def secret_of(headers: dict[str, str]) -> str:
    return headers["Authorization"].removeprefix("Bearer ")


def log_in(client: httpx.Client, token: str, where: str = "") -> httpx.Response:
    """Send the form of the login, as a browser that keeps no cookie yet."""
    answer = client.post("/login", data={"token": token, "next": where}, headers=HTML)
    client.cookies.clear()
    return answer


def test_a_browser_logs_in_and_out(client: httpx.Client, token: MakeToken) -> None:
    secret = secret_of(token("read"))
    asked = client.get("/pages/main?q=a%20b", headers=HTML)
    assert asked.status_code == 401
    assert 'value="/pages/main?q=a%20b"' in asked.text
    for wrong in ("", "x", "dejavu_0_1", f"{secret}x"):
        answer = log_in(client, wrong, "/pages/main?q=a%20b")
        assert (answer.status_code, answer.headers.get("set-cookie")) == (401, None)
        assert 'value="/pages/main?q=a%20b"' in answer.text
    answer = log_in(client, secret, "/pages/main?q=a%20b")
    assert (answer.status_code, answer.headers["location"]) == (303, "/pages/main?q=a%20b")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    logged_in = {**HTML, "Cookie": cookie.partition(";")[0]}
    assert "seen as a read" in client.get("/pages/main", headers=logged_in).text
    assert client.get("/v1/main/contexts", headers=logged_in).status_code == 401, (
        "browsers send cookies unasked"
    )
    gone = client.post("/logout", headers=logged_in)
    assert 'dejavu_token=""' in gone.headers["set-cookie"]
    stale = client.get("/pages/main", headers={**HTML, "Cookie": "dejavu_token=dejavu_0_1"})
    assert "The token is wrong, expired or revoked" in stale.text


def test_a_login_leads_to_no_other_site(client: httpx.Client, token: MakeToken) -> None:
    secret = secret_of(token("read"))
    evil = ("//evil.example", "https://evil.example", "/\\evil.example", "/pages/\r\nX: y")
    for where in (*evil, "/pages//evil.example\t", ""):
        assert log_in(client, secret, where).headers["location"] == "/", where


def test_a_server_without_tokens_says_so_instead_of_asking_for_one(client: httpx.Client) -> None:
    for named in ({"Host": "tune.example.com"}, {"X-Forwarded-For": "10.0.0.1"}):
        answer = client.get("/pages/main", headers={**HTML, **named})
        assert answer.status_code == 403
        assert "Without tokens, " in answer.text
        assert "create a token" in answer.text


def test_errors_are_pages_for_browsers_alone(client: httpx.Client, token: MakeToken) -> None:
    headers = {**HTML, **token("read")}
    client.post("/v1/main/records", json=body(record_set(record(1))), headers=token("write"))
    answer = client.get("/pages/main/contexts/" + "0" * 24, headers=headers)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "Namespace &#39;main&#39; has no records of this context: choose another." in answer.text
    assert "Log out" in answer.text
    answer = client.get("/pages/main", params={"sort": "<script>alert(1)"}, headers=headers)
    assert (answer.status_code, "<script>" in answer.text) == (422, False)
    plain = client.get("/v1/main/log?limit=x", headers=headers)
    assert plain.headers["content-type"] == "application/problem+json"
    answer = client.get("/pages/main", headers={"Accept": "*/*"})
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


def test_guesses_at_the_login_hold_up_their_own_address_alone(
    app: FastAPI, token: MakeToken, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, secret, verify = threading.Event(), secret_of(token("read")), tokens.verify

    def hold_guesses(database: Any, presented: str) -> Any:
        return verify(database, presented) if presented == secret else end.wait(60) and None

    async def try_token(address: str, presented: str) -> int:
        transport = httpx.ASGITransport(app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as browser:
            return (await browser.post("/login", data={"token": presented})).status_code

    async def log_in_beside_guesses() -> list[int]:
        async with app.router.lifespan_context(app):
            guesses = [asyncio.create_task(try_token("10.0.0.1", f"x{n}")) for n in range(3)]
            await asyncio.sleep(0.2)
            status = await try_token("10.0.0.2", secret)
            end.set()
            return [status, *await asyncio.gather(*guesses)]

    monkeypatch.setattr(tokens, "verify", hold_guesses)
    assert asyncio.run(log_in_beside_guesses()) == [303, 401, 401, 401]
