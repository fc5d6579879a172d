"""The list of slow tests names tests that exist."""

from __future__ import annotations

from support.processes import ROOT
from support.slow_list import read_slow_list


def test_every_entry_is_a_test_that_exists() -> None:
    inherited = (ROOT / "dejavu_cache" / "testing.py").read_text(encoding="utf-8")
    for entry in read_slow_list():
        module, *classes, name = entry.split("::")
        text = (ROOT / module).read_text(encoding="utf-8")
        assert all(f"class {each}(" in text or f"class {each}:" in text for each in classes), entry
        text += inherited if classes else ""
        assert f"def {name}(" in text, f"{entry}: run `make slow-list`"


def test_the_list_is_sorted_and_has_no_entry_twice() -> None:
    entries = read_slow_list()
    assert entries == sorted(set(entries))
