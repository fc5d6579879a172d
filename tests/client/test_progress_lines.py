"""Progress: a line now and then on standard error."""

from __future__ import annotations

from pathlib import Path

import pytest
from dejavu_client.cli.main import run_command
from support.records import context, record

from dejavu_cache.stores import FileStore
from dejavu_cache.system import notices


def test_a_short_copy_says_nothing_and_a_long_one_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = FileStore(tmp_path / "source")
    source.put(context(), [record(32), record(64)])
    words = ["import", str(source.root), "--into", str(tmp_path / "target")]
    assert run_command(words) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(notices, "LINE_EVERY", 0.0)
    assert run_command(words) == 0
    assert "target: 0 new, 2 known after 0 s" in capsys.readouterr().err
