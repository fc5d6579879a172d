"""Numbers with their nouns, and names of users and hosts whatever the environment says."""

from __future__ import annotations

import pytest

from dejavu_cache.model.record import Measurement
from dejavu_cache.model.scenario import Config, now
from dejavu_cache.system.notices import counted, whoami


def test_one_is_told_from_any_other_number() -> None:
    said = [counted(number, "record") for number in (0, 1, 2)]
    assert said == ["0 records", "1 record", "2 records"]
    said = [counted(number, "miss is", "misses are") for number in (1, 2)]
    assert said == ["1 miss is", "2 misses are"]
    assert counted(12345, "case", grouped=True) == "12,345 cases"


def test_a_name_that_is_no_text_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "b\udcff")
    whoami.cache_clear()
    try:
        name = whoami()
    finally:
        whoami.cache_clear()
    assert name.startswith("b?@")
    assert Measurement(config=Config(), median=1.0, at=now(), by=name).by == name
