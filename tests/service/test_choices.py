"""What an admin may change: pins, promotion, import."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from dejavu_service.services import transfer
from dejavu_service.services.records import merge_record_set
from fastapi import FastAPI
from support.service import body, context, record, record_set, scenario

from dejavu_cache.model.record import Record, RecordSet

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


def test_a_promotion_may_be_of_one_kernel_or_context(client: httpx.Client) -> None:
    other = context("other.kernel")
    post(client, record_set(), "pr-7")
    post(client, record_set(of=other), "pr-7")
    assert client.post("/v1/pr-7/promote", json={"to": "x", "kernel": "other.kernel"}).json() == {
        "records": 1
    }
    assert read(client, "x") == []
    assert client.post(
        "/v1/pr-7/promote", json={"to": "x", "contexts": [context().digest]}
    ).json() == {"records": 1}
    assert read(client, "x") == [record()]
    for nothing in ({"to": "x", "contexts": ["0" * 24]}, {"to": "x", "kernel": "unknown"}):
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
