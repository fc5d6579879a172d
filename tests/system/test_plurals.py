"""Numbers with their nouns."""

from __future__ import annotations

from dejavu_cache.system.notices import counted


def test_one_is_told_from_any_other_number() -> None:
    assert [counted(number, "record") for number in (0, 1, 2)] == [
        "0 records", "1 record", "2 records",
    ]  # fmt: skip
    assert [counted(number, "miss is", "misses are") for number in (1, 2)] == [
        "1 miss is", "2 misses are",
    ]  # fmt: skip
    assert counted(12345, "case", grouped=True) == "12,345 cases"
