"""What is recalled stays away: no copy brings it back, and every copy learns of it."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest
from dejavu_service.services import records as service
from dejavu_service.services.records import tag_of
from dejavu_service.services.requests import MOST_RECORDS
from support.service import START, body, config, context, measurement, record, record_set, scenario

from dejavu_cache.model.merge import part_digest, without_parts
from dejavu_cache.model.record import Pin, Record, RecordSet
from dejavu_cache.model.scenario import canonical_json

HOME = f"/v1/main/contexts/{context().digest}/records"
PIN = f"/v1/main/contexts/{context().digest}/pins/{scenario().digest}"


def post(client: httpx.Client, *records: Record, namespace: str = "main") -> dict[str, Any]:
    answer = client.post(f"/v1/{namespace}/records", json=body(record_set(*records)))
    assert answer.status_code == 200, answer.text
    counted: dict[str, Any] = answer.json()
    return counted


def read(client: httpx.Client, namespace: str = "main") -> list[Record]:
    answer = client.get(HOME.replace("main", namespace))
    if answer.status_code == 404:
        return []
    return list(RecordSet.model_validate_json(answer.content).records)


def changes(
    client: httpx.Client, revision: str = "", tags: dict[str, str] | None = None
) -> dict[str, Any]:
    """Revalidate copies of one scenario, and return what changed of its context."""
    copy = {"revision": revision, "scenarios": tags or {scenario().digest: ""}}
    answer = client.post("/v1/main/revalidation", json={"contexts": {context().digest: copy}})
    assert answer.status_code == 200, answer.text
    changed: dict[str, dict[str, Any]] = answer.json()["contexts"]
    return changed.get(context().digest, {})


def test_an_older_pin_does_not_make_a_deleted_record_anew(client: httpx.Client) -> None:
    post(client, record(1))
    client.delete(HOME)
    pin = Pin(config=config(16), at=START, by="ann")
    post(client, Record(scenario=scenario(1), pin=pin))
    assert read(client) == []


def test_a_clock_that_is_ahead_does_not_undo_a_deletion(client: httpx.Client) -> None:
    ahead = record(1, after=100 * 365 * 86400)
    post(client, ahead)
    client.delete(HOME)
    assert post(client, ahead)["refused"] == 3
    assert not [measured for kept in read(client) for measured in kept.measurements]


def test_an_import_brings_back_what_was_deleted(client: httpx.Client) -> None:
    post(client, record(1))
    dump = client.get("/v1/main/export").content
    client.delete(HOME)
    assert client.post("/v1/main/import", content=dump).json()["measurements"] == 3
    assert read(client) == [record(1)]


def test_copies_learn_of_every_change(client: httpx.Client) -> None:
    post(client, record(1))
    first = changes(client)
    copy = Record.model_validate_json(json.dumps(first["records"][0]))
    assert (copy, first["gone"], first["recalls"]) == (record(1), [], {})
    tag = tag_of(canonical_json(copy))
    assert changes(client, first["revision"], {scenario().digest: tag}) == {}
    post(client, record(2))
    other = changes(client, first["revision"], {scenario().digest: tag})
    assert other["records"] == [], "only another record has changed"
    client.put(PIN, json={"config": body(config(32))})
    (pinned,) = changes(client, other["revision"], {scenario().digest: tag})["records"]
    assert pinned["pin"]["config"] == body(config(32))


def test_a_deletion_names_every_part_that_a_copy_may_have(client: httpx.Client) -> None:
    beside = Record(scenario=scenario(), measurements=(measurement(config(16), 0.3, 60),))
    post(client, record(1))
    post(client, beside)
    client.put(PIN, json={"config": body(config(32)), "by": "first"})
    first_pin = read(client)[0].pin
    client.put(PIN, json={"config": body(config(64)), "by": "second"})
    (stored,) = read(client)
    client.delete(HOME)
    gone = changes(client)
    assert (gone["records"], gone["gone"]) == ([], [scenario().digest])
    assert first_pin
    assert stored.pin
    measurements = (*stored.measurements, *beside.measurements)
    parts = {part_digest(measured) for measured in measurements}
    assert stored.winner
    parts |= {part_digest(part) for part in (first_pin, stored.pin, stored.winner)}
    assert set(gone["recalls"][scenario().digest]) == parts
    own = measurement(config(512), 0.2)
    copy = stored.model_copy(update={"measurements": (*stored.measurements, own)})
    left = without_parts(copy, gone["recalls"][scenario().digest])
    assert left == Record(scenario=scenario(), measurements=(own,)), "what was never sent stays"


def test_a_promotion_recalls_what_it_replaces_and_nothing_else(
    client: httpx.Client,
) -> None:
    post(client, record(1, median=0.1))
    promoted = Record(scenario=scenario(), measurements=(measurement(config(16), 5.0),))
    post(client, promoted, namespace="pr-1")
    assert client.post("/v1/pr-1/promote", json={"to": "main"}).json() == {"records": 1}
    replaced = record(1, median=0.1).by_config[config(16)]
    assert changes(client)["recalls"] == {scenario().digest: [part_digest(replaced)]}
    assert post(client, record(1, median=0.1))["refused"] == 1
    assert read(client)[0].by_config[config(16)].median == 5.0
    post(client, record(1, median=0.1), namespace="pr-2")
    client.post("/v1/pr-2/promote", json={"to": "main"})
    assert read(client)[0].by_config[config(16)] == replaced
    assert changes(client)["recalls"] == {
        scenario().digest: [part_digest(promoted.measurements[0])]
    }


def test_too_many_copies_in_one_request_are_refused(client: httpx.Client) -> None:
    tags = {f"{m:024x}": "" for m in range(MOST_RECORDS + 1)}
    sent = {"contexts": {context().digest: {"scenarios": tags}}}
    assert client.post("/v1/main/revalidation", json=sent).status_code == 413


def test_few_revalidations_load_records_at_a_time(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may take much memory, and connections that other requests need."""
    loading: list[int] = []
    numbers: list[int] = []
    answer = service._revalidate

    def revalidate_slowly(*arguments: Any) -> Any:
        loading.append(1)
        numbers.append(len(loading))
        time.sleep(0.05)
        loading.pop()
        return answer(*arguments)

    monkeypatch.setattr(service, "_revalidate", revalidate_slowly)
    asked = partial(client.post, "/v1/main/revalidation", json={"contexts": {}})
    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(asked) for _ in range(20)]
    assert {answer.result().status_code for answer in answers} == {200}
    assert max(numbers) <= 4
