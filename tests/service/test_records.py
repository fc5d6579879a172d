"""Bulk reads and writes."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from dejavu_service.services import reads, transfer
from dejavu_service.storage import record_texts
from dejavu_service.storage.database import Database
from dejavu_service.storage.tables import parts
from sqlalchemy import func, select
from support.service import (
    START,
    body,
    client_of,
    config,
    context,
    record,
    record_set,
    scenario,
)

from dejavu_cache.model.record import Pin, Record, RecordSet
from dejavu_cache.model.scenario import now

HOME = f"/v1/main/contexts/{context().digest}/records"


def post(
    client: httpx.Client, sent: RecordSet, namespace: str = "main", **headers: str
) -> dict[str, Any]:
    answer = client.post(f"/v1/{namespace}/records", json=body(sent), headers=headers)
    assert answer.status_code == 200, answer.text
    counted: dict[str, Any] = answer.json()
    return counted


def read(client: httpx.Client, namespace: str = "main") -> list[Record]:
    answer = client.get(HOME.replace("main", namespace))
    assert answer.status_code == 200, answer.text
    return list(RecordSet.model_validate_json(answer.content).records)


def test_what_was_posted_is_read_in_the_order_of_scenarios(client: httpx.Client) -> None:
    sent = [record(m) for m in (512, 2, 64)]
    assert post(client, record_set(*sent)) == {"records": 3, "measurements": 9, "beside": 0}
    assert read(client) == sorted(sent, key=lambda entry: entry.scenario.text)


def test_the_same_post_again_changes_nothing(client: httpx.Client) -> None:
    post(client, record_set(record(1), record(2)))
    before = client.get(HOME)
    assert post(client, record_set(record(1), record(2))) == {
        "records": 2,
        "measurements": 0,
        "beside": 0,
    }
    after = client.get(HOME)
    assert (after.content, after.headers["etag"]) == (before.content, before.headers["etag"])


def test_a_conflicting_claim_is_kept_beside(client: httpx.Client, database: Database) -> None:
    post(client, record_set(record(median=0.1)))
    lie = record_set(record(median=0.01, by="eve@laptop"))
    assert post(client, lie) == {"records": 1, "measurements": 0, "beside": 3}
    assert post(client, lie) == {"records": 1, "measurements": 0, "beside": 0}
    assert read(client) == [record(median=0.1)]
    with database.read() as connection:
        rows = connection.execute(
            select(parts.c.stands, func.count())
            .where(parts.c.kind == "measurement")
            .group_by(parts.c.stands)
            .order_by(parts.c.stands)
        ).all()
    assert [tuple(row) for row in rows] == [(False, 3), (True, 3)]


def test_pins_in_a_post_count_only_from_an_admin(client: httpx.Client, token: Any) -> None:
    pinned = record().model_copy(update={"pin": Pin(config=config(32), at=now(), by="ann")})
    post(client, record_set(pinned), **token("write"))
    answer = client.get(HOME, headers=token("read"))
    assert RecordSet.model_validate_json(answer.content).records[0].pin is None
    post(client, record_set(pinned), **token("admin"))
    answer = client.get(HOME, headers=token("read"))
    assert RecordSet.model_validate_json(answer.content).records[0].pinned == config(32)


def test_an_unchanged_context_is_answered_by_304(client: httpx.Client) -> None:
    post(client, record_set())
    tag = client.get(HOME).headers["etag"]
    for sent in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = client.get(HOME, headers={"If-None-Match": sent})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    post(client, record_set(record(7)))
    assert client.get(HOME, headers={"If-None-Match": tag}).status_code == 200


def test_answers_are_compressed_for_those_who_take_it(client: httpx.Client) -> None:
    post(client, record_set(*(record(m) for m in range(20))))
    small = client.get(HOME, headers={"Accept-Encoding": "gzip"})
    plain = client.get(HOME, headers={"Accept-Encoding": "gzip;q=0"})
    assert small.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert small.content == plain.content
    assert int(small.headers["content-length"]) < len(plain.content) / 5


@pytest.mark.parametrize("accepted", ["identity", "gzip"])
def test_a_long_answer_is_sent_in_pieces(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, accepted: str
) -> None:
    """Clients that read slowly would otherwise keep a copy of all of it each."""
    post(client, record_set(*(record(m, median=0.1 + m / 7) for m in range(40))))
    headers = {"Accept-Encoding": accepted}
    whole = client.get(HOME, headers=headers)
    monkeypatch.setattr(reads, "_PIECE", 500)
    divided = client.get(HOME, headers=headers)
    assert divided.content == whole.content
    for name in ("content-length", "content-encoding", "etag", "vary"):
        assert divided.headers.get(name) == whole.headers.get(name)


def test_no_read_takes_more_memory_than_a_client_does(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer may fill a context without end: it is read record by record then, and exported."""
    monkeypatch.setattr(record_texts, "MOST_BYTES", 3000)
    monkeypatch.setattr(transfer, "_MOST_BYTES", 3000)
    post(client, record_set(*(record(m, configs=5) for m in range(4))))
    refused = client.get(HOME)
    assert (refused.status_code, "quarantine list --writers" in refused.text) == (413, True)
    assert client.get(f"{HOME}/{scenario(1).digest}").status_code == 200
    lines = client.get("/v1/main/export").text.splitlines()
    exported = [item for line in lines for item in json.loads(line)["records"]]
    assert [item["scenario"]["args"]["M"] for item in exported] == [0, 1, 2, 3]
    assert len(lines) > 1
    scenarios = HOME.replace("/records", "/scenarios")
    assert client.get(scenarios).status_code == 200
    with monkeypatch.context() as patched:
        patched.setattr(record_texts, "MOST_BYTES", 300)
        assert client.get(scenarios, headers={"If-None-Match": '"an earlier one"'}).is_success
        post(client, record_set(record(4)))
        assert client.get(scenarios).status_code == 413
    for m in (1, 2, 4):
        client.delete(f"{HOME}?scenario={scenario(m).digest}")
    assert client.get(HOME).status_code == 200


def test_a_full_cache_lets_the_oldest_go(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from dejavu_service.app import create_app
    from dejavu_service.settings import ServerSettings

    monkeypatch.setattr("dejavu_service.services.reads.CACHE_BYTES", 1500)
    app = create_app(ServerSettings(database=url))
    with client_of(app) as client:
        for name in "abcd":
            of = context(name)
            client.post("/v1/main/records", json=body(record_set(of=of)))
            assert client.get(f"/v1/main/contexts/{of.digest}/records").status_code == 200
        cached = app.state.server.reader._answers
        assert 0 < sum(len(answer.body) for answer in cached.values()) <= 1500
        assert client.get(f"/v1/main/contexts/{context('a').digest}/records").status_code == 200


def test_a_record_is_read_by_its_digest(client: httpx.Client) -> None:
    post(client, record_set(record(5)))
    answer = client.get(f"{HOME}/{scenario(5).digest}")
    assert Record.model_validate_json(answer.content) == record(5)
    assert client.get(f"{HOME}/{scenario(6).digest}").status_code == 404


def test_contexts_come_in_pages(client: httpx.Client) -> None:
    everything = [context(f"kernel{number}") for number in range(5)]
    for of in everything:
        post(client, record_set(of=of))
    first = client.get("/v1/main/contexts?limit=3").json()
    second = client.get(f"/v1/main/contexts?limit=3&after={first['next']}").json()
    contexts = [*first["contexts"], *second["contexts"]]
    assert contexts == [body(entry) for entry in sorted(everything, key=lambda entry: entry.digest)]
    assert second["next"] is None
    assert client.get("/v1/main/contexts?kernel=kernel2").json()["contexts"] == [
        body(context("kernel2"))
    ]
    assert client.get("/v1/other/contexts").json() == {"contexts": [], "next": None}


def test_records_are_dropped_by_an_admin(client: httpx.Client) -> None:
    post(client, record_set(*(record(m) for m in (1, 2, 3))))
    tag = client.get(HOME).headers["etag"]
    first = f"{HOME}?scenario={scenario(1).digest}&scenario={scenario(9).digest}"
    assert client.delete(first).json() == {"deleted": 1}
    assert len(read(client)) == 2
    assert client.get(HOME, headers={"If-None-Match": tag}).status_code == 200
    assert client.delete(HOME).json() == {"deleted": 2}
    assert client.get(HOME).status_code == 404
    assert client.delete(HOME).json() == {"deleted": 0}
    post(client, record_set(record(after=(now() - START).total_seconds())))
    assert client.get(HOME).headers["etag"] != tag


def test_namespaces_know_nothing_of_each_other(client: httpx.Client) -> None:
    post(client, record_set(record(median=0.1)), "main")
    post(client, record_set(record(median=0.2)), "pr-1")
    assert read(client, "main") == [record(median=0.1)]
    assert read(client, "pr-1") == [record(median=0.2)]
