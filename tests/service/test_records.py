"""Bulk reads and writes."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from dejavu_client.http.errors import UnreachableError
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.sender import Spool
from dejavu_service import monitoring, server
from dejavu_service.app import create_app
from dejavu_service.pages import rendering
from dejavu_service.services import reads, transfer
from dejavu_service.services import records as service
from dejavu_service.services.reads import RecordReader
from dejavu_service.services.records import tag_of
from dejavu_service.services.requests import MOST_RECORDS
from dejavu_service.settings import ServerSettings
from dejavu_service.storage import contexts, record_texts
from dejavu_service.storage.merging import Part, StoredRecord
from hypothesis import given
from support import strategies
from support.bad_server import BadServer, hang
from support.service import (
    HOME,
    RECORDS,
    body,
    client_of,
    context,
    home,
    post,
    read,
    record,
    running_server,
    scenario,
)
from support.sweeping import wait_until

from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Scenario, canonical_json


def url_of(m: int) -> str:
    return f"{RECORDS}/{scenario(m).digest}"


@pytest.mark.parametrize(("encoding", "ratio"), [("identity", 1), ("gzip", 1 / 5)])
def test_answers_are_compressed_for_those_who_take_it_and_sent_in_pieces(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, encoding: str, ratio: float
) -> None:
    """Clients that read slowly would otherwise keep a copy of all of a long answer each."""
    records = [record(m, configs=1 + m % 12, median=0.1 + m / 7) for m in range(40)]
    post(client, *records)
    client.headers["Accept-Encoding"] = encoding
    whole = client.get(RECORDS)
    assert RecordSet.model_validate_json(whole.content).records == tuple(
        sorted(records, key=lambda entry: entry.scenario.text)
    )
    assert whole.headers.get("content-encoding", "identity") == encoding
    assert int(whole.headers["content-length"]) <= len(whole.content) * ratio
    monkeypatch.setattr(reads, "_PIECE", 500)
    divided = client.get(RECORDS)
    assert divided.content == whole.content
    for name in ("content-length", "content-encoding", "etag", "vary"):
        assert divided.headers.get(name) == whole.headers.get(name)
    for of in records[:12]:
        answer = client.get(url_of(int(str(of.scenario.args["M"]))))
        assert Record.model_validate_json(answer.content) == of


def test_no_read_takes_more_memory_than_a_client_does(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer may fill a context without end: it is read record by record then, and exported."""
    monkeypatch.setattr(record_texts, "MOST_BYTES", 3000)
    monkeypatch.setattr(transfer, "_MOST_BYTES", 3000)
    post(client, *(record(m, configs=5) for m in range(4)))
    refused = client.get(RECORDS)
    assert (refused.status_code, "quarantine list --writers" in refused.text) == (413, True)
    assert client.get(f"{RECORDS}/{scenario(1).digest}").status_code == 200
    lines = client.get("/v1/main/export").text.splitlines()
    exported = [item for line in lines for item in json.loads(line)["records"]]
    assert [item["scenario"]["args"]["M"] for item in exported] == [0, 1, 2, 3]
    assert len(lines) > 1
    scenarios = f"{HOME}/scenarios"
    assert client.get(scenarios).status_code == 200
    with monkeypatch.context() as patched:
        patched.setattr(record_texts, "MOST_BYTES", 300)
        assert client.get(scenarios, headers={"If-None-Match": '"an earlier one"'}).is_success
        post(client, record(4))
        assert client.get(scenarios).status_code == 413
    for m in (1, 2, 4):
        client.delete(f"{RECORDS}?scenario={scenario(m).digest}")
    assert client.get(RECORDS).status_code == 200


def test_a_full_cache_lets_the_oldest_go(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "CACHE_BYTES", 1500)
    app = create_app(ServerSettings(database=url))
    with client_of(app) as client:
        for name in "abcd":
            post(client, of=context(name))
            assert client.get(f"{home(context(name))}/records").status_code == 200
        cached = app.state.server.reader._answers
        assert 0 < sum(len(answer.body) for answer in cached.values()) <= 1500
        assert client.get(f"{home(context('a'))}/records").status_code == 200


def test_contexts_come_in_pages(client: httpx.Client) -> None:
    everything = [context(f"kernel{number}") for number in range(5)]
    for of in everything:
        post(client, of=of)
    first = client.get("/v1/main/contexts?limit=3").json()
    second = client.get(f"/v1/main/contexts?limit=3&after={first['next']}").json()
    contexts = [*first["contexts"], *second["contexts"]]
    assert contexts == [body(entry) for entry in sorted(everything, key=lambda entry: entry.digest)]
    assert second["next"] is None
    assert client.get("/v1/main/contexts?kernel=kernel2").json()["contexts"] == [
        body(context("kernel2"))
    ]
    assert client.get("/v1/other/contexts").json() == {"contexts": [], "next": None}


def test_namespaces_know_nothing_of_each_other(client: httpx.Client) -> None:
    post(client, record(median=0.1), to="main")
    post(client, record(median=0.2), to="pr-1")
    assert read(client, "main") == [record(median=0.1)]
    assert read(client, "pr-1") == [record(median=0.2)]


@pytest.mark.parametrize("path", [RECORDS, url_of(1), f"{HOME}/scenarios"])
def test_what_has_not_changed_is_answered_by_304_and_what_has_is_never_old(
    client: httpx.Client, path: str
) -> None:
    assert client.get(url_of(1)).status_code == 404
    post(client, record(1))
    first = client.get(path)
    tag = first.headers["ETag"]
    for sent in (tag, f"W/{tag}", f'"other", {tag}'):
        answer = client.get(path, headers={"If-None-Match": sent})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    post(client, record(1, configs=5), record(2))
    again = client.get(path, headers={"If-None-Match": tag})
    assert (again.status_code, again.content == first.content) == (200, False)
    client.delete(RECORDS).raise_for_status()
    gone = client.get(path, headers={"If-None-Match": tag})
    assert gone.status_code == 404 or gone.json() == {"scenarios": []}


def test_a_launch_finds_neighbours_and_learns_of_new_ones(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_server(sqlite_url, tmp_path / "log") as server:
        store = RemoteStore(ProtocolClient(server.base), wait=5, spool=Spool("x", tmp_path))
        with httpx.Client(base_url=server.base) as client:
            post(client, record(1))
            assert store.get(context(), scenario(2)) is None
            assert list(store.scenario_texts(context())) == [scenario(1).text]
            store.revalidate({context(): {scenario(2)}})
            assert store.get(context(), scenario(2)) is None
            post(client, record(2))
            assert store.get(context(), scenario(2)) is None, "as the server last answered"
            with monkeypatch.context() as away:
                failing = Mock(side_effect=UnreachableError("away"))
                away.setattr(ProtocolClient, "scenario_texts", failing)
                changed = store.revalidate({context(): {scenario(2)}})
            assert [found.scenario for found in changed[context()].records] == [scenario(2)]
            wait_until(lambda: store.calls.due_in <= 0)
            assert store.get(context(), scenario(2)) is not None
            texts = list(store.scenario_texts(context()))
            assert texts == [scenario(1).text, scenario(2).text]
        store.close()


def test_a_listing_that_does_not_come_is_waited_for_once(tmp_path: Path) -> None:
    server = BadServer(hang)
    store = RemoteStore(ProtocolClient(server.url), wait=0.05, spool=Spool("x", tmp_path))
    for _ in range(3):
        with pytest.raises(UnreachableError):
            store.scenario_texts(context())
    assert server.connections == 1
    store.close()
    server.close()


def revalidate(client: httpx.Client, revision: str, tags: dict[str, str]) -> dict[str, Any]:
    copy = {"revision": revision, "scenarios": tags}
    answer = client.post("/v1/main/revalidation", json={"contexts": {context().digest: copy}})
    changed: dict[str, dict[str, Any]] = answer.raise_for_status().json()["contexts"]
    return changed.get(context().digest, {})


def test_copies_of_large_records_are_answered_part_by_part(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recalls come at once; an empty revision makes clients ask for the other records again."""
    text = canonical_json(record(1))
    monkeypatch.setattr(service, "_MOST_BYTES", 3 * len(text) // 2)
    monkeypatch.setattr(service, "_PART_BYTES", len(text))
    digests = sorted(scenario(m).digest for m in range(6))
    post(client, *map(record, range(6)))
    client.delete(RECORDS, params={"scenario": scenario(5).digest}).raise_for_status()
    tags, rounds, revision = dict.fromkeys(digests, ""), [], ""
    while not revision:
        changed = revalidate(client, revision, tags)
        revision = changed["revision"]
        assert changed["gone"] == list(changed["recalls"]) == [scenario(5).digest]
        rounds.append(len(changed["records"]))
        for content in changed["records"]:
            got = Record.model_validate_json(json.dumps(content))
            tags[got.scenario.digest] = tag_of(canonical_json(got))
    assert rounds == [2, 2, 1]
    assert revalidate(client, revision, tags) == {}


@pytest.mark.parametrize(
    ("owner", "function", "method", "path", "sent"),
    [
        (RecordReader, "_load", "GET", f"{RECORDS}/{{}}", None),
        (service, "_revalidate", "POST", "/v1/main/revalidation", {"contexts": {}}),
        (rendering, "render", "GET", "/pages/main", None),
        (monitoring.Metrics, "text", "GET", "/metrics", None),
        (contexts, "select_with_records", "GET", "/v1/main/contexts", None),
    ],
    ids=["record", "copies", "page", "metrics", "list"],
)
def test_few_answers_are_made_at_a_time(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, owner: Any, function: str, method: str,
    path: str, sent: Any,
) -> None:  # fmt: skip
    """More threads would leave `/livez` unanswered, and their texts would fill the memory."""
    working: list[int] = []
    numbers: list[int] = []
    answer = getattr(owner, function)

    def answer_slowly(*arguments: Any, **values: Any) -> Any:
        working.append(1)
        numbers.append(len(working))
        time.sleep(0.05)
        working.pop()
        return answer(*arguments, **values)

    monkeypatch.setattr(server, "LONGEST_WAIT", 60.0)
    monkeypatch.setattr(owner, function, answer_slowly)
    post(client, *(record(m, configs=8) for m in range(20)))
    with ThreadPoolExecutor(20) as pool:
        paths = [path.format(scenario(m).digest) for m in range(20)]
        answers = pool.map(lambda path: client.request(method, path, json=sent), paths)
        assert {answer.status_code for answer in answers} == {200}
    assert 0 < max(numbers) <= 4


def test_too_many_copies_in_one_request_are_refused(client: httpx.Client) -> None:
    tags = {f"{m:024x}": "" for m in range(MOST_RECORDS + 1)}
    sent = {"contexts": {context().digest: {"scenarios": tags}}}
    assert client.post("/v1/main/revalidation", json=sent).status_code == 413


def stored(of: Record) -> StoredRecord:
    made = StoredRecord(of.scenario.digest, of.scenario.text)
    made.measurements = {part.config.digest: Part.of(part, "ann") for part in of.measurements}
    made.winner = Part.of(of.winner, "ann") if of.winner else None
    made.pin = Part.of(of.pin, "ann") if of.pin else None
    made.add_launches(launch.text for launch in of.launches or ())
    return made


@given(strategies.RECORDS, strategies.SCENARIOS)
def test_a_record_is_the_join_of_its_parts(of: Record, scenario: Scenario) -> None:
    """Texts are joined where models would take ten times as long, and are the same to a letter."""
    written = of.model_copy(update={"scenario": scenario})
    assert stored(written).render()[0] == canonical_json(written)
