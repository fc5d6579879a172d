"""Summaries of records, which the pages list."""

from __future__ import annotations

from dejavu_service.storage.records import Part, StoredRecord
from hypothesis import given
from support.strategies import RECORDS, SCENARIOS

from dejavu_cache.model.record import Record
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
