"""Folders that disappear while a command reads them, as those of network file systems do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import run_cli
from support.records import context, record

from dejavu_cache.errors import ExitCode
from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Context
from dejavu_cache.stores import FileStore


@pytest.mark.parametrize(
    "command",
    ["export {out} --store {store}", "import file://{store} --into {new}", "diff {store} {other}"],
)
def test_records_that_could_not_be_read_are_not_left_out_silently(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exported parts would pass for the whole, and replace an earlier export."""
    store, other = FileStore(tmp_path / "store"), FileStore(tmp_path / "other")
    for name in ("a.x", "b.x", "c.x"):
        store.put(context(kernel=name), [record(1)])
        other.put(context(kernel=name), [record(1)])
    out = tmp_path / "out"
    out.write_text("before")
    read_records = FileStore.records

    def read_and_vanish(self: FileStore, of: Context) -> Iterator[Record]:
        if of.kernel.name == "b.x" and store.root.exists():
            store.root.rename(tmp_path / "elsewhere")
        return read_records(self, of)

    monkeypatch.setattr(FileStore, "records", read_and_vanish)
    places = {"out": out, "new": tmp_path / "new", "store": store.root, "other": other.root}
    seen = run_cli(*command.format(**places).split())
    assert seen.returncode == ExitCode.UNUSABLE, seen
    assert f"{store.root} disappeared while it was read" in seen.stderr
    assert out.read_text() == "before"
    assert sorted(tmp_path.glob("out*")) == [out]
