"""Progress: a line now and then on standard error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from dejavu_client.cli import progress_lines
from dejavu_client.cli.main import run_command
from dejavu_client.cli.progress_lines import fit_lines, prewarm_lines, sweep_lines
from support.records import context, record

from dejavu_cache.stores import FileStore


def without_seconds(text: str) -> str:
    """Return a text without the time that a machine took."""
    return re.sub(r"after \d+ s", "after N s", text)


def test_long_commands_say_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_lines, "LINE_EVERY", 0.0)
    on_event = sweep_lines(3)
    for event in ("config", "config", "outcome"):
        on_event({"event": event})
    on_event({"event": "lost", "case": "64x64", "reason": "it was killed"})
    fit_lines("add on H200")(0.25)
    prewarm_lines()(1, 8)
    written = without_seconds(capsys.readouterr().err)
    for line in (
        "sweep: 1 of 3 cases, 2 configs after N s",
        "64x64: it was killed; another process takes it over",
        "add on H200: 25% after N s",
        "prewarm: 1 of 8 binaries after N s",
    ):
        assert line in written


def test_a_short_copy_says_nothing_and_a_long_one_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = FileStore(tmp_path / "source")
    source.put(context(), [record(32), record(64)])
    words = ["merge", str(source.root), "--into", str(tmp_path / "target")]
    assert run_command(words) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress_lines, "LINE_EVERY", 0.0)
    assert run_command(words) == 0
    assert "target: 0 new, 2 known after N s" in without_seconds(capsys.readouterr().err)
