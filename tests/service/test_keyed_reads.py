"""One record by its key, and the list of scenarios."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from dejavu_client.http.errors import UnreachableError
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.spool import Spool
from support.bad_server import BadServer, hang
from support.remote_stores import through
from support.service import (
    body,
    context,
    record,
    record_set,
    running_server,
    scenario,
)
from support.sweeping import wait_until

from dejavu_cache.model.record import Record

CONTEXT = f"/v1/main/contexts/{context().digest}"


def post(client: httpx.Client, *records: Record) -> None:
    client.post("/v1/main/records", json=body(record_set(*records))).raise_for_status()


def url_of(m: int) -> str:
    return f"{CONTEXT}/records/{scenario(m).digest}"


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_records_of_any_size_are_read_by_their_key(client: httpx.Client, encoding: str) -> None:
    records = [record(1, configs=1), record(2, configs=12)]
    post(client, *records)
    for stored in records:
        answer = client.get(
            f"{CONTEXT}/records/{stored.scenario.digest}", headers={"Accept-Encoding": encoding}
        )
        assert Record.model_validate_json(answer.content) == stored
    assert client.get(url_of(3)).status_code == 404


def test_a_read_by_key_is_never_older_than_the_request(client: httpx.Client) -> None:
    post(client, record(1))
    first = client.get(url_of(1))
    tag = {"If-None-Match": first.headers["ETag"]}
    assert client.get(url_of(1), headers=tag).status_code == 304
    assert client.get(url_of(2)).status_code == 404
    post(client, record(1, configs=5), record(2))
    again = client.get(url_of(1), headers=tag)
    assert again.status_code == 200
    assert len(Record.model_validate_json(again.content).measurements) == 5
    assert client.get(url_of(2)).status_code == 200
    client.delete(f"{CONTEXT}/records").raise_for_status()
    assert client.get(url_of(1), headers=tag).status_code == 404


def test_scenarios_are_listed_without_their_records(client: httpx.Client) -> None:
    assert client.get(f"{CONTEXT}/scenarios").json() == {"scenarios": []}
    post(client, record(2), record(1))
    answer = client.get(f"{CONTEXT}/scenarios")
    assert answer.json()["scenarios"] == [body(scenario(1)), body(scenario(2))]
    tag = {"If-None-Match": answer.headers["ETag"]}
    assert client.get(f"{CONTEXT}/scenarios", headers=tag).status_code == 304
    post(client, record(3))
    assert client.get(f"{CONTEXT}/scenarios", headers=tag).status_code == 200


def test_a_client_lists_scenarios(client: httpx.Client) -> None:
    post(client, record(2), record(1))
    asking = ProtocolClient("http://localhost", transport=through(client))
    assert asking.scenario_texts(context()) == [scenario(1).text, scenario(2).text]


def test_a_launch_finds_neighbours_and_learns_of_new_ones(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_unreachable(*_: object) -> None:
        raise UnreachableError("away")

    with running_server(sqlite_url, tmp_path / "log") as server:
        store = RemoteStore(ProtocolClient(server.base), wait=5, spool=Spool("x", tmp_path))
        with httpx.Client(base_url=server.base) as client:
            post(client, record(1))
            assert store.get(context(), scenario(2)) is None
            before = store.revision(context())
            assert list(store.scenario_texts(context())) == [scenario(1).text]
            store.revalidate({context(): {scenario(2)}})
            listed = store.revision(context())
            assert listed != before
            assert store.get(context(), scenario(2)) is None
            post(client, record(2))
            assert store.get(context(), scenario(2)) is None, "as the server last answered"
            assert store.revision(context()) == listed
            with monkeypatch.context() as away:
                away.setattr(ProtocolClient, "scenario_texts", raise_unreachable)
                changed = store.revalidate({context(): {scenario(2)}})
            assert [found.scenario for found in changed[context()].records] == [scenario(2)]
            wait_until(lambda: store.calls.due_in <= 0)
            assert store.revision(context()) != listed
            assert store.get(context(), scenario(2)) is not None
            assert len(list(store.scenario_texts(context()))) == 2
        store.close()


def test_a_listing_that_does_not_come_is_waited_for_once(tmp_path: Path) -> None:
    server = BadServer(hang)
    store = RemoteStore(ProtocolClient(server.url), wait=0.05, spool=Spool("x", tmp_path))
    before = store.revision(context())
    for _ in range(3):
        with pytest.raises(UnreachableError):
            store.scenario_texts(context())
    assert server.connections == 1
    assert store.revision(context()) != before, "it is asked for again"
    store.close()
    server.close()
