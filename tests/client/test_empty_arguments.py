"""An empty argument, as a shell makes of a variable that is not set, never means everything."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import run_cli
from support.records import context, record

from dejavu_cache.stores import FileStore


@pytest.mark.parametrize(
    "words",
    [
        ("gc", "", "--yes", "--store", "{store}"),
        ("gc", "--all", "--yes", "--store", ""),
        ("gc", "--days", "0", "--store", ""),
        ("pin", "", "--config", "BLOCK=64", "--store", "{store}"),
        ("export", "--kernel", "", "--store", "{store}"),
        ("export", "--vllm", "", "--store", "{store}"),
        ("export", "", "--store", "{store}"),
        ("sync", "--push-only", "--store", ""),
        ("ls", "--device", "", "--store", "{store}"),
        ("ls", "--triton", "", "--store", "{store}"),
        ("import", "{store}", "--into", ""),
        ("import", "{store}", "", "--into", "{store}/new"),
        ("prewarm", "module", "--device", "X", "--out", "{store}/new", "--store", ""),
    ],
    ids=" ".join,
)
def test_it_is_refused(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    store.put(context(), [record(16)])
    monkeypatch.setenv("DEJAVU_CACHE_URL", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    seen = run_cli(*(word.format(store=tmp_path) for word in words))
    assert (seen.returncode, seen.stdout) == (2, "")
    assert "it is empty" in seen.stderr
    assert sorted(tmp_path.rglob("*")) == before
