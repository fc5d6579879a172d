"""The worklist."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
from fastapi import FastAPI
from sqlalchemy import func, select, update
from sqlalchemy.exc import DBAPIError
from support.service import (
    HOME,
    RECORDS,
    Token,
    body,
    context,
    lease_wish,
    miss,
    pin,
    post,
    record,
    record_set,
    scenario,
)

from dejavu_cache.model.scenario import Context


def report(
    client: httpx.Client, headers: dict[str, str], *misses: dict[str, Any], at: str = "main"
) -> int:
    """Report misses with a token, and return how many were counted."""
    answer = client.post(f"/v1/{at}/misses", json={"misses": misses}, headers=headers)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["counted"])


def list_misses(client: httpx.Client, query: str = "", **options: Any) -> list[tuple[int, int]]:
    misses = client.get(f"/v1/main/misses{query}", **options).json()["misses"]
    return [(item["scenario"]["args"]["M"], item["count"]) for item in misses]


def test_misses_add_up_and_what_is_worth_most_is_first(client: httpx.Client) -> None:
    worth = 1.0, 3.0  # milliseconds at least, and seconds that the tune takes
    known = miss(3, 5000, 2.0, *worth), miss(4, 500, 4.0, *worth)
    assert report(client, {}, miss(1, 9000), miss(2, 1500), *known, miss(2)) == 16_001
    report(client, {}, miss(5, 2000, 6.0, *worth))
    assert list_misses(client) == [(5, 2000), (3, 5000), (1, 9000), (2, 1501), (4, 500)]
    assert list_misses(client, "?limit=1") == [(5, 2000)]
    page = client.get("/pages/main/misses").text
    assert all(text in page for text in ("12.0 s", "at least 2.00 s", "unknown", "not worth it"))
    later = miss(1, 1, 1.0, *worth), miss(3, 1, 2.0, *worth), miss(3, 1, 0.0, *worth)
    report(client, {}, miss(4, 500), *later, {**miss(1), "field_of_a_later_version": 1})
    assert list_misses(client) == [(5, 2000), (1, 9002), (4, 1000), (2, 1501), (3, 5002)]
    (first, *_, unknown, _) = client.get("/v1/main/misses").json()["misses"]
    assert (first["context"], unknown["saving"]) == (body(context()), None)
    assert (first["first_seen"] <= first["last_seen"], first["said_by"]) == (True, "anybody")
    assert first["saving"] == {"expected": 6.0, "at_least": 1.0, "takes": 3.0}
    for lie in ((-1.0, *worth), (1.0, 1.0, 1e300), (1.0, "1", 1.0), (1.0,)):
        assert client.post("/v1/main/misses", json={"misses": [miss(1, 1, *lie)]}).is_client_error


def test_misses_that_are_alike_keep_their_order(client: httpx.Client, database: Database) -> None:
    kernels = [f"kernel{number}" for number in range(6)]
    report(client, {}, *(miss(1, of=context(kernel)) for kernel in kernels))
    with database.write() as connection:
        connection.execute(update(misses).values(last_seen=0.0))
        # A row that is written anew may lie elsewhere in the table.
        connection.execute(update(misses).where(misses.c.context_id < 4).values(count=1))
    listed = client.get("/v1/main/misses").json()["misses"]
    digests = [Context.model_validate(item["context"]).digest for item in listed]
    assert digests == sorted(context(kernel).digest for kernel in kernels)


def test_readers_add_new_misses_while_there_is_room(
    client: httpx.Client, token: Callable[..., dict[str, str]], database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(service, "MOST_MISSES", 3)
    reader, writer = token("read"), token("write")
    count = partial(report, client)
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
    count = partial(report, client)
    reader, writer, admin = token("read"), token("write"), token("admin")
    a, b, c, d, e, f, g, h = (miss(1, of=context(name)) for name in "abcdefgh")
    assert count(reader, a, b) == 2
    assert count(reader, c) == 0
    assert count(reader, a, at="made-up") == 0, "the room is the whole server's"
    post(client, of=context("a"), headers=writer)
    assert count(reader, c) == 1, "a context with records takes no room"
    assert count(writer, d, e) == 2, "writers have twice as much room"
    assert count(writer, f) == 0
    for name in "bc":
        post(client, of=context(name), headers=writer)
    assert count(writer, f, g) == 2
    wish = {"host": "ann@h200-1"}
    taken = client.post("/v1/main/quarantines", json=wish, headers=admin).json()
    assert taken["records"] == 3
    post(client, of=context("d"), headers=admin)
    assert count(writer, h) == 1, "nor does one whose records are in quarantine"


def test_a_writer_makes_no_list_longer_than_clients_read(client: httpx.Client) -> None:
    """A context is refused, and a miss not counted, if it is much longer than a real one."""

    def of(kernel: str, characters: int) -> Context:
        known = body(context(kernel))
        known["environment"]["variables"] = {"TRITON_X": "x" * characters}
        return Context.model_validate(known)

    long = body(record_set(of=of("long", 70_000)))
    refused = client.post("/v1/main/records", json=long)
    assert (refused.status_code, "the context has" in refused.text) == (422, True)
    assert report(client, {}, miss(1, of=of("long", 70_000)), miss(2)) == 1
    post(client, of=of("usual", 60_000))
    listed = client.get("/v1/main/contexts").json()["contexts"]
    assert [entry["kernel"]["name"] for entry in listed] == ["usual"]


LEASES = {
    "one holder at a time": "a gets; b waits; a keeps; b waits",
    "one of each scenario and namespace": "a gets; b gets 2; b gets pr-1",
    "none of another token that says the same name": "a gets; stranger waits; a keeps",
    "one that has expired": "a gets; time passes; b gets; a fails; a releases; c waits",
    "one of a clock that was put back": "a gets; clock turns; b gets; c waits; a fails",
    "none anew that has expired and is renewed": "a gets; time passes; a fails",
    "none that is renewed": "a gets; a renews; b waits",
    "one that was released": "a gets; a releases; a releases; b gets",
    "none that others release or renew elsewhere": "a gets; a fails pr-1; a releases pr-1; b waits",
    "that of a revoked token": "a gets; stranger gets 2; stranger leaves; a gets 2; b waits",
}
"""Processes a, b and c have one token, and a stranger that calls itself a has a token of his own.

A step may end with a scenario or a namespace that is not the usual one.
"""


class Leases:
    """Processes that ask for leases, and what each of them holds."""

    def __init__(self, client: httpx.Client, database: Database) -> None:
        self._client, self._database, self._ttl = client, database, 30
        self._fleet, self._stranger = Token(database, "fleet"), Token(database, "stranger")
        self._held: dict[str, str] = {}

    def act(self, step: str) -> None:
        who, verb, where = f"{step} ".split(" ")[:3]
        m, at = (int(where), "main") if where.isdigit() else (1, where or "main")
        getattr(self, verb)(who, m, at)

    def _ask(self, method: str, path: str, who: str, at: str, sent: object = None) -> Any:
        token = self._stranger if who == "stranger" else self._fleet
        path = f"/v1/{at}/leases{path}"
        return self._client.request(method, path, json=sent, headers=token)

    def _wish(self, who: str, m: int, at: str) -> Any:
        holder = "a" if who == "stranger" else who
        answer = self._ask("POST", "", who, at, lease_wish(m, holder, self._ttl))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def gets(self, who: str, m: int, at: str) -> None:
        granted = self._wish(who, m, at)
        assert granted["lease"] not in (None, *self._held.values())
        assert granted["expires_in"] == self._ttl
        self._held[who] = granted["lease"]

    def keeps(self, who: str, m: int, at: str) -> None:
        assert self._wish(who, m, at)["lease"] == self._held[who]

    def waits(self, who: str, m: int, at: str) -> None:
        answer = self._wish(who, m, at)
        assert answer["lease"] is None
        assert self._ttl - 5 < answer["expires_in"] <= self._ttl

    def renews(self, who: str, m: int, at: str) -> None:
        self._ttl = 500
        renewed = self._ask("PUT", f"/{self._held[who]}", who, at, {"ttl": self._ttl})
        assert renewed.json() == {"lease": self._held[who], "expires_in": self._ttl}

    def fails(self, who: str, m: int, at: str) -> None:
        renewed = self._ask("PUT", f"/{self._held[who]}", who, at, {"ttl": self._ttl})
        assert renewed.status_code == 404

    def releases(self, who: str, m: int, at: str) -> None:
        assert self._ask("DELETE", f"/{self._held[who]}", who, at).status_code == 204

    def passes(self, who: str, *_: object) -> None:
        left = -1 if who == "time" else 86_400
        with self._database.write() as connection:
            connection.execute(update(leases).values(expires_at=epoch() + left))

    turns = passes

    def leaves(self, *_: object) -> None:
        tokens.revoke(self._database, self._stranger.id)


@pytest.mark.parametrize("steps", LEASES.values(), ids=LEASES)
def test_a_process_gets(steps: str, client: httpx.Client, database: Database) -> None:
    held = Leases(client, database)
    for step in steps.split("; "):
        held.act(step)


def test_of_many_racers_one_gets_it(client: httpx.Client) -> None:
    start = threading.Barrier(8)

    def race(holder: int) -> bool:
        start.wait()
        wish = lease_wish(holder=f"racer {holder}")
        return client.post("/v1/main/leases", json=wish).json()["lease"] is not None

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(race, range(8))) == 1


def test_a_token_holds_a_limited_number_of_leases(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_rules, "MOST_LEASES", 3)
    granted = [
        client.post("/v1/main/leases", json=lease_wish(m, f"process {m}")).json()["lease"]
        for m in range(3)
    ]
    wish = lease_wish(9, "x")
    refused = client.post("/v1/main/leases", json=wish)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "2")
    assert client.post("/v1/pr-1/leases", json=wish).json()["lease"]
    client.delete(f"/v1/main/leases/{granted[0]}")
    assert client.post("/v1/main/leases", json=wish).json()["lease"]


def age(database: Database, days: float) -> None:
    with database.write() as connection:
        connection.execute(update(contexts).values(used_at=epoch() - days * 86400))
        connection.execute(update(misses).values(last_seen=epoch() - days * 86400))


def test_unused_records_go_with_their_measurements_and_old_misses(
    client: httpx.Client, database: Database
) -> None:
    post(client, record(1), record(2))
    report(client, {}, miss(3, of=context("missed")))
    assert prune(database, 30, 30) == Pruned(0, 0, 0)
    age(database, 31)
    assert prune(database, 30, 30) == Pruned(records=2, contexts=2, misses=1)
    assert client.get(RECORDS).status_code == 404
    assert list_misses(client) == []
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(parts)).scalar() == 0


READS = {
    "bulk": ("GET", RECORDS, None),
    "key": ("GET", f"{RECORDS}/{scenario().digest}", None),
    "scenarios": ("GET", f"{HOME}/scenarios", None),
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
    post(client)
    for name, (method, path, sent) in READS.items():
        age(database, 31)
        answer = client.request(method, path, json=sent)
        assert answer.status_code == 200, name
        app.state.server.reader.flush()
        assert prune(database, 30, 30).records == 0, name
    tag = client.get(RECORDS).headers["etag"]
    app.state.server.reader.flush()
    age(database, 31)
    assert client.get(RECORDS, headers={"If-None-Match": tag}).status_code == 304
    app.state.server.reader.flush()
    assert prune(database, 30, 30).records == 0


def test_marks_of_use_outlast_a_failure(
    app: FastAPI, client: httpx.Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    post(client)
    age(database, 31)
    client.get(RECORDS)
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
    for promoted in (record(1), record(5)):
        post(client, promoted, to="pr-1")
        client.post("/v1/pr-1/promote", json={"to": "main"})
        post(client, record(2), record(3), record(5))
    assert pin(client, 64, 2).status_code == 200
    age(database, 100)
    tag = client.get(RECORDS).headers["etag"]
    assert prune(database, 30, 30).records == 3
    answer = client.get(RECORDS, headers={"If-None-Match": tag})
    kept = [entry["scenario"]["args"]["M"] for entry in answer.json()["records"]]
    assert kept == [1, 2, 5], "also what was promoted to an equal record"
    assert client.get("/v1/main/contexts").json()["contexts"] == [body(context())]
