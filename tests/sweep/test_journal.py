"""What a sweep left is taken over by the next one, whatever state the file is in."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes import run_python
from support.records import MOMENT, config, context, measurement, record

from dejavu_cache.model.record import Failure, Measurement, RecordSet
from dejavu_cache.model.scenario import canonical_json
from dejavu_cache.stores import FileStore
from dejavu_cache.sweep.journal import Journal


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


@pytest.fixture
def left_journal(tmp_path: Path) -> Path:
    """Return the path of a journal that a finished sweep left."""
    (tmp_path / "journals").mkdir()
    return tmp_path / "journals" / "left.jsonl"


def line(m: int) -> bytes:
    return canonical_json(RecordSet(context=context(), records=(record(m),))).encode() + b"\n"


def recorded_sizes(store: FileStore, left_journal: Path) -> list[object]:
    """Begin another sweep; return the sizes that the store then has."""
    Journal(store, left_journal.parent).close()
    return [entry.scenario.args["M"] for entry in store.records(context())]


def test_without_a_journal_measurements_go_to_the_store_at_once(
    store: FileStore, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    journal = Journal(store, tmp_path / "file" / "journals")
    journal.put(context(), [record(1)])
    assert [entry.scenario.args["M"] for entry in store.records(context())] == [1]


def test_a_line_that_the_disk_had_no_room_for_does_not_spoil_the_next(tmp_path: Path) -> None:
    """Limit the file size, so that the kernel refuses a line midway as a full disk does."""
    code = """
        import os, resource, signal, sys
        from pathlib import Path
        from support.records import context, record
        from dejavu_cache.errors import StoreError
        from dejavu_cache.stores import FileStore
        from dejavu_cache.sweep.journal import Journal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        journal = Journal(FileStore(sys.argv[1]), Path(sys.argv[2]))
        journal.put(context(), [record(1)])
        _, unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (journal._path.stat().st_size + 100, unlimited))
        try:
            journal.put(context(), [record(2)])
        except StoreError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
        journal.put(context(), [record(3)])
        os._exit(0)  # as a killed worker ends
    """
    journals = tmp_path / "journals"
    (tmp_path / "store").touch()  # the store takes nothing either
    ended = run_python(code, str(tmp_path / "store"), str(journals))
    assert "cannot be written" in ended.stdout
    (tmp_path / "store").unlink()
    store = FileStore(tmp_path / "store")
    assert recorded_sizes(store, journals / "any") == [1, 3]
    assert [path.suffix for path in journals.iterdir()] == [".damaged"]


@pytest.mark.parametrize(
    "damage", [b"\xff\n", b"{}\n", line(3)[:40] + b"\n", b'{"format": "new"}\n']
)
def test_a_damaged_line_costs_no_other_and_the_file_is_set_aside(
    store: FileStore, left_journal: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    intact = line(1) + damage + line(2)
    left_journal.write_bytes(intact)
    assert recorded_sizes(store, left_journal) == [1, 2]
    (aside,) = left_journal.parent.iterdir()
    assert (aside.name, aside.read_bytes()) == ("left.damaged", intact)
    assert f"{left_journal}, line 1, is damaged" in caplog.text


def test_a_line_of_a_newer_version_is_left_for_it(
    store: FileStore, left_journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    intact = line(1) + b'{"format": 99, "what": "who knows"}\n'
    left_journal.write_bytes(intact)
    assert recorded_sizes(store, left_journal) == []
    assert left_journal.read_bytes() == intact
    assert "line 1, has format 99" in caplog.text
    assert "upgrade dejavu-cache" in caplog.text


@pytest.mark.parametrize("separator", ["\u2028", "\u0085"])
def test_only_a_newline_ends_a_line(store: FileStore, left_journal: Path, separator: str) -> None:
    """Compilers' messages may hold all kinds of separators."""
    failure = Failure(kind="compile_error", reason=f"one{separator}two")
    failed = record(1, measurement(32), Measurement(config=config(64), failure=failure, at=MOMENT))
    text = canonical_json(RecordSet(context=context(), records=(failed,)))
    left_journal.write_text(text + "\n", encoding="utf-8")
    assert recorded_sizes(store, left_journal) == [1]
    assert next(store.records(context())) == failed
