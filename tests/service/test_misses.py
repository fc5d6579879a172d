"""The worklist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from dejavu_service.services import misses as service
from dejavu_service.storage.database import Database
from dejavu_service.storage.tables import contexts
from dejavu_service.storage.tables import misses as missed
from sqlalchemy import func, select, update
from support.service import body, context, record_set, scenario

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


def test_misses_are_listed_by_kernel_and_namespace(client: httpx.Client) -> None:
    report(client, miss(1), miss(2, kernel="other.kernel"))
    assert list_misses(client, "?kernel=other.kernel") == [(2, 1)]
    assert client.get("/v1/pr-1/misses").json() == {"misses": []}


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
    assert count(reader, miss(1, 5), miss(3)) == 5, "too many for the room: only what is known"
    assert count(reader, miss(3)) == 1
    assert count(reader, miss(4)) == 0
    assert count(reader, miss(1), at="made-up") == 0, "the room is the whole server's"
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(contexts)).scalar() == 1
    assert count(writer, miss(5), miss(6)) == 2, "writers have twice as much room"
    assert count(writer, miss(5), miss(7)) == 1
    assert dict(list_misses(client, headers=reader)) == {1: 7, 2: 1, 3: 1, 5: 2, 6: 1}


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
    assert count(reader, "b") == 1
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


def test_readers_report_no_miss_that_is_endless(
    client: httpx.Client, token: Callable[..., dict[str, str]]
) -> None:
    long = miss(1)
    long["context"]["environment"]["variables"] = {"TRITON_X": "x" * 10_000}
    for role, counted in (("read", 1), ("write", 2)):
        sent = {"misses": [long, miss(2)]}
        answer = client.post("/v1/main/misses", json=sent, headers=token(role))
        assert answer.json() == {"counted": counted}, role
