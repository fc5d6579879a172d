"""What is recalled stays away: no copy brings it back, and every copy learns of it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest
from dejavu_service.services import records as service
from dejavu_service.services.json_text import MOST_RECORDS
from support.service import body, context, record_set, scenario

from dejavu_cache.model.record import Record, RecordSet

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
    answer = service.revalidate

    def revalidate_slowly(*arguments: Any) -> Any:
        loading.append(1)
        numbers.append(len(loading))
        time.sleep(0.05)
        loading.pop()
        return answer(*arguments)

    monkeypatch.setattr(service, "revalidate", revalidate_slowly)
    asked = partial(client.post, "/v1/main/revalidation", json={"contexts": {}})
    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(asked) for _ in range(20)]
    assert {answer.result().status_code for answer in answers} == {200}
    assert max(numbers) <= 4
