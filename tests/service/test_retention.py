"""What goes when nobody uses it, and what stays."""

from __future__ import annotations

import httpx
import pytest
from dejavu_service.services.retention import Pruned, prune
from dejavu_service.storage import contexts as contexts_storage
from dejavu_service.storage.database import Database
from dejavu_service.storage.sql import epoch
from dejavu_service.storage.tables import contexts, misses, parts
from fastapi import FastAPI
from sqlalchemy import func, select, update
from sqlalchemy.exc import DBAPIError
from support.service import body, config, context, record, record_set, scenario

HOME = f"/v1/main/contexts/{context().digest}/records"


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
