"""Commands on stores of many records, which take ten times their text's memory when parsed."""

from __future__ import annotations

import json
import os
import tracemalloc
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from dejavu_client.cli.main import run_command
from support.command_line import run_cli
from support.records import MOMENT, config, context, measurement, record

from dejavu_cache.model.record import Failure, Measurement, RecordSet, record_set_line
from dejavu_cache.model.scenario import canonical_json
from dejavu_cache.stores import FileStore

MANY = [record(m, *(measurement(block) for block in (16, 32, 64, 128))) for m in range(300)]


@pytest.mark.parametrize("command", [["show", "add", "--json"], ["export"]])
def test_records_pass_one_by_one(command: list[str], tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put(context(), MANY)
    size = store.path(context()).stat().st_size
    assert peak_of(*command, "--store", store.url) < 10 * size


def test_record_sets_are_imported_one_by_one(tmp_path: Path) -> None:
    """All of them are checked first; parsed, they are not kept."""
    file = tmp_path / "export.jsonl"
    with open(file, "w") as lines:
        for number in range(30):
            lines.writelines(record_set_line(context(kernel=f"pkg.k{number}"), MANY[:40]))
    command = ("import", str(file), "--store", str(tmp_path / "store"))
    assert peak_of(*command) < 6 * file.stat().st_size


def peak_of(*command: str) -> int:
    """Run a command twice, and return the most memory that the second run takes."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        run_command(command)  # imports what it needs
        tracemalloc.start()
        try:
            assert run_command(command) == 0
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    return peak


def test_show_prints_one_json_document(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put(context(), MANY[:3])
    out = run_cli("show", "add", "--json", "--store", tmp_path).stdout
    rows = json.loads(out)
    assert out == json.dumps(rows, indent=2) + "\n"
    records = [row["record"] for row in rows]
    assert records == [entry.model_dump(mode="json") for entry in MANY[:3]]


wrong = Measurement(config=config(8), failure=Failure(kind="wrong", reason="no"), at=MOMENT)


@pytest.mark.parametrize("records", [(), (record(1),), (record(1), record(2, wrong))])
def test_the_line_of_a_record_set_is_its_canonical_json(records: tuple[object, ...]) -> None:
    record_set = RecordSet.model_validate({"context": context(), "records": records})
    line = "".join(record_set_line(context(), record_set.records))
    assert line == canonical_json(record_set) + "\n"
