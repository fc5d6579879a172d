"""What version 0.1 has frozen is there: names that others use, and files that others keep."""

import runpy
from pathlib import Path

import pytest
from support.checkout import ROOT

from dejavu_cache.model.record import RecordSet
from dejavu_cache.stores import FileStore, open_store
from dejavu_cache.stores.manifest import read_manifest

FROZEN = ROOT / "tests" / "frozen"


def record_set() -> RecordSet:
    """Return what every file in the folder says, in its own format."""
    return RecordSet.model_validate_json((FROZEN / "records.jsonl").read_bytes())


def test_no_name_goes_and_new_ones_are_listed() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "write_reference.py"))
    listed = tool["frozen_lines"](tool["FROZEN"].read_text(encoding="utf-8"))
    names = tool["frozen_names"]()
    assert not set(listed) - set(names), "kept until 0.2: see docs/reference/compatibility.md"
    assert names == listed, "run `make reference`"


@pytest.mark.parametrize("folder", ["format-1", "format-2", "packed"])
def test_a_folder_of_records_is_read(folder: str) -> None:
    expected = record_set()
    store = FileStore(FROZEN / folder, read_only=True)
    assert [*store.contexts()] == [expected.context]
    assert not store.problems()
    records = expected.records[-1:] if folder == "format-1" else expected.records
    assert tuple(store.records(expected.context)) == records


def test_a_signed_set_is_read() -> None:
    key = (FROZEN / "set" / "key").read_text().strip()
    records = open_store(f"static+{(FROZEN / 'set').as_uri()}?key={key}").records(
        record_set().context
    )
    unpinned = (record.model_copy(update={"pin": None}) for record in record_set().records)
    assert [*records] == [*unpinned]


def test_a_prewarmed_folder_is_known() -> None:
    assert read_manifest(FROZEN).text == (FROZEN / "prewarmed.json").read_text()


def test_what_is_written_is_still_the_same(tmp_path: Path) -> None:
    expected = record_set()
    with FileStore(tmp_path) as store:
        store.put(expected.context, expected.records)
        (written,) = store.record_sets()
    (path,) = tmp_path.rglob("*.json")
    assert path.read_bytes() == (FROZEN / "format-2" / path.relative_to(tmp_path)).read_bytes()
    assert written == expected
