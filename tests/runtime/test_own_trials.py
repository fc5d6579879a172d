"""A process believes its own measurements, however many it has made."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.records import MOMENT, config, context, measurement, record

from dejavu_cache.runtime import known_records
from dejavu_cache.runtime.known_records import KnownRecords
from dejavu_cache.stores import MemoryStore, TieredStore


def test_the_scenario_that_is_tuned_is_not_forgotten_at_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_records, "MOST_SCENARIOS", 2)
    records = KnownRecords(TieredStore([MemoryStore()]))
    for m, block in ((16, 32), (32, 32), (32, 64)):
        records.findings(context(), record(m).scenario).add_trials([measurement(block)])
    known = records.findings(context(), record(32).scenario).trials
    assert {*known} == {config(32), config(64)}


def test_they_stand_before_what_another_machine_has_recorded() -> None:
    store = TieredStore([MemoryStore()])
    later = measurement(32, 9.0, MOMENT + timedelta(hours=1))
    stranger = later.model_copy(update={"by": "root@broken-node"})
    store.put(context(), [record(16, stranger)])
    records = KnownRecords(store)
    records.findings(context(), record(16).scenario).add_trials([measurement(32, 1.0)])
    found = records.look_up(context(), record(16).scenario)
    assert found is not None
    assert found.record.by_config[config(32)].median == 1.0
