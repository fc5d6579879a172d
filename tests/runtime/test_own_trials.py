"""A process believes its own measurements, however many it has made."""

from __future__ import annotations

import pytest
from support.records import config, context, measurement, record

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
    assert {*records.findings(context(), record(32).scenario).trials} == {config(32), config(64)}
