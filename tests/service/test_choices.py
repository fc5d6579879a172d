"""What an admin may change: pins, promotion, import."""

from functools import partial
from typing import Any

import httpx
import pytest
from dejavu_service.app import create_app
from dejavu_service.services import transfer
from dejavu_service.services.records import merge_record_set
from dejavu_service.settings import ServerSettings
from dejavu_service.storage import merging
from fastapi import FastAPI
from support.service import (
    RECORDS,
    body,
    client_of,
    config,
    context,
    measurement,
    post,
    read,
    read_one,
    record,
    record_set,
    scenario,
)

from dejavu_cache.model.record import (
    MOST_LAUNCHES,
    MOST_MEASUREMENTS,
    Failure,
    Measurement,
    Record,
    RecordedLaunch,
)
from dejavu_cache.model.scenario import Config, now


def test_a_promotion_may_be_of_one_kernel(client: httpx.Client) -> None:
    other = context("other.kernel")
    post(client, to="pr-7")
    post(client, of=other, to="pr-7")
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
        post(client, record(1), record(2), of=context(name))
    exported = client.get("/v1/main/export")
    assert exported.headers["content-type"] == "application/x-ndjson"
    assert len(exported.text.splitlines()) == 2
    done = client.post("/v1/copy/import", content=exported.content)
    assert done.json() == {"sets": 2, "records": 4, "measurements": 12, "conflicting": 0}
    assert client.get("/v1/copy/export").content == exported.content
    again = client.post("/v1/copy/import", content=exported.content)
    assert again.json() == {"sets": 2, "records": 4, "measurements": 0, "conflicting": 0}
    (line,) = client.get("/v1/main/export?kernel=one").text.splitlines(keepends=True)
    assert line in exported.text.splitlines(keepends=True)


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
    assert again == {"sets": 3, "records": 3, "measurements": 6, "conflicting": 0}


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


@pytest.mark.parametrize("how", ["posted", "promoted"])
def test_another_writers_launches_displace_none(client: httpx.Client, how: str) -> None:
    used = RecordedLaunch(wheel="triton 3.6.0 cp312 x86_64", signature={"a_ptr": "*fp16"})
    post(client, record(1).model_copy(update={"launches": (used,)}))
    invented = [RecordedLaunch(wheel="!", attrs={"!": str(number)}) for number in range(64)]
    sent = Record(scenario=scenario(1), launches=tuple(invented))
    if how == "posted":
        post(client, sent)
    else:
        post(client, sent, to="pr-1")
        client.post("/v1/pr-1/promote", json={"to": "main"}).raise_for_status()
    launches = read_one(client).launches or ()
    assert used in launches
    assert len(launches) == MOST_LAUNCHES


def test_a_full_record_takes_no_more_and_loses_nothing(url: str) -> None:
    with client_of(create_app(ServerSettings(database=url))) as client:
        post(client, record(1))
        invented = tuple(
            Measurement(config=Config(params={"x": number}), median=1.0, at=now())
            for number in range(MOST_MEASUREMENTS)
        )
        middle = MOST_MEASUREMENTS // 2  # a request has 100,000 values at most
        for half, refused in (
            (invented[:middle], 0),
            (invented[middle:], len(record(1).by_config)),
        ):
            answer = post(client, Record(scenario=scenario(1), measurements=half))
            assert answer.get("refused", 0) == refused
        stored = read_one(client)
        assert len(stored.measurements) == MOST_MEASUREMENTS
        assert set(record(1).by_config) <= set(stored.by_config)
        assert stored.winner == record(1).winner
        more = post(client, Record(scenario=scenario(1), measurements=(measurement(config(4096)),)))
        assert more["refused"] == 1


def with_cases(block: int, characters: int) -> Record:
    """Return a record with one config, whose cases have long names."""
    cases = {f"{number}".zfill(400): 1.0 for number in range(characters // 410)}
    measured = measurement(config(block)).model_copy(update={"cases": cases})
    return Record(scenario=scenario(1), measurements=(measured,))


def test_a_record_does_not_grow_beyond_what_clients_read(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused leaves nothing behind, and the record goes on."""
    monkeypatch.setattr(merging, "MOST_RECORD_CHARACTERS", 50_000)
    for block in (16, 32):
        post(client, with_cases(block, 20_000))
    post(client, with_cases(64, 20_000), to="pr-1")
    before = client.get(RECORDS).content
    grown = record_set(record(2), with_cases(64, 20_000))
    promote = partial(client.post, "/v1/pr-1/promote", json={"to": "main"})
    refusals = [client.post("/v1/main/records", json=body(grown)), promote()]
    with monkeypatch.context() as few:
        few.setattr(merging, "MOST_RECORD_CHARACTERS", 500_000)
        few.setattr(merging, "MOST_MEASUREMENTS", 2)
        refusals.append(promote())
    for refused in refusals:
        assert refused.status_code == 413
        assert f"the record of {scenario(1)} would have" in refused.json()["detail"]
    assert client.get(RECORDS).content == before
    monkeypatch.setattr(merging, "MOST_RECORD_CHARACTERS", 10_000)  # as of a later version
    wrong = measurement(config(16), None).model_copy(
        update={"failure": Failure(kind="wrong", reason="it differs")}
    )
    counts = post(client, Record(scenario=scenario(1), measurements=(wrong,)))
    assert counts["measurements"] == 1, "it shrinks"
    assert len(client.get(RECORDS).content) < len(before)
