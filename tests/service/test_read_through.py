"""A namespace that answers from another one what it does not have, to whoever may read both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from dejavu_service.app import create_app
from dejavu_service.services import tokens
from dejavu_service.services.access import ANYBODY, Principal, Role
from dejavu_service.services.read_through import ReadThrough, RecordView
from dejavu_service.settings import ServerSettings
from dejavu_service.storage.database import Database
from support.service import body, client_of, config, context, measurement, record, record_set

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.merge import part_digests
from dejavu_cache.model.record import Record, RecordSet

WHERE = f"contexts/{context().digest}"


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    app = create_app(
        ServerSettings(database=url, token_ttl=0, rate=0, read_through="pr-*=main, exp=main")
    )
    with client_of(app) as opened:
        yield opened


def bearer(database: Database, role: Role, *namespaces: str, main: Role = "read") -> dict[str, str]:
    grants = {} if "*" in namespaces else {"main": main}
    issued = tokens.issue(database, ANYBODY, "ci", role, namespaces, None, grants)
    return {"Authorization": f"Bearer {issued.token}"}


def post(client: httpx.Client, namespace: str, *records: Record, headers: Any = None) -> None:
    sent = client.post(
        f"/v1/{namespace}/records", json=body(record_set(*records)), headers=headers or {}
    )
    assert sent.status_code == 200, sent.text


def bulk(client: httpx.Client, namespace: str, headers: Any = None) -> list[Record]:
    answer = client.get(f"/v1/{namespace}/{WHERE}/records", headers=headers or {})
    if answer.status_code == 404:
        return []
    return list(RecordSet.model_validate_json(answer.content).records)


def one(client: httpx.Client, namespace: str, of: Record, query: str = "") -> Record | None:
    answer = client.get(f"/v1/{namespace}/{WHERE}/records/{of.scenario.digest}{query}")
    return Record.model_validate_json(answer.content) if answer.status_code == 200 else None


def scenarios(client: httpx.Client, namespace: str) -> list[Any]:
    listed: list[Any] = client.get(f"/v1/{namespace}/{WHERE}/scenarios").json()["scenarios"]
    return listed


def test_what_a_pull_request_lacks_comes_from_main(client: httpx.Client) -> None:
    shared, own = record(1), record(2)
    post(client, "main", shared)
    for _ in range(2):  # before and after the namespace exists
        assert one(client, "pr-7", shared) == shared
        assert shared in bulk(client, "pr-7")
        post(client, "pr-7", own)
    assert bulk(client, "pr-7") == [shared, own]
    assert scenarios(client, "pr-7") == [body(shared.scenario), body(own.scenario)]
    # Nothing is written through, and nothing else shows what is beneath.
    assert bulk(client, "main") == [shared]
    assert scenarios(client, "main") == [body(shared.scenario)]
    assert len(client.get("/v1/pr-7/export").text.splitlines()) == 1
    assert str(shared.scenario.digest) not in client.get("/v1/pr-7/export").text
    assert bulk(client, "other") == []
    assert bulk(client, "PR-7") == []
    client.delete(f"/v1/pr-7/{WHERE}/records")
    assert bulk(client, "main") == bulk(client, "pr-7") == [shared]


def test_what_it_has_itself_stands_and_only_the_rest_is_added(client: httpx.Client) -> None:
    mine = record(1, median=0.5, configs=1, after=60)
    post(client, "main", record(1, configs=3))
    post(client, "pr-7", mine)
    merged = one(client, "pr-7", mine)
    assert merged is not None
    assert merged == bulk(client, "pr-7")[0]
    assert merged.by_config[config(16)] == mine.measurements[0]
    assert merged.winner == mine.winner
    assert len(merged.measurements) == 3
    pin = f"{WHERE}/pins/{mine.scenario.digest}"
    client.put(f"/v1/main/{pin}", json={"config": body(config(32))}).raise_for_status()
    seen = one(client, "pr-7", mine)
    assert seen is not None
    assert seen.pinned == config(32)
    client.put(f"/v1/pr-7/{pin}", json={"config": body(config(64))}).raise_for_status()
    client.put(f"/v1/main/{pin}", json={"config": body(config(16))}).raise_for_status()
    seen = one(client, "pr-7", mine)
    assert seen is not None
    assert seen.pinned == config(64)


def test_a_change_in_either_namespace_is_seen_at_once(client: httpx.Client) -> None:
    first = record(1)
    post(client, "main", first)
    client.post(
        "/v1/pr-7/misses",
        json={"misses": [{"context": body(context()), "scenario": body(first.scenario)}]},
    ).raise_for_status()
    paths = ("records", "scenarios", f"records/{first.scenario.digest}")
    for number, path in enumerate(paths):
        url = f"/v1/pr-7/{WHERE}/{path}"
        tag = client.get(url).headers["ETag"]
        assert client.get(url, headers={"If-None-Match": tag}).status_code == 304
        for namespace in ("main", "pr-7"):
            post(client, namespace, record(10 + number))
            changed = client.get(url, headers={"If-None-Match": tag})
            assert (changed.status_code, changed.headers["ETag"] == tag) == (200, False)
            tag = changed.headers["ETag"]
            assert client.get(url, headers={"If-None-Match": tag}).status_code == 304


def test_copies_are_kept_right_through_it(client: httpx.Client) -> None:
    shared, recalled = record(1), record(2)
    copies = {shared.scenario.digest: "", recalled.scenario.digest: ""}

    def changes(revision: str = "") -> dict[str, Any]:
        sent = {"contexts": {context().digest: {"revision": revision, "scenarios": copies}}}
        answer = client.post("/v1/pr-7/revalidation", json=sent)
        changed: dict[str, Any] = answer.json()["contexts"].get(context().digest, {})
        return changed

    post(client, "main", shared, recalled)
    before = changes()
    assert (before["gone"], len(before["records"])) == ([], 2)
    assert changes(before["revision"]) == {}
    client.delete(f"/v1/main/{WHERE}/records?scenario={recalled.scenario.digest}")
    gone = changes(before["revision"])
    assert gone["gone"] == [recalled.scenario.digest]
    parts = part_digests(recalled)
    assert set(gone["recalls"][recalled.scenario.digest]) == parts
    # What main has deleted stands in the namespace that has measured it itself.
    post(client, "pr-7", recalled)
    again = changes(gone["revision"])
    assert (again["gone"], again["recalls"]) == ([], {})


def test_only_who_may_read_both_reads_through(client: httpx.Client, database: Database) -> None:
    admin = bearer(database, "admin", "*")
    through = bearer(database, "write", "pr-*")
    issued = tokens.issue(database, ANYBODY, "pr alone", "admin", ["pr-*"], None)
    alone = {"Authorization": f"Bearer {issued.token}"}
    post(client, "main", record(1), headers=admin)
    for headers, answers in ((through, 1), (alone, 0), (through, 1), (alone, 0), (admin, 1)):
        assert len(bulk(client, "pr-7", headers)) == answers
        status = 200 if answers else 404
        keyed = f"/v1/pr-7/{WHERE}/records/{record(1).scenario.digest}"
        assert client.get(keyed, headers=headers).status_code == status
        listed = client.get(f"/v1/pr-7/{WHERE}/scenarios", headers=headers)
        assert len(listed.json()["scenarios"]) == answers
        copies = {"revision": "", "scenarios": {record(1).scenario.digest: ""}}
        changed = client.post(
            "/v1/pr-7/revalidation", json={"contexts": {context().digest: copies}}, headers=headers
        )
        assert len(changed.json()["contexts"][context().digest]["records"]) == answers
    tag = client.get(f"/v1/pr-7/{WHERE}/records", headers=through).headers["ETag"]
    known = {**alone, "If-None-Match": tag}
    assert client.get(f"/v1/pr-7/{WHERE}/records", headers=known).status_code == 404


@pytest.mark.parametrize(
    ("rules", "namespace", "beneath"),
    [
        ("pr-*=main", "pr-7", "main"),
        ("pr-*=main", "main", None),
        ("pr-*=main,pr-main=main2", "pr-main", "main2"),
        ("pr-*=pr-main", "pr-7", "pr-main"),
        ("pr-*=pr-main", "pr-main", None),
        ("*=main", "anything", "main"),
        ("*=main", "main", None),
        ("", "pr-7", None),
    ],
)
def test_rules_name_the_namespace_beneath(rules: str, namespace: str, beneath: str | None) -> None:
    assert ReadThrough.parse(rules).beneath(namespace) == beneath
    view = ReadThrough.parse(rules).view(Principal("all", {"*": "read"}), namespace, "c")
    assert view == RecordView(namespace, "c", beneath)


WRONG_RULES = """pr-* =main pr-*= pr-*=m* *x=main pr-*=../main a=b,b=a a=b,b=c *=main,pr-*=next
pr-*=main,pr-*=next"""


@pytest.mark.parametrize("rules", [*WRONG_RULES.split(), "pr-*=main\n=x"])
def test_rules_that_lead_in_a_circle_or_nowhere_are_refused(rules: str) -> None:
    with pytest.raises(SettingsError, match="DEJAVU_SERVER_READ_THROUGH"):
        ReadThrough.parse(rules)


def test_measurements_beneath_that_prove_a_config_wrong_count(client: httpx.Client) -> None:
    failed = measurement(config(16), None, after=60)
    post(client, "pr-7", record(1, configs=0).model_copy(update={"measurements": (failed,)}))
    post(client, "main", record(1, configs=1))
    seen = one(client, "pr-7", record(1))
    assert seen is not None
    assert seen.by_config[config(16)].median == 0.1
