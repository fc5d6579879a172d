"""What an admin may change: pins, promotion, import."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
import pytest
from dejavu_service.services import transfer
from dejavu_service.services.records import merge_record_set
from dejavu_service.storage.database import Database
from dejavu_service.storage.tables import parts
from fastapi import FastAPI
from sqlalchemy import select
from support.service import body, config, context, measurement, record, record_set, scenario

from dejavu_cache.model.merge import merge_records
from dejavu_cache.model.record import Record, RecordSet, Winner
from dejavu_cache.model.scenario import now

PIN = f"/v1/main/contexts/{context().digest}/pins/{scenario().digest}"


def post(client: httpx.Client, sent: RecordSet, namespace: str = "main") -> None:
    assert client.post(f"/v1/{namespace}/records", json=body(sent)).status_code == 200


def read(client: httpx.Client, namespace: str = "main") -> list[Record]:
    answer = client.get(f"/v1/{namespace}/contexts/{context().digest}/records")
    return (
        list(RecordSet.model_validate_json(answer.content).records)
        if answer.status_code == 200
        else []
    )


def test_a_pin_is_put_and_taken_back(client: httpx.Client) -> None:
    post(client, record_set())
    pinned = Record.model_validate_json(
        client.put(PIN, json={"config": body(config(32)), "by": "ann"}).content
    )
    assert (pinned.pinned, pinned.pin and pinned.pin.by) == (config(32), "ann")
    assert read(client) == [pinned]
    freed = Record.model_validate_json(client.delete(PIN).content)
    assert freed.pinned is None
    assert merge_records(pinned, freed).pinned is None, (
        "a local store must learn that it was taken back"
    )
    assert read(client) == [freed]


def test_there_is_nothing_to_pin_without_a_record(client: httpx.Client) -> None:
    assert client.put(PIN, json={"config": body(config())}).status_code == 404
    assert client.delete(PIN).status_code == 404


def test_promotion_lets_the_source_stand_and_keeps_the_rest(
    client: httpx.Client, database: Database
) -> None:
    post(client, record_set(record(1, median=0.1)))
    best = config(256)
    source = Record(
        scenario=scenario(1),
        winner=Winner(config=best, at=record().winner.at),  # type: ignore[union-attr]
        measurements=(
            measurement(best, 0.01, by="bob@h200-2"),
            measurement(config(16), 0.5, by="bob@h200-2"),
        ),
    )
    post(client, record_set(source, record(2)), "pr-7")
    assert client.post("/v1/pr-7/promote", json={"to": "main"}).json() == {"records": 2}
    first, second = read(client)
    assert first.winner
    assert first.winner.config == best
    assert first.by_config[config(16)].median == 0.5
    assert first.by_config[config(32)] == record(1, median=0.1).by_config[config(32)]
    assert first.by_config[best].by == "bob@h200-2"
    assert merge_records(first, record(1, median=0.1)).winner == first.winner, (
        "local stores must take the new winner"
    )
    assert second == record(2)
    with database.read() as connection:
        beside = (
            connection.execute(
                select(parts.c.text).where(~parts.c.stands, parts.c.kind == "measurement")
            )
            .scalars()
            .all()
        )
    assert len(beside) == 1, "what was there before is kept beside"


def test_a_promoted_winner_is_later_than_one_that_is_dated_ahead(client: httpx.Client) -> None:
    ahead = Winner(config=config(32), at=now() + timedelta(hours=10))
    post(client, record_set(record(1).model_copy(update={"winner": ahead})))
    (before,) = read(client)
    post(client, record_set(record(1)), "pr-7")
    client.post("/v1/pr-7/promote", json={"to": "main"})
    (after,) = read(client)
    assert after.winner
    assert after.winner.config == record(1).winner.config != ahead.config  # type: ignore[union-attr]
    assert merge_records(before, after).winner == after.winner, "local stores must take it"


def test_promoting_again_changes_nothing(client: httpx.Client) -> None:
    post(client, record_set(record(1, median=0.1)))
    post(client, record_set(record(1, median=0.2, after=60)), "pr-7")
    client.post("/v1/pr-7/promote", json={"to": "main"})
    before = client.get(f"/v1/main/contexts/{context().digest}/records")
    client.post("/v1/pr-7/promote", json={"to": "main"})
    after = client.get(f"/v1/main/contexts/{context().digest}/records")
    assert (before.content, before.headers["etag"]) == (after.content, after.headers["etag"])
    (stored,) = read(client)
    assert stored.measurements == record(1, median=0.2, after=60).measurements
    assert stored.winner == record(1).winner, "the same config had won before"


def test_a_promotion_may_be_of_one_kernel(client: httpx.Client) -> None:
    other = context("other.kernel")
    post(client, record_set(), "pr-7")
    post(client, record_set(of=other), "pr-7")
    assert client.post("/v1/pr-7/promote", json={"to": "x", "kernel": "other.kernel"}).json() == {
        "records": 1
    }
    assert read(client, "x") == []
    nothing = {"to": "x", "kernel": "unknown"}
    assert client.post("/v1/pr-7/promote", json=nothing).status_code == 404
    assert client.post("/v1/pr-7/promote", json={"to": "pr-7"}).status_code == 422
    assert client.post("/v1/nowhere/promote", json={"to": "x"}).status_code == 404


def test_an_export_is_an_import(client: httpx.Client) -> None:
    for name in ("one", "two"):
        post(client, record_set(record(1), record(2), of=context(name)))
    exported = client.get("/v1/main/export")
    assert exported.headers["content-type"] == "application/x-ndjson"
    assert len(exported.text.splitlines()) == 2
    done = client.post("/v1/copy/import", content=exported.content)
    assert done.json() == {"sets": 2, "records": 4, "measurements": 12, "beside": 0}
    assert client.get("/v1/copy/export").content == exported.content
    again = client.post("/v1/copy/import", content=exported.content)
    assert again.json() == {"sets": 2, "records": 4, "measurements": 0, "beside": 0}
    (line,) = client.get("/v1/main/export?kernel=one").text.splitlines(keepends=True)
    assert line in exported.text.splitlines(keepends=True)


def test_an_export_of_a_large_context_is_an_import_too(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server takes 50 records at a time here, and 100,000 bytes, as do its imports."""
    monkeypatch.setattr(transfer, "_MOST_RECORDS", 50)
    monkeypatch.setattr(transfer, "_MOST_BYTES", 50_000)
    for start, configs in ((0, 1), (40, 1), (80, 20)):
        many = (record(start + m, configs=configs) for m in range(40 if configs == 1 else 15))
        post(client, record_set(*many))
    exported = client.get("/v1/main/export")
    assert len(exported.text.splitlines()) > 2
    done = client.post("/v1/copy/import", content=exported.content)
    assert (done.status_code, done.json()["records"]) == (200, 95), done.text
    home = f"contexts/{context().digest}/records"
    assert client.get(f"/v1/copy/{home}").json() == client.get(f"/v1/main/{home}").json()


def test_an_import_ends_when_the_server_stops_and_can_be_sent_again(
    app: FastAPI, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [record_set(of=context(name)).model_dump_json(exclude_none=True) for name in "abc"]

    def merge_and_stop(*arguments: Any, **options: Any) -> Any:
        app.state.server.stopping.set()
        return merge_record_set(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr("dejavu_service.services.transfer.merge_record_set", merge_and_stop)
        cut = client.post("/v1/main/import", content="\n".join(lines))
    assert (cut.status_code, cut.headers["retry-after"]) == (503, "2")
    assert "has imported 1 of 3 contexts" in cut.json()["detail"]
    app.state.server.stopping.clear()
    again = client.post("/v1/main/import", content="\n".join(lines)).json()
    assert again == {"sets": 3, "records": 3, "measurements": 6, "beside": 0}


def test_a_bad_line_imports_nothing(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_LONGEST_LINE", 100_000)
    good = record_set().model_dump_json(exclude_none=True)
    bad: dict[str, Any] = {
        "not json": "{",
        "nan": good.replace("0.1,", "NaN,"),
        "long": good + " " * 100_001,
    }
    for name, line in bad.items():
        answer = client.post("/v1/main/import", content=f"{good}\n\n{line}\n")
        assert answer.status_code in (413, 422), name
        assert "line 3" in answer.json()["detail"], name
    assert client.get("/v1/main/contexts").json()["contexts"] == []
