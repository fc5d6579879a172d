"""One record by its key, the list of scenarios, and requests that wait for a record."""

from __future__ import annotations

import itertools
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

import anyio
import httpx
import pytest
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.scenario_listings import ScenarioListings
from dejavu_client.http.spool import Spool
from dejavu_service.app import create_app
from dejavu_service.bulk_read.answer_cache import Answer
from dejavu_service.bulk_read.long_polls import LongPolls
from dejavu_service.problems import ProblemError
from dejavu_service.services.read_through import RecordView
from dejavu_service.settings import ServerSettings
from dejavu_service.storage.contexts import Revision
from support.service import (
    body,
    client_of,
    context,
    record,
    record_set,
    running_server,
    scenario,
)

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


def test_the_smallest_pool_leaves_connections_to_the_others(url: str) -> None:
    """Reads keep two connections of their own."""
    with client_of(create_app(ServerSettings(database=url, pool=1))) as client:
        for m in range(2):
            post(client, record(m))
            assert client.get(url_of(m)).status_code == 200
            assert client.get(f"/v1/main/contexts/{context().digest}/records").status_code == 200
            assert client.get("/readyz").status_code == 200


def test_scenarios_are_listed_without_their_records(client: httpx.Client) -> None:
    assert client.get(f"{CONTEXT}/scenarios").json() == {"scenarios": []}
    post(client, record(2), record(1))
    answer = client.get(f"{CONTEXT}/scenarios")
    assert answer.json()["scenarios"] == [body(scenario(1)), body(scenario(2))]
    tag = {"If-None-Match": answer.headers["ETag"]}
    assert client.get(f"{CONTEXT}/scenarios", headers=tag).status_code == 304
    post(client, record(3))
    assert client.get(f"{CONTEXT}/scenarios", headers=tag).status_code == 200


@pytest.mark.parametrize("path", ["X" * 24, "0" * 23])
def test_what_is_no_digest_is_not_found(client: httpx.Client, path: str) -> None:
    answer = client.get(f"{CONTEXT}/records/{path}")
    assert answer.status_code == 404
    assert "no such resource" in answer.json()["detail"]


def test_reads_by_key_need_the_role(client: httpx.Client, token: object) -> None:
    post(client, record(1))
    other = token("read", "other")  # type: ignore[operator]
    for path in (url_of(1), f"{url_of(1)}?wait=1", f"{CONTEXT}/scenarios"):
        assert client.get(path, headers=other).status_code == 403
        assert client.get(path).status_code == 401


def test_reads_are_answered_alike_before_the_routes_and_by_them(
    client: httpx.Client, token: object
) -> None:
    """A query leaves a read to the routes; without one it is answered before them."""
    post(client, record(1, configs=1), record(2, configs=12))
    some = url_of(1).rpartition("/")[0]
    tag = client.get(some, headers=token("read")).headers["ETag"]  # type: ignore[operator]
    paths = [some, url_of(1), url_of(2), url_of(3), f"{some}/{'0' * 23}", f"{some}/{'X' * 24}"]
    paths += [path.replace("/main/", f"/{name}/") for path in paths for name in ("pr-1", "no!name")]
    paths += [some.replace(context().digest, digest) for digest in ("0" * 24, "short")]
    tokens: list[dict[str, str]] = [token("read"), token("read", "pr-*"), {}]  # type: ignore[operator]
    copies = [{}, {"If-None-Match": tag}, {"If-None-Match": "*"}, {"If-None-Match": '"old"'}]
    statuses: Counter[int] = Counter()
    for path, copy, sender in itertools.product(paths, copies, tokens):
        headers = {**copy, **sender}
        before, by_routes = (client.get(url, headers=headers) for url in (path, f"{path}?wait=0"))
        assert _essence(before) == _essence(by_routes), (path, headers)
        assert client.head(path, headers=headers).status_code in (before.status_code, 405)
        statuses[before.status_code] += 1
    assert {*statuses} == {200, 304, 401, 403, 404}


def _essence(answer: httpx.Response) -> tuple[object, ...]:
    names = ("etag", "vary", "cache-control", "content-type", "content-encoding", "retry-after")
    return answer.status_code, answer.content, [answer.headers.get(name) for name in names]


def test_requests_that_wait_are_answered_when_the_server_stops(
    sqlite_url: str, tmp_path: Path
) -> None:
    with running_server(sqlite_url, tmp_path / "log") as server, ExitStack() as stack:

        def ask(m: int) -> socket.socket:
            asking = socket.create_connection(("127.0.0.1", server.port), timeout=240)
            head = f"GET {url_of(m)}?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            asking.sendall(head.encode())
            return stack.enter_context(asking)

        waiting = [ask(m) for m in range(5)]
        # What is answered was read after the requests before it.
        assert httpx.get(f"{server.base}/livez").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert [asking.recv(12) for asking in waiting] == [b"HTTP/1.1 404"] * 5
        assert server.process.wait(240) == -signal.SIGTERM


def test_only_so_many_requests_of_a_caller_wait() -> None:
    async def revision(view: RecordView) -> Revision | None:
        return None

    async def load(view: RecordView, revision: Revision, scenario: str) -> Answer:
        raise AssertionError

    async def find_won(view: RecordView, scenarios: Collection[str]) -> set[str]:
        raise AssertionError

    async def is_gone() -> bool:
        return False

    async def check() -> None:
        polls = LongPolls(revision, load, find_won, most=3)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(polls.wait, "fleet", RecordView("main", "c"), "s", 60.0, is_gone)
            await anyio.sleep(0.01)
            with pytest.raises(ProblemError) as refusal:
                await polls.wait("fleet", RecordView("main", "c"), "s", 60.0, is_gone)
            assert refusal.value.status_code == 429
            assert refusal.value.headers == {"Retry-After": "2"}
            assert await polls.wait("another", RecordView("main", "c"), "s", 0.01, is_gone) is None
            polls.close()
        assert await polls.wait("fleet", RecordView("main", "c"), "s", 60.0, is_gone) is None

    anyio.run(check)


def test_a_write_is_looked_at_once_however_many_wait() -> None:
    waiting, writes, loaded, looked = 300, 4, Counter[str](), list[int]()
    current, won = [Revision(1, "0", 1)], set[str]()

    async def revision(view: RecordView) -> Revision | None:
        return current[0]

    async def load(view: RecordView, revision: Revision, scenario: str) -> Answer:
        loaded[scenario] += 1
        return Answer("", b"{}", has_winner=scenario in won)

    async def find_won(view: RecordView, scenarios: Collection[str]) -> set[str]:
        looked.append(len(scenarios))
        return won.intersection(scenarios)

    async def is_gone() -> bool:
        return False

    async def check() -> None:
        polls = LongPolls(revision, load, find_won)
        answers = dict[str, Answer | None]()

        async def wait(scenario: str) -> None:
            answers[scenario] = await polls.wait(
                "fleet", RecordView("main", "c"), scenario, 60.0, is_gone
            )

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for number in range(waiting):
                    tasks.start_soon(wait, str(number))
                while not looked:
                    await anyio.sleep(0.01)
                for number in range(writes):
                    won.add(str(number))
                    current[0] = Revision(1, str(number + 1), 1)
                    while len(answers) <= number:
                        await anyio.sleep(0.01)
                polls.close()
        assert {name for name, answer in answers.items() if answer} == set(map(str, range(writes)))
        assert loaded == {str(n): 1 + (n < writes) for n in range(waiting)}
        assert looked == [waiting, *(waiting - number for number in range(writes))]

    anyio.run(check)


def test_a_request_whose_client_has_gone_waits_no_longer() -> None:
    async def none(*_: object) -> None:
        return None

    async def is_gone() -> bool:
        return True

    async def check() -> None:
        with anyio.fail_after(10):
            polls = LongPolls(none, none, none, most=3)  # type: ignore[arg-type]
            assert await polls.wait("fleet", RecordView("main", "c"), "s", 60.0, is_gone) is None

    anyio.run(check)


def test_a_client_lists_scenarios(client: httpx.Client) -> None:
    post(client, record(2), record(1))
    asking = ProtocolClient("http://localhost", http_client=client)
    listed = asking.scenario_texts(context())
    assert listed is not None
    assert listed[1] == [scenario(1).text, scenario(2).text]
    assert asking.scenario_texts(context(), listed[0]) is None


def test_a_launch_finds_neighbours_and_learns_of_new_ones(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_server(sqlite_url, tmp_path / "log") as server:
        store = RemoteStore(ProtocolClient(server.base), wait=5, spool=Spool("x", tmp_path))
        with httpx.Client(base_url=server.base) as client:
            post(client, record(1))
            before = store.revision(context())
            assert store.get(context(), scenario(2)) is None
            assert list(store.scenario_texts(context())) == [scenario(1).text]
            listed = store.revision(context())
            assert listed != before
            assert store.get(context(), scenario(2)) is None
            post(client, record(2))
            assert store.get(context(), scenario(2)) is None, "as the server last answered"
            assert store.revision(context()) == listed
            monkeypatch.setattr("dejavu_client.http.scenario_listings.REFRESH_SECONDS", 0.0)
            deadline = time.monotonic() + 240
            while store.revision(context()) == listed and time.monotonic() < deadline:
                time.sleep(0.05)
            assert store.get(context(), scenario(2)) is not None
            assert len(list(store.scenario_texts(context()))) == 2
        store.close()


def test_a_listing_that_does_not_come_is_not_waited_for_again() -> None:
    may_answer = threading.Event()

    class SlowClient(ProtocolClient):
        def scenario_texts(self, *_: object) -> tuple[str, list[str]]:
            may_answer.wait()
            return "tag", [scenario(1).text]

    listings = ScenarioListings(SlowClient("http://server"), lambda _: None)
    assert listings.texts(context(), 0.05) == []
    assert listings.texts(context(), 3600) == []
    may_answer.set()
    may_answer.set()
    listings.refresh(context(), 60)
    assert listings.texts(context(), 0.05) == [scenario(1).text]
