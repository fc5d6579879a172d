"""Summaries of records, which the pages list."""

from __future__ import annotations

import httpx
from dejavu_service.storage import summaries
from dejavu_service.storage.database import Database
from dejavu_service.storage.summaries import summarize, summarize_json
from dejavu_service.storage.tables import contexts, records
from hypothesis import given
from sqlalchemy import select
from support.service import body, config, context, record, record_set, scenario
from support.strategies import RECORDS, SCENARIOS

from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Scenario, canonical_json


@given(RECORDS, SCENARIOS)
def test_a_text_is_summarized_as_its_record_is(of: Record, scenario: Scenario) -> None:
    written = of.model_copy(update={"scenario": scenario})
    assert summarize_json(canonical_json(written)) == summarize(written)


def test_every_write_leaves_the_summaries_of_what_is_stored(
    client: httpx.Client, database: Database
) -> None:
    where = f"contexts/{context().digest}"
    client.post("/v1/main/records", json=body(record_set(*map(record, range(4)))))
    client.post("/v1/pr-1/records", json=body(record_set(*(record(m, 0.05) for m in range(2, 8)))))
    for namespace, m in (("main", 1), ("main", 3), ("pr-1", 7), ("pr-1", 2)):
        pin = f"/v1/{namespace}/{where}/pins/{scenario(m).digest}"
        assert client.put(pin, json={"config": body(config(32))}).status_code == 200
    client.delete(f"/v1/main/{where}/pins/{scenario(1).digest}")
    _check(database, 10)
    assert client.post("/v1/pr-1/promote", json={"to": "main"}).status_code == 200
    _check(database, 14)
    client.delete(f"/v1/main/{where}/records")
    _check(database, 6)


def _check(database: Database, count: int) -> None:
    with database.read() as connection:
        ids = connection.execute(select(contexts.c.id)).scalars().all()
        stored = {
            (identity, summary)
            for identity in ids
            for summary in summaries.load(connection, identity).values()
        }
        texts = connection.execute(select(records.c.context_id, records.c.text)).all()
    expected = {(identity, summarize(Record.model_validate_json(text))) for identity, text in texts}
    assert stored == expected
    assert len(stored) == count
