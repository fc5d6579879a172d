"""The worklist."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from dejavu_service.services import leases as lease_rules
from dejavu_service.services import misses as service
from dejavu_service.services import tokens
from dejavu_service.services.retention import Pruned, prune
from dejavu_service.storage import contexts as contexts_storage
from dejavu_service.storage.database import Database
from dejavu_service.storage.sql import epoch
from dejavu_service.storage.tables import contexts, leases, misses, parts
from dejavu_service.storage.tables import misses as missed
from fastapi import FastAPI
from sqlalchemy import func, select, update
from sqlalchemy.exc import DBAPIError
from support.quarantines import Token
from support.service import body, config, context, record, record_set, scenario

from dejavu_cache.model.scenario import Context


def miss(m: int, count: int = 1, kernel: str = "shop.kernels.matmul") -> dict[str, Any]:
    return {"context": body(context(kernel)), "scenario": body(scenario(m)), "count": count}


def report(client: httpx.Client, *misses: dict[str, Any]) -> int:
    counted: int = client.post("/v1/main/misses", json={"misses": misses}).json()["counted"]
    return counted


def list_misses(client: httpx.Client, query: str = "", **options: Any) -> list[tuple[int, int]]:
    misses = client.get(f"/v1/main/misses{query}", **options).json()["misses"]
    return [(item["scenario"]["args"]["M"], item["count"]) for item in misses]


def test_misses_add_up_most_wanted_first(client: httpx.Client) -> None:
    assert report(client, miss(1), miss(2, 5), miss(1)) == 7
    report(client, miss(3, 3))
    report(client, miss(1, 4))
    assert list_misses(client) == [(1, 6), (2, 5), (3, 3)]
    assert list_misses(client, "?limit=1") == [(1, 6)]
    (first, *_) = client.get("/v1/main/misses").json()["misses"]
    assert first["context"] == body(context())
    assert first["first_seen"] <= first["last_seen"]


def test_misses_that_are_alike_keep_their_order(client: httpx.Client, database: Database) -> None:
    kernels = [f"kernel{number}" for number in range(6)]
    report(client, *(miss(1, kernel=kernel) for kernel in kernels))
    with database.write() as connection:
        connection.execute(update(missed).values(last_seen=0.0))
        # A row that is written anew may lie elsewhere in the table.
        connection.execute(update(missed).where(missed.c.context_id < 4).values(count=1))
    listed = client.get("/v1/main/misses").json()["misses"]
    digests = [Context.model_validate(item["context"]).digest for item in listed]
    assert len(digests) == 6
    assert digests == sorted(digests)


def test_readers_add_new_misses_while_there_is_room(
    client: httpx.Client,
    token: Callable[..., dict[str, str]],
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "MOST_MISSES", 3)
    reader, writer = token("read"), token("write")

    def count(headers: dict[str, str], *misses: dict[str, Any], at: str = "main") -> int:
        answer = client.post(f"/v1/{at}/misses", json={"misses": misses}, headers=headers)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["counted"])

    assert count(reader, miss(1), miss(2), miss(1)) == 3
    assert count(reader, miss(1), miss(3)) == 0, "too many for the room"
    assert count(reader, miss(3)) == 1
    assert count(reader, miss(4)) == 0
    assert count(reader, miss(1), at="made-up") == 0, "the room is the whole server's"
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(contexts)).scalar() == 1
    assert count(writer, miss(5), miss(6)) == 2, "writers have twice as much room"
    assert count(writer, miss(5), miss(7)) == 0
    assert dict(list_misses(client, headers=reader)) == {1: 2, 2: 1, 3: 1, 5: 1, 6: 1}


def test_readers_add_new_contexts_while_there_is_room(
    client: httpx.Client, token: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All contexts of a namespace are loaded for its page, each with its text."""
    monkeypatch.setattr(service, "MOST_MISSED_CONTEXTS", 2)
    reader, writer = token("read"), token("write")

    def count(headers: dict[str, str], *kernels: str, at: str = "main") -> int:
        sent = {"misses": [miss(1, kernel=kernel) for kernel in kernels]}
        answer = client.post(f"/v1/{at}/misses", json=sent, headers=headers)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["counted"])

    assert count(reader, "a", "b") == 2
    assert count(reader, "c") == 0
    assert count(reader, "a", at="made-up") == 0, "the room is the whole server's"
    tuned = record_set(of=context(kernel="a"))
    client.post("/v1/main/records", json=body(tuned), headers=writer)
    assert count(reader, "c") == 1, "a context with records takes no room"
    assert count(writer, "d", "e") == 2, "writers have twice as much room"
    assert count(writer, "f") == 0
    client.post("/v1/main/records", json=body(record_set(of=context(kernel="b"))), headers=writer)
    client.post("/v1/main/records", json=body(record_set(of=context(kernel="c"))), headers=writer)
    assert count(writer, "f", "g") == 2
    admin = token("admin")
    wish = {"host": "ann@h200-1"}
    taken = client.post("/v1/main/quarantines", json=wish, headers=admin).json()
    assert taken["records"] == 3
    client.post("/v1/main/records", json=body(record_set(of=context(kernel="d"))), headers=admin)
    assert count(writer, "h") == 1, "nor does one whose records are in quarantine"


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
    tokens.revoke(database, evil.id)
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
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "2")
    assert client.post("/v1/pr-1/leases", json=wish).json()["lease"]
    client.delete(f"/v1/main/leases/{granted[0]}")
    assert client.post("/v1/main/leases", json=wish).json()["lease"]


def age(database: Database, days: float) -> None:
    with database.write() as connection:
        connection.execute(update(contexts).values(used_at=epoch() - days * 86400))
        connection.execute(update(misses).values(last_seen=epoch() - days * 86400))


def test_unused_records_go_with_their_measurements(
    client: httpx.Client, database: Database
) -> None:
    client.post("/v1/main/records", json=body(record_set(record(1), record(2))))
    assert prune(database, 30, 30) == Pruned(0, 0, 0)
    age(database, 31)
    assert prune(database, 30, 30) == Pruned(2, 1, 0)
    assert client.get(HOME).status_code == 404
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(parts)).scalar() == 0


READS = {
    "bulk": ("GET", HOME, None),
    "key": ("GET", f"{HOME}/{scenario().digest}", None),
    "scenarios": ("GET", f"/v1/main/contexts/{context().digest}/scenarios", None),
    "export": ("GET", "/v1/main/export", None),
    "export of a kernel": ("GET", f"/v1/main/export?kernel={context().kernel.name}", None),
    "revalidation": (
        "POST",
        "/v1/main/revalidation",
        {"contexts": {context().digest: {"scenarios": {scenario().digest: ""}}}},
    ),
    "page": ("GET", f"/pages/main/contexts/{context().digest}", None),
}


def test_what_was_read_by_any_route_stays(
    app: FastAPI, client: httpx.Client, database: Database
) -> None:
    client.post("/v1/main/records", json=body(record_set()))
    for name, (method, path, sent) in READS.items():
        age(database, 31)
        answer = client.request(method, path, json=sent)
        assert answer.status_code == 200, name
        app.state.server.reader.flush()
        assert prune(database, 30, 30).records == 0, name
    tag = client.get(HOME).headers["etag"]
    app.state.server.reader.flush()
    age(database, 31)
    assert client.get(HOME, headers={"If-None-Match": tag}).status_code == 304
    app.state.server.reader.flush()
    assert prune(database, 30, 30).records == 0


def test_marks_of_use_outlast_a_failure(
    app: FastAPI, client: httpx.Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.post("/v1/main/records", json=body(record_set()))
    age(database, 31)
    client.get(HOME)
    reader = app.state.server.reader
    reader.used |= {("main", f"{number:024}") for number in range(3000)}
    with monkeypatch.context() as patched:
        patched.setattr(contexts_storage, "epoch", func.no_such_function)
        with pytest.raises(DBAPIError):
            reader.flush()
    assert len(reader.used) == 3001
    reader.flush()
    assert reader.used == set()
    assert prune(database, 30, 30).records == 0


def test_pinned_and_promoted_records_stay(client: httpx.Client, database: Database) -> None:
    client.post("/v1/pr-1/records", json=body(record_set(record(1))))
    client.post("/v1/pr-1/promote", json={"to": "main"})
    client.post("/v1/pr-1/records", json=body(record_set(record(5))))
    client.post("/v1/main/records", json=body(record_set(record(2), record(3), record(5))))
    client.post("/v1/pr-1/promote", json={"to": "main"})
    pin = f"/v1/main/contexts/{context().digest}/pins/{scenario(2).digest}"
    assert client.put(pin, json={"config": body(config())}).status_code == 200
    age(database, 100)
    tag = client.get(HOME).headers["etag"]
    assert prune(database, 30, 30).records == 3
    answer = client.get(HOME, headers={"If-None-Match": tag})
    kept = [entry["scenario"]["args"]["M"] for entry in answer.json()["records"]]
    assert kept == [1, 2, 5], "also what was promoted to an equal record"
    assert client.get("/v1/main/contexts").json()["contexts"] == [body(context())]


def test_old_misses_are_forgotten(client: httpx.Client, database: Database) -> None:
    client.post(
        "/v1/main/misses",
        json={"misses": [{"context": body(context()), "scenario": body(scenario())}]},
    )
    assert prune(database, 30, 30) == Pruned(0, 0, 0)
    age(database, 31)
    assert prune(database, 30, 30) == Pruned(0, 1, 1)
    assert client.get("/v1/main/misses").json() == {"misses": []}
