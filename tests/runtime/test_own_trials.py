"""A process believes its own measurements, however many it has made."""

from __future__ import annotations

import pytest
from support.records import config, context, measurement, record

from dejavu_cache.runtime import request
from dejavu_cache.runtime.request import OwnTrials


def test_the_scenario_that_is_tuned_is_not_forgotten_at_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request, "MOST_SCENARIOS", 2)
    trials = OwnTrials()
    for m, block in ((16, 32), (32, 32), (32, 64)):
        trials.add(context(), record(m).scenario, [measurement(block)])
    known = trials._scenarios[context(), record(32).scenario]
    assert {*known} == {config(32), config(64)}
