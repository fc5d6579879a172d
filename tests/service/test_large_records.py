"""Records of many megabytes, which a writer may make, take a bounded memory of whoever reads."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from dejavu_service.services import records as service
from dejavu_service.services.reads import RecordReader
from dejavu_service.services.records import tag_of
from dejavu_service.storage import record_texts
from support.service import body, config, context, record, record_set, scenario

from dejavu_cache.model.record import Record, RecordedLaunch, Winner
from dejavu_cache.model.scenario import canonical_json, now

RECORDS = f"/v1/main/contexts/{context().digest}/records"


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
    monkeypatch.setattr(service, "_MOST_BYTES", 5 * len(text) // 2)
    monkeypatch.setattr(record_texts, "PART_BYTES", len(text))
    digests = sorted(scenario(m).digest for m in range(6))
    sent = body(record_set(*(record(m) for m in range(6))))
    client.post("/v1/main/records", json=sent).raise_for_status()
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


def test_few_records_are_rendered_at_a_time(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More threads would leave `/livez` unanswered, and their texts would fill the memory."""
    working: list[int] = []
    numbers: list[int] = []
    load = RecordReader._load

    def load_slowly(*arguments: Any) -> Any:
        working.append(1)
        numbers.append(len(working))
        time.sleep(0.05)
        working.pop()
        return load(*arguments)

    monkeypatch.setattr(RecordReader, "_load", load_slowly)
    large = [record(m, configs=8) for m in range(20)]
    client.post("/v1/main/records", json=body(record_set(*large))).raise_for_status()
    with ThreadPoolExecutor(20) as pool:
        read = pool.map(client.get, [f"{RECORDS}/{item.scenario.digest}" for item in large])
        assert [Record.model_validate_json(answer.content) for answer in read] == large
    assert max(numbers) <= 4


def test_pages_load_few_records_at_once_however_large_a_writer_made_them(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records may have a few timings and megabytes of recorded launches."""
    loaded: list[int] = []
    load = record_texts.load_texts

    def load_and_note(*arguments: Any) -> dict[str, str]:
        texts = load(*arguments)
        loaded.append(sum(map(len, texts.values())))
        return texts

    monkeypatch.setattr(record_texts, "load_texts", load_and_note)
    large = RecordedLaunch(wheel="w", attrs={str(n): "x" * 4000 for n in range(4)})
    for namespace, block in (("main", 16), ("pr-1", 32)):
        won = Winner(config=config(block), at=now())
        sent = [
            record(m).model_copy(update={"launches": (large,), "winner": won}) for m in range(5)
        ]
        client.post(f"/v1/{namespace}/records", json=body(record_set(*sent))).raise_for_status()
    monkeypatch.setattr(record_texts, "PART_BYTES", 40_000)
    where = f"/pages/main/contexts/{context().digest}"
    assert client.get(where).is_success
    compared = client.get(f"{where}/compare", params={"to": "pr-1"})
    assert compared.text.count("+10.0%") == 5, compared.text
    assert len(loaded) >= 3
    assert max(loaded) < 40_000
