"""The log: who changed what, written with the change or not at all."""

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from dejavu_service.services import records as record_service
from dejavu_service.services import tokens
from dejavu_service.services.access import ANYBODY
from dejavu_service.storage.database import Database
from support.command_line import run_cli
from support.service import RECORDS, Running, config, context, pin, post, record, scenario

from dejavu_cache.model.merge import part_digest
from dejavu_cache.model.record import Pin
from dejavu_cache.model.scenario import Config, now

KERNEL = context().kernel.name
MakeToken = Callable[..., dict[str, str]]


def entries(client: httpx.Client, headers: dict[str, str], path: str = "log", **wanted: Any) -> Any:
    answer = client.get(f"/v1/{path}", params=wanted, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["entries"]


def test_every_change_is_logged_with_its_content(
    client: httpx.Client, database: Database, token: MakeToken
) -> None:
    admin = token("admin")
    post(client, to="pr-1", headers=admin)
    client.post("/v1/pr-1/promote", json={"to": "main"}, headers=admin)
    pin(client, 32, headers=admin)
    pin(client, None, headers=admin)
    dump = client.get("/v1/main/export", headers=admin).content
    client.post("/v1/other/import", content=dump, headers=admin)
    client.delete(RECORDS, headers=admin)
    made = tokens.issue(database, ANYBODY, "ci", {"pr-1": "write"})
    tokens.revoke(database, made.id)
    logged = entries(client, admin)
    assert [entry["action"] for entry in logged] == [
        *("revoke token", "create token", "delete", "import", "unpin", "pin", "promote"),
        "create token",
    ]
    assert {entry["actor"].partition(" (")[0] for entry in logged[2:-1]} == {"a admin"}
    by_action = {entry["action"]: entry for entry in logged[:-1]}
    pinned = by_action["pin"]
    assert (pinned["namespace"], pinned["kernel"]) == ("main", KERNEL)
    assert pinned["detail"]["config"] == str(config(32))
    assert pinned["detail"]["scenario"] == str(scenario())
    assert by_action["promote"]["detail"]["source"] == "pr-1"
    assert by_action["promote"]["detail"]["records"] == 1
    assert by_action["delete"]["detail"]["records"] == 1
    assert by_action["import"]["detail"] == {
        "sets": 1, "records": 1, "kernels": [KERNEL], "measured_by": ["ann@h200-1"],
    }  # fmt: skip
    created = {"id": made.id, "name": "ci", "grants": {"pr-1": "write"}}
    assert by_action["create token"]["detail"] == created
    assert made.token.split("_", 2)[2] not in str(logged)
    newest = client.get("/v1/log?limit=3", headers=admin).json()
    others = client.get(f"/v1/log?before={newest['next']}", headers=admin).json()
    assert (len(newest["entries"]), others["next"]) == (3, None)
    assert newest["entries"] + others["entries"] == logged


def test_a_pin_within_a_posted_record_is_logged_and_replaces_another_everywhere(
    client: httpx.Client, token: MakeToken
) -> None:
    admin = token("admin")

    def post_pin(choice: Config | None) -> Pin:
        pinned = Pin(config=choice, at=now(), by="ann")
        for _ in range(2):  # again, it changes nothing
            post(client, record().model_copy(update={"pin": pinned}), headers=admin)
        return pinned

    pins = [post_pin(config(32)), post_pin(config(64)), post_pin(None)]
    logged = [entry for entry in entries(client, admin) if "pin" in entry["action"]]
    assert [(entry["action"], entry["detail"]["config"]) for entry in logged] == [
        ("unpin", str(config(64))),
        ("pin", str(config(64))),
        ("pin", str(config(32))),
    ]
    assert {entry["kernel"] for entry in logged} == {KERNEL}
    copies = {"contexts": {context().digest: {"scenarios": {scenario().digest: ""}}}}
    changes = client.post("/v1/main/revalidation", json=copies, headers=admin).json()["contexts"]
    recalled = changes[context().digest]["recalls"][scenario().digest]
    assert sorted(recalled) == sorted(map(part_digest, pins[:2]))


def test_a_change_that_fails_is_not_logged(
    client: httpx.Client, token: MakeToken, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = token("admin")
    post(client, headers=admin)
    before = entries(client, admin)
    assert pin(client, 64, at="none", headers=admin).status_code == 404
    assert client.delete(f"{RECORDS}?scenario={'0' * 24}", headers=admin).is_success
    full = Mock(side_effect=RuntimeError("the log is full"))
    monkeypatch.setattr(record_service, "write_log", full)
    assert client.delete(RECORDS, headers=admin).status_code == 500
    assert entries(client, admin) == before
    assert client.get(RECORDS, headers=admin).status_code == 200, "neither without other"


def test_the_log_is_read_by_namespace_actor_action_kernel_and_time(
    client: httpx.Client, token: MakeToken
) -> None:
    admin = token("admin")
    main, pr = token("admin", "main"), token("admin", "pr-1")
    for namespace, headers in (("main", main), ("pr-1", pr)):
        post(client, to=namespace, headers=headers)
        pin(client, 32, at=namespace, headers=headers)
    assert client.get("/v1/log", headers=main).status_code == 403
    assert client.get("/v1/pr-1/log", headers=main).status_code == 403
    assert client.get("/v1/main/log", headers=token("write")).status_code == 403
    (mine,) = entries(client, main, "main/log")
    (theirs,) = entries(client, admin, actor=pr["Authorization"].split("_")[1])
    assert (mine["namespace"], theirs["namespace"]) == ("main", "pr-1")
    pins = entries(client, admin, action="pin", kernel=KERNEL)
    assert pins == [theirs, mine]
    assert entries(client, admin, kernel="nobody.knows") == []
    assert entries(client, admin, actor="%") == [], "it is a text and not a pattern"
    assert entries(client, admin, actor="A admin") == [], "and minds the case of letters"
    assert entries(client, admin, since=theirs["at"], action="pin") == [theirs]
    assert entries(client, admin, until=theirs["at"], action="pin") == [mine]


def test_an_export_is_in_the_log_of_requests(
    client: httpx.Client, token: MakeToken, caplog: pytest.LogCaptureFixture
) -> None:
    reader = token("read")
    with caplog.at_level("INFO", logger="dejavu_service.requests"):
        client.get("/v1/main/contexts", headers=reader)
        client.get("/v1/main/export", headers=reader)
    (line,) = (line for line in caplog.records if line.name == "dejavu_service.requests")
    fields: Any = line.__dict__["fields"]
    assert fields["path"] == "/v1/main/export"
    assert fields["who"].startswith("a read (")
    actions = {entry["action"] for entry in entries(client, token("admin"))}
    assert actions == {"create token"}


def test_the_command_prints_who_did_what(server: Running) -> None:
    with httpx.Client(base_url=server.base) as client:
        for namespace in ("main", "other"):
            post(client, to=namespace)
            pin(client, 32, at=namespace)
    log = ("log", "--store", server.base)
    ours = run_cli(*log, "--json")
    everything = run_cli(*log, "--all", "--actor", "anybody")
    named = [run_cli(*log, "--kernel", name) for name in ("matmul", "*.mat*", "mat")]
    assert [len(seen.stdout.splitlines()) for seen in named] == [2, 2, 0], "as in every command"
    (entry,) = json.loads(ours.stdout)
    assert (entry["action"], entry["detail"]["by"]) == ("pin", "ann")
    header, other, ours_again = everything.stdout.splitlines()
    assert header.split("\t")[1:4] == ["actor", "action", "namespace"]
    assert other.split("\t")[1:4] == ["anybody", "pin", "other"]
    assert f"config={config(32)}" in ours_again
