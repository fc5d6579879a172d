"""Single-flight tuning: leases."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from dejavu_service.services import leases as lease_rules
from dejavu_service.storage.database import Database
from dejavu_service.storage.sql import epoch
from dejavu_service.storage.tables import leases
from sqlalchemy import update
from support.quarantines import Token
from support.service import body, context, scenario

HOME = f"/v1/main/contexts/{context().digest}/records"


def grant(
    client: httpx.Client, holder: str, ttl: float = 30, m: int = 1, namespace: str = "main"
) -> dict[str, Any]:
    wish = {"context": body(context()), "scenario": body(scenario(m)), "holder": holder, "ttl": ttl}
    answer = client.post(f"/v1/{namespace}/leases", json=wish)
    assert answer.status_code == 200, answer.text
    granted: dict[str, Any] = answer.json()
    return granted


def expire(database: Database) -> None:
    with database.write() as connection:
        connection.execute(update(leases).values(expires_at=epoch() - 1))


def test_one_holder_at_a_time(client: httpx.Client) -> None:
    first = grant(client, "a")
    second = grant(client, "b")
    assert first["lease"]
    assert first["expires_in"] == 30
    assert grant(client, "a")["lease"] == first["lease"]
    assert second["lease"] is None
    assert 25 < second["expires_in"] <= 30
    assert grant(client, "b", m=2)["lease"]
    assert grant(client, "b", namespace="pr-1")["lease"]


def test_a_revoked_token_holds_no_scenario_back(
    client: httpx.Client, database: Database, admin: Token, evil: Token
) -> None:
    def ask(token: Token, m: int) -> Any:
        wish = {"context": body(context()), "scenario": body(scenario(m)), "holder": "a"}
        sent = {**wish, "ttl": 3600}
        return client.post("/v1/main/leases", json=sent, headers=token.headers).json()["lease"]

    fleet = Token(database, "fleet")
    kept, freed = ask(fleet, 1), ask(evil, 2)
    assert kept
    assert freed
    assert ask(admin, 2) is None
    assert client.delete(f"/v1/tokens/{evil.id}", headers=admin.headers).status_code == 204
    assert ask(admin, 2) not in (None, freed)
    assert ask(admin, 1) is None


def test_an_expired_lease_is_taken_over(client: httpx.Client, database: Database) -> None:
    lost = grant(client, "a")["lease"]
    expire(database)
    lease = grant(client, "b")["lease"]
    assert lease not in (None, lost)
    assert client.put(f"/v1/main/leases/{lost}", json={"ttl": 30}).status_code == 404
    assert client.delete(f"/v1/main/leases/{lost}").status_code == 204
    assert grant(client, "c")["lease"] is None


def test_a_lease_is_renewed_until_it_expires(client: httpx.Client, database: Database) -> None:
    lease = grant(client, "a", ttl=5)["lease"]
    assert client.put(f"/v1/main/leases/{lease}", json={"ttl": 500}).json() == {
        "lease": lease,
        "expires_in": 500,
    }
    assert grant(client, "b")["expires_in"] > 400
    expire(database)
    assert client.put(f"/v1/main/leases/{lease}", json={"ttl": 500}).status_code == 404


def test_a_released_lease_is_free(client: httpx.Client) -> None:
    lease = grant(client, "a")["lease"]
    assert client.put(f"/v1/pr-1/leases/{lease}", json={"ttl": 5}).status_code == 404
    assert client.delete(f"/v1/main/leases/{lease}").status_code == 204
    assert client.delete(f"/v1/main/leases/{lease}").status_code == 204
    assert grant(client, "b")["lease"]


def test_of_many_racers_one_gets_it(client: httpx.Client) -> None:
    start = threading.Barrier(8)

    def race(holder: int) -> bool:
        start.wait()
        return grant(client, f"racer {holder}")["lease"] is not None

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(race, range(8))) == 1


def test_a_token_holds_a_limited_number_of_leases(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_rules, "MOST_LEASES", 3)
    granted = [grant(client, f"process {m}", m=m)["lease"] for m in range(3)]
    wish = {"context": body(context()), "scenario": body(scenario(9)), "holder": "x", "ttl": 30}
    refused = client.post("/v1/main/leases", json=wish)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "10")
    assert client.post("/v1/pr-1/leases", json=wish).json()["lease"]
    client.delete(f"/v1/main/leases/{granted[0]}")
    assert client.post("/v1/main/leases", json=wish).json()["lease"]
