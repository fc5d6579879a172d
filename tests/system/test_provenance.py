"""Names of users and hosts, whatever the environment says."""

from __future__ import annotations

import pytest

from dejavu_cache.model.record import Measurement
from dejavu_cache.model.scenario import Config, now
from dejavu_cache.system.notices import whoami


def test_a_name_that_is_no_text_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "b\udcff")
    whoami.cache_clear()
    try:
        name = whoami()
    finally:
        whoami.cache_clear()
    assert name.startswith("b?@")
    assert Measurement(config=Config(), median=1.0, at=now(), by=name).by == name
