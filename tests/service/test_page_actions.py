"""What people do on the pages: log in, pin, promote, claim and dismiss, and make tokens."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from dejavu_service.pages import tokens as token_pages
from dejavu_service.services import tokens
from dejavu_service.services.access import ANYBODY
from dejavu_service.storage.database import Database
from dejavu_service.storage.sql import epoch
from dejavu_service.storage.tables import tokens as token_table
from sqlalchemy import update
from support.service import START, body, config, context, record, record_set, scenario

from dejavu_cache.model.record import Record, Winner
from dejavu_cache.model.scenario import Config

MakeToken = Callable[..., dict[str, str]]
SCENARIO = f"/pages/main/contexts/{context().digest}/scenarios/{scenario(1).digest}"
HTML = {"Accept": "text/html"}


def secret_of(headers: dict[str, str]) -> str:
    return headers["Authorization"].removeprefix("Bearer ")


class Visitor:
    """A browser without scripts: it keeps its cookie and sends the forms that pages have."""

    def __init__(self, client: httpx.Client, token: str) -> None:
        self._client = client
        self.answer = client.post("/login", data={"token": token, "next": ""}, headers=HTML)
        cookie = self.answer.headers.get("set-cookie", "")
        client.cookies.clear()  # each visitor has a jar of its own
        self.bearer = {"Authorization": f"Bearer {token}"}
        self.headers = {**HTML, "Cookie": cookie.partition(";")[0]}

    def get(self, path: str, **params: str) -> str:
        self.answer = self._client.get(path, params=params, headers=self.headers)
        return " ".join(self.answer.text.split())

    def proof(self, path: str) -> str:
        match = re.search(r'name="proof" value="(\w+)"', self.get(path))
        return match.group(1) if match else ""

    def send(self, path: str, proof: str, **fields: str) -> httpx.Response:
        self.answer = self._client.post(path, data={"proof": proof, **fields}, headers=self.headers)
        return self.answer


def won_by(of: Record, winner: Config) -> Record:
    """Return a record that another config has won."""
    return of.model_copy(update={"winner": Winner(config=winner, at=START)})


@pytest.fixture
def url(postgres_url: str) -> str:
    """Return one database for all: the walk in a browser does the same on the other."""
    return postgres_url


@pytest.fixture
def admin(client: httpx.Client, token: MakeToken) -> Visitor:
    headers = token("admin")
    client.post("/v1/main/records", json=body(record_set(record(1), record(2))), headers=headers)
    miss = {"context": body(context()), "scenario": body(scenario(7))}
    client.post("/v1/main/misses", json={"misses": [miss]}, headers=headers)
    return Visitor(client, secret_of(headers))


def test_a_browser_logs_in_and_out(client: httpx.Client, token: MakeToken) -> None:
    secret = secret_of(token("read"))
    sent_away = client.get("/pages/main?q=a%20b", headers=HTML)
    assert sent_away.status_code == 303
    assert sent_away.headers["location"] == "/login?next=%2Fpages%2Fmain%3Fq%3Da%2520b"
    assert 'value="/pages/main?q=a%20b"' in client.get(sent_away.headers["location"]).text
    for wrong in ("", "x", "dejavu_0_1", f"{secret}x"):
        answer = client.post("/login", data={"token": wrong}, headers=HTML)
        assert (answer.status_code, answer.headers.get("set-cookie")) == (401, None)
    reader = Visitor(client, secret)
    cookie = reader.answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "seen as a read" in reader.get("/pages/main")
    assert client.get("/v1/main/contexts", headers=reader.headers).status_code == 401, (
        "browsers send cookies unasked"
    )
    gone = client.post("/logout", headers=reader.headers)
    assert 'dejavu_token=""' in gone.headers["set-cookie"]
    stale = client.get("/pages/main", headers={**HTML, "Cookie": "dejavu_token=dejavu_0_1"})
    assert "why=expired" in stale.headers["location"]


def test_a_login_leads_to_no_other_site(client: httpx.Client, token: MakeToken) -> None:
    fields = {"token": secret_of(token("read"))}
    evil = ("//evil.example", "https://evil.example", "/\\evil.example", "/pages/\r\nX: y")
    for where in (*evil, "/pages//evil.example\t", ""):
        answer = client.post("/login", data={**fields, "next": where})
        assert answer.headers["location"] == "/", where


def test_an_admin_pins_and_unpins(admin: Visitor) -> None:
    proof = admin.proof(SCENARIO)
    assert admin.send(f"{SCENARIO}/pin", proof, config=config(64).digest).status_code == 303
    page = admin.get(SCENARIO)
    assert "<strong>This pin costs 20.0%.</strong>" in page
    assert re.search(r"a admin \(\w+\)</strong> pinned", page)
    assert admin.send(f"{SCENARIO}/pin", proof, config="0" * 24).status_code == 404
    assert admin.send(f"{SCENARIO}/pin", proof).headers["location"] == SCENARIO
    page = admin.get(SCENARIO)
    assert "This pin costs" not in page
    assert "<td>unpin BLOCK_M=64" in page, "the log has it"


def test_the_worklist_is_claimed_released_and_dismissed(
    client: httpx.Client, admin: Visitor
) -> None:
    path = f"/v1/main/contexts/{context().digest}/misses/{scenario(7).digest}"
    for method, end, shown in (("PUT", "/claim", True), ("DELETE", "/claim", False)):
        assert client.request(method, path + end, headers=admin.bearer).status_code == 204
        assert ("<small>since" in admin.get("/pages/main/misses")) == shown
    proof = admin.proof("/pages/main/misses")
    miss = {"context": context().digest, "scenario": scenario(7).digest, "device": "NVIDIA H200"}
    claimed = admin.send("/pages/main/misses/claim", proof, **miss)
    assert claimed.headers["location"] == "/pages/main/misses?device=NVIDIA+H200"
    assert re.search(r"<td>a admin \(\w+\)<small>since", admin.get("/pages/main/misses"))
    admin.send("/pages/main/misses/release", proof, **miss)
    assert "<td>nobody" in admin.get("/pages/main/misses")
    admin.send("/pages/main/misses/dismiss", proof, **miss)
    assert "No program missed a scenario" in admin.get("/pages/main/misses")
    assert "dismissed meanwhile" in admin.send("/pages/main/misses/claim", proof, **miss).text
    assert admin.send("/pages/main/misses/claim", proof, context="x").status_code == 404
    for method, end in (("PUT", "/claim"), ("DELETE", "/claim"), ("DELETE", "")):
        assert client.request(method, path + end, headers=admin.bearer).status_code == 404
    for action in ("claim", "release", "dismiss"):
        assert f"<td>{action} miss</td>" in admin.get("/pages/main/activity")


def test_a_promotion_is_previewed(client: httpx.Client, admin: Visitor) -> None:
    sent = body(record_set(won_by(record(1), config(32)), record(9)))
    client.post("/v1/pr-7/records", json=sent, headers=admin.bearer)
    only_there = body(record_set(record(1), of=context("shop.only_in_main")))
    client.post("/v1/main/records", json=only_there, headers=admin.bearer)
    proof = admin.proof("/tokens")
    page = admin.get("/pages/pr-7/compare", to="main")
    for shown in (
        "Of the 2 records in pr-7, main lacks <strong>1</strong>",
        "another config in <strong>1</strong>",
        "It adds 1 record to main and makes 1 run the config of pr-7",
        "shop.<wbr>only_in_main",
    ):
        assert shown in page
    scenarios = admin.get(f"/pages/pr-7/contexts/{context().digest}/compare", to="main")
    assert "1 is only here, 1 only there" in scenarios
    assert admin.send("/pages/pr-7/promote", proof, to="main").status_code == 303
    assert "main lacks <strong>0</strong>" in admin.get("/pages/pr-7/compare", to="main")
    assert admin.send("/pages/pr-7/promote", proof, to="pr/7").status_code == 422
    assert "<td>promote</td>" in admin.get("/pages/main/activity")


def test_a_context_is_compared_with_another_gpu(client: httpx.Client, admin: Visitor) -> None:
    other = context(device="AMD Instinct MI300X")
    sent = body(record_set(won_by(record(1, median=0.5), config(64)), of=other))
    client.post("/v1/main/records", json=sent, headers=admin.bearer)
    path = f"/pages/main/contexts/{context().digest}/compare"
    page = admin.get(path, other=other.digest)
    assert "0 scenarios run the same config, 1 another one; 1 is only here, 0 only there" in page
    assert '<td class="number">+20.0%</td>' in page, "what its config costs here"
    assert "config takes 1.20" in page
    admin.get(path, to="nowhere")
    assert admin.answer.status_code == 404


def test_tokens_are_made_and_revoked(client: httpx.Client, admin: Visitor) -> None:
    proof = admin.proof("/tokens")
    made = admin.send("/tokens", proof, name="ci", role="write", namespaces="pr-*, main", days="2")
    match = re.search(r"dejavu_([0-9a-f]{16})_[\w-]+", made.text)
    assert match
    listed = admin.get("/tokens")
    assert match.group(0) not in listed, "shown once"
    # A revoked token comes back by nothing: one click shows the button, another one presses it.
    assert listed.count('action="/tokens/revoke"') == 2
    folded = re.findall(r"<details><summary>Revoke</summary>(.*?)</details>", listed, re.DOTALL)
    assert sum('action="/tokens/revoke"' in inside for inside in folded) == 2
    writer = {"Authorization": f"Bearer {match.group(0)}"}
    sent = body(record_set())
    assert client.post("/v1/pr-1/records", json=sent, headers=writer).status_code == 200
    assert admin.send("/tokens/revoke", proof, token=match.group(1)).status_code == 303
    assert client.post("/v1/pr-1/records", json=sent, headers=writer).status_code == 401
    for wrong in ({"role": "god"}, {"namespaces": "a/b"}, {"days": "x"}, {"name": ""}):
        fields = {"name": "ci", "role": "read", "namespaces": "main", "days": "", **wrong}
        assert admin.send("/tokens", proof, **fields).status_code == 422


def test_tokens_of_many_jobs_hide_no_other(
    admin: Visitor, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_pages, "_MOST_TOKENS", 4)

    def issue(name: str, ttl: float | None) -> None:
        tokens.issue(database, ANYBODY, name, "read", ["main"], ttl)

    issue("fleet", None)
    for number in range(3):
        issue(f"job {number}", 3600.0)
    with database.write() as connection:
        last = update(token_table).where(token_table.c.name == "job 2")
        connection.execute(last.values(expires_at=epoch() - 1))
    shown = admin.get("/tokens")
    assert "job 2" not in shown
    assert "all but" not in shown
    issue("job 3", 3600.0)
    shown = admin.get("/tokens")
    assert "all but the 4 that last" in shown
    listed = [name for name in ("fleet", "job 0", "job 1", "job 3") if name in shown]
    assert listed == ["fleet", "job 1", "job 3"]


def post_paths() -> list[str]:
    miss = "/pages/main/misses"
    return [
        f"{SCENARIO}/pin", "/pages/main/promote", f"{miss}/claim",
        f"{miss}/release", f"{miss}/dismiss", "/tokens", "/tokens/revoke",
    ]  # fmt: skip


def test_no_other_site_acts_with_somebodys_login(
    client: httpx.Client, admin: Visitor, token: MakeToken
) -> None:
    before = admin.get("/pages/main/activity")
    other = Visitor(client, secret_of(token("admin")))
    fields: dict[str, Any] = {
        "config": config(64).digest, "to": "pr-9", "context": context().digest,
        "scenario": scenario(7).digest, "name": "x", "role": "admin", "namespaces": "*",
    }  # fmt: skip
    proof = admin.proof("/tokens")
    foreign = [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
    for path in post_paths():
        for guess in ("", "0" * 64, other.proof("/tokens")):
            assert admin.send(path, guess, **fields).status_code == 403, path
        for named in foreign:
            headers = {**admin.headers, **named}
            data = {**fields, "proof": proof}
            assert client.post(path, data=data, headers=headers).status_code == 403, path
        sent = client.post(path, json={**fields, "proof": proof}, headers=admin.headers)
        assert sent.status_code == 415, path
    assert admin.get("/pages/main/activity") == before


def test_a_page_shows_and_takes_what_a_role_allows(
    client: httpx.Client, admin: Visitor, token: MakeToken
) -> None:
    for role in ("read", "write"):
        visitor = Visitor(client, secret_of(token(role, "main")))
        assert 'method="post" action="/pages' not in visitor.get(SCENARIO)
        assert ("/misses/dismiss" in visitor.get("/pages/main/misses")) == (role == "write")
        visitor.get("/tokens")
        assert visitor.answer.status_code == 403
        for path in post_paths():
            if role == "write" and "/misses/" in path:
                continue
            answer = visitor.send(path, "0" * 64)
            assert answer.status_code == 403
            assert "this needs a token with role" in answer.text.lower()


def test_a_server_without_tokens_says_so_instead_of_asking_for_one(client: httpx.Client) -> None:
    for named in ({"Host": "tune.example.com"}, {"X-Forwarded-For": "10.0.0.1"}):
        answer = client.get("/pages/main", headers={**HTML, **named})
        assert answer.status_code == 401
        assert "Without tokens, " in answer.text
        assert "create a token" in answer.text


def test_errors_are_pages_for_browsers_alone(client: httpx.Client, admin: Visitor) -> None:
    page = admin.get("/pages/main/contexts/" + "0" * 24)
    assert admin.answer.status_code == 404
    assert admin.answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in admin.answer.headers["content-security-policy"]
    assert "Namespace &#39;main&#39; has no records of this context: choose another." in page
    assert "Log out" in page
    assert "<script>" not in admin.get("/pages/main", sort="<script>alert(1)</script>")
    assert admin.answer.status_code == 422
    plain = client.get("/v1/main/log?limit=x", headers=admin.headers)
    assert plain.headers["content-type"] == "application/problem+json"
    answer = client.get("/pages/main", headers={"Accept": "*/*"})
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
