"""Identity tokens of other issuers, exchanged for short-lived tokens of this server."""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from dejavu_service import identities
from dejavu_service.app import create_app
from dejavu_service.errors import UnauthenticatedError, UnavailableError
from dejavu_service.identities import ClaimRule, IdentityExchange
from dejavu_service.services import retention
from dejavu_service.settings import ServerSettings
from dejavu_service.storage.database import Database
from dejavu_service.storage.tables import tokens as token_table
from sqlalchemy import func, select, update
from support.issuer import SUBJECT, Issuer, write_rules
from support.service import body, client_of, record_set, seconds_until

from dejavu_cache.errors import SettingsError

RULES = """
[[issuers.rules]]
claims = { repository = "acme/kernels", ref = "refs/heads/main" }
grants = { main = "write" }
minutes = 30

[[issuers.rules]]
claims = { repository = "acme/kernels", ref = "refs/pull/*" }
grants = { "pr-*" = "write", main = "read" }
"""


@pytest.fixture
def rules(issuer: Issuer, tmp_path: Path) -> Path:
    return write_rules(tmp_path / "oidc.toml", issuer, RULES)


@pytest.fixture
def client(sqlite_url: str, rules: Path) -> Iterator[httpx.Client]:
    with client_of(create_app(ServerSettings(database=sqlite_url, oidc=rules))) as opened:
        yield opened


def exchange(client: httpx.Client, token: str) -> httpx.Response:
    return client.post("/v1/token-exchange", json={"token": token})


def test_a_job_gets_what_its_rule_says(client: httpx.Client, issuer: Issuer) -> None:
    answer = exchange(client, issuer.token())
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert made["grants"] == {"pr-*": "write", "main": "read"}
    assert made["name"] == SUBJECT
    mine = {"Authorization": f"Bearer {made['token']}"}
    sent = body(record_set())
    assert client.post("/v1/pr-7/records", json=sent, headers=mine).status_code == 200
    assert client.post("/v1/main/records", json=sent, headers=mine).status_code == 403
    assert client.get("/v1/log", headers=mine).status_code == 403
    main = exchange(client, issuer.token(ref="refs/heads/main")).json()
    assert main["grants"] == {"main": "write"}
    lives = [seconds_until(item["expires"]) for item in (made, main)]
    assert [round(seconds / 60) for seconds in lives] == [60, 30]


def test_an_identity_token_is_exchanged_once_by_all_replicas(
    client: httpx.Client, issuer: Issuer, sqlite_url: str, rules: Path
) -> None:
    stolen = issuer.token()
    assert exchange(client, stolen).status_code == 201
    again = exchange(client, stolen)
    assert (again.status_code, "exchanged before" in again.text) == (401, True)
    with client_of(create_app(ServerSettings(database=sqlite_url, oidc=rules))) as replica:
        assert exchange(replica, stolen).status_code == 401
        assert exchange(replica, issuer.token()).status_code == 201
    assert exchange(client, issuer.token(exp=int(time.time()) + 31 * 86400)).status_code == 401


UNFIT: list[tuple[dict[str, Any], int]] = [
    ({"aud": "https://other.example.com"}, 401), ({"aud": None}, 401),
    ({"exp": int(time.time()) - 60}, 401), ({"exp": None}, 401), ({"exp": "soon"}, 401),
    ({"iat": int(time.time()) + 3600}, 401), ({"nbf": int(time.time()) + 3600}, 401),
    ({"iss": "https://token.actions.githubusercontent.com"}, 401), ({"sub": None}, 401),
    ({"repository": "acme/other"}, 403), ({"repository": "acme/kernels-evil"}, 403),
    ({"repository": ["acme/kernels"]}, 403), ({"repository": None}, 403),
    ({"ref": "refs/heads/mains"}, 403), ({"ref": "refs/tags/refs/pull/"}, 403),
]  # fmt: skip


def test_what_does_not_fit_gets_nothing(client: httpx.Client, issuer: Issuer) -> None:
    for claims, status in UNFIT:
        answer = exchange(client, issuer.token(**claims))
        assert answer.status_code == status, (claims, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert "token" not in answer.json()


def test_no_token_is_forged(client: httpx.Client, issuer: Issuer, stranger: Issuer) -> None:
    stranger.make_key("theirs")
    elsewhere = {"jku": f"{stranger.url}/keys"}
    good = issuer.token()
    head, content, signature = good.split(".")

    def encode(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    claims = jwt.decode(good, options={"verify_signature": False})
    shared = jwt.encode(claims, "x" * 64, algorithm="HS256", headers={"kid": "first"})
    forged = [
        *(stranger.token(key, elsewhere, iss=issuer.url) for key in stranger.keys),
        f"{encode({'alg': 'none', 'kid': 'first'})}.{content}.",
        f"{encode({'alg': 'None', 'kid': 'first'})}.{content}.{signature}",
        shared,
        f"{head}.{encode({**claims, 'ref': 'refs/heads/main'})}.{signature}",
        f"{head}.{content}.",
        jwt.encode(claims, issuer.keys["first"], algorithm="RS256"),
        issuer.token(header={"kid": "../first"}),
        *("", "a.b.c", "...", "é.é.é", "\x00", f"{head}.{encode([1])}.{signature}"),
        f"{head}.{'A' * 20_000}.{signature}",
        f"{encode({'alg': 'RS256', 'kid': 'first', 'crit': ['x']})}.{content}.{signature}",
        f"{head}.{base64.urlsafe_b64encode(b'[' * 9000).decode().rstrip('=')}.{signature}",
    ]
    for token in forged:
        answer = exchange(client, token)
        assert answer.status_code in (400, 401, 422), (token[:80], answer.text)
    assert exchange(client, "A" * 1_000_000).status_code == 413
    assert exchange(client, good).status_code == 201
    assert not stranger.fetches, "a token said where its key is"


def test_keys_are_cached_and_followed_when_they_change(
    client: httpx.Client, issuer: Issuer, rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = issuer.fetches
    for _ in range(3):
        assert exchange(client, issuer.token()).status_code == 201
    issuer.make_key("second")
    assert exchange(client, issuer.token("second")).status_code == 201
    issuer.make_key("third")
    assert exchange(client, issuer.token("third")).status_code == 401, "asked a moment ago"
    assert issuer.fetches == before + 2
    patient = IdentityExchange(rules)
    assert patient._verify(issuer.token())
    monkeypatch.setattr(identities, "_PAUSE", 0.0)
    following = IdentityExchange(rules)
    assert following._verify(issuer.token())
    issuer.make_key("fourth")
    assert following._verify(issuer.token("fourth")), "asked again for a key that is new"
    monkeypatch.setattr(identities, "_FRESH", 1e-6)
    forgetting = IdentityExchange(rules)
    withdrawn = issuer.token("third")
    assert forgetting._verify(withdrawn)
    del issuer.keys["third"]
    with pytest.raises(UnauthenticatedError):
        forgetting._verify(withdrawn)
    monkeypatch.setattr(issuer, "broken", True)
    with pytest.raises(UnavailableError):
        forgetting._verify(issuer.token())
    before = issuer.fetches
    keys = [patient._find_key(patient._issuers[issuer.url], "unknown") for _ in range(3)]
    assert (keys, issuer.fetches) == ([None] * 3, before + 1), "it did not answer a moment ago"


def test_keys_that_sign_nothing_count_for_nothing(
    client: httpx.Client, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    symmetric = {"kty": "oct", "kid": "second", "k": "eHh4" * 16}
    keys = {"keys": [symmetric, {**issuer.public("first"), "use": "enc"}]}
    monkeypatch.setattr(issuer, "answer", lambda write: write(json.dumps(keys).encode()))
    assert exchange(client, issuer.token()).status_code == 401
    claims = jwt.decode(issuer.token(), options={"verify_signature": False})
    shared = jwt.encode(claims, b"xxx" * 16, algorithm="HS256", headers={"kid": "second"})
    assert exchange(client, shared).status_code == 401


def test_without_rules_nothing_is_exchanged(sqlite_url: str, issuer: Issuer) -> None:
    with client_of(create_app(ServerSettings(database=sqlite_url))) as client:
        assert exchange(client, issuer.token()).status_code == 404


@pytest.mark.parametrize(
    "change",
    [
        ('"write"', '"owner"'),
        ('"pr-*"', '"*-pr"'),
        ("minutes = 30", "minutes = 10_000"),
        ("claims = { repository", "claim = { repository"),
        ('claims = { repository = "acme/kernels", ref = "refs/heads/main" }', "claims = {}"),
        ("audience", "audiences"),
        ("[[issuers]]", "[[issuer]]"),
        ("minutes = 30", "minutes = "),
        *(
            ('jwks = "http://127.0.0.1', f'jwks = "{elsewhere}')
            for elsewhere in ("http://keys.example.com", "file:///etc", "http://localhost.evil")
        ),
    ],
    ids=str,
)
def test_rules_that_are_not_understood_stop_the_server(
    rules: Path, change: tuple[str, str]
) -> None:
    """Nor are keys read from anywhere but over HTTPS, or from this machine."""
    IdentityExchange(rules)
    rules.write_text(rules.read_text().replace(*change, 1))
    with pytest.raises(SettingsError, match="jwks" if "jwks" in change[0] else r"oidc\.toml"):
        IdentityExchange(rules)


@pytest.mark.parametrize("namespace", ["pr-{n}*", "pr-{n}x*", "{a}{n}"])
def test_no_rule_grants_what_is_granted_for_other_claims(namespace: str) -> None:
    claims = {"a": "{a}", "n": "{n}"}
    with pytest.raises(ValueError, match="of other claims"):
        ClaimRule(claims=claims, grants={namespace: "write"})
    rule = ClaimRule(claims=claims, grants={"{a}-{n}": "write"}, name="x")
    assert rule.match({"a": "x-1", "n": "2"}) is None
    assert rule.match({"a": "x", "n": "1-2"}) is None
    assert rule.match({"a": "x", "n": "2"}) == ("x", {"x-2": "write"})


def test_tokens_expire_and_are_pruned_long_after_but_never_all(
    client: httpx.Client, issuer: Issuer, sqlite_url: str
) -> None:
    for _ in range(3):
        made = exchange(client, issuer.token()).json()
    mine = {"Authorization": f"Bearer {made['token']}"}
    assert client.get("/v1/main/contexts", headers=mine).status_code == 200
    database = Database(sqlite_url)

    def count() -> int:
        retention.prune(database, 90, 30)
        with database.read() as connection:
            return connection.execute(select(func.count()).select_from(token_table)).scalar_one()

    assert count() == 3
    with database.write() as connection:
        connection.execute(update(token_table).values(expires_at=1.0))
    assert client.get("/v1/main/contexts", headers=mine).status_code == 401
    assert count() == 3, "without any token, the server would answer without one"
    exchange(client, issuer.token()).raise_for_status()
    assert count() == 1
    database.close()


Write = Callable[[bytes], Any]


def test_exchanges_that_wait_for_an_issuer_keep_no_other_request_waiting(
    client: httpx.Client, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "_TIMEOUT", 60.0)
    asked, over = threading.Event(), threading.Event()

    def hang(_: Write) -> None:
        asked.set()
        over.wait(60)

    monkeypatch.setattr(issuer, "answer", hang)
    with ThreadPoolExecutor(50) as pool:
        waiting = [pool.submit(exchange, client, issuer.token()) for _ in range(50)]
        assert asked.wait(240)
        assert client.get("/v1/main/contexts").status_code == 200
        assert not any(exchanged.done() for exchanged in waiting)
        over.set()
        assert {exchanged.result().status_code for exchanged in waiting} == {503}


def drip(write: Write) -> None:
    """Write until the server leaves."""
    while True:
        write(b" ")
        time.sleep(0.05)


def test_an_answer_without_keys_counts_as_none(
    client: httpx.Client, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ("{}", '{"keys": null}', '{"keys": 5}', "[" * 100_000, "7", " " * 2**21)
    for answer in [*(lambda write, text=text: write(text.encode()) for text in texts), drip]:
        with monkeypatch.context() as patched:
            patched.setattr(issuer, "answer", answer)
            patched.setattr(identities, "_TIMEOUT", 0.5 if answer is drip else 60.0)
            refused = exchange(client, issuer.token())
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert "cannot be read" in refused.json()["detail"]
    assert exchange(client, issuer.token()).status_code == 201, "the issuer is asked again"
