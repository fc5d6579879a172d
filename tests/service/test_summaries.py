"""Summaries of records, which the pages list."""

from __future__ import annotations

import httpx
from dejavu_service.storage import summaries
from dejavu_service.storage.database import Database
from dejavu_service.storage.records import Part, StoredRecord
from dejavu_service.storage.tables import contexts, records
from hypothesis import given
from sqlalchemy import select
from support.service import START, body, config, context, record, record_set, scenario
from support.strategies import RECORDS, SCENARIOS

from dejavu_cache.model.record import Failure, Measurement, Record
from dejavu_cache.model.scenario import Scenario, canonical_json


def stored(of: Record) -> StoredRecord:
    made = StoredRecord(of.scenario.digest, of.scenario.text)
    for part in (*of.measurements, of.winner, of.pin):
        if part is not None:
            made.stand(Part.of(part, "ann"))
    made.add_launches(launch.text for launch in of.launches or ())
    return made


@given(RECORDS, SCENARIOS)
def test_a_record_is_the_join_of_its_parts(of: Record, scenario: Scenario) -> None:
    """Texts are joined where models would take ten times as long, and are the same to a letter."""
    written = of.model_copy(update={"scenario": scenario})
    assert stored(written).text == canonical_json(written)


def test_a_summary_has_the_numbers_of_a_record() -> None:
    failed = Measurement(config=config(512), failure=Failure(kind="crash", reason=""), at=START)
    measured = Record(
        scenario=scenario(1),
        measurements=(*record(1).measurements, failed),
        winner=record(1).winner,
    )
    summary = stored(measured).summary
    medians = [item.median for item in record(1).measurements if item.median is not None]
    assert (summary.best, summary.slowest) == (min(medians), max(medians))
    assert (summary.configs, summary.failed, summary.pinned) == (len(medians) + 1, 1, False)
    winner = record(1).winner
    assert winner is not None
    assert (summary.chosen, summary.median) == (
        winner.config.text,
        record(1).by_config[winner.config].median,
    )
    assert summary.is_uncompared


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
        listed = {
            (identity, summary)
            for identity in ids
            for summary in summaries.load(connection, identity).values()
        }
        rows = connection.execute(select(records).where(records.c.text.is_not(None))).all()
    expected = {
        (row.context_id, stored(Record.model_validate_json(row.text)).summary) for row in rows
    }
    assert listed == expected
    assert len(listed) == count
