"""The token that a client sends, from a text or a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dejavu_client.http.transport import TokenSource

from dejavu_cache.settings import Settings

SENT = {"Authorization": "Bearer dejavu_1_x-Y"}


@pytest.mark.parametrize("around", ["{}", "{}\n", " {}\r\n", "{}\u00a0", '"{}"', "'{}'\n"])
def test_what_surrounds_a_token_is_not_sent(around: str, tmp_path: Path) -> None:
    text = around.format("dejavu_1_x-Y")
    assert TokenSource(text).headers() == SENT
    file = tmp_path / "token"
    file.write_text(text, encoding="utf-8")
    assert TokenSource(file=file).headers() == SENT


@pytest.mark.parametrize("text", ["se cret", "secr\u00e9t", "secret\nsecret", "\x00secret"])
def test_what_is_no_token_is_neither_sent_nor_shown(
    text: str, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    assert TokenSource(text).headers() == {}
    shown = caplog.text + "".join(str(warning.message) for warning in recwarn)
    assert "DEJAVU_CACHE_TOKEN" in shown
    assert "secr" not in shown
    assert text not in repr(Settings(token=text))


def test_a_file_is_read_again_when_it_is_replaced_or_written_in_place(tmp_path: Path) -> None:
    """A shell's `> file` empties the file long before the command behind it has a new token."""
    file, new = tmp_path / "token", tmp_path / "new"
    source = TokenSource("ignored", file)
    assert source.headers() == {"Authorization": "Bearer ignored"}
    file.write_text("first")
    assert source.headers() == {"Authorization": "Bearer first"}
    new.write_text("other")
    os.replace(new, file)
    assert source.headers() == {"Authorization": "Bearer other"}
    file.unlink()
    assert source.headers() == {"Authorization": "Bearer other"}
    for emptied in ("", "\n"):
        file.write_text(emptied)
        assert source.headers() == {"Authorization": "Bearer other"}
    file.write_text("third\n")
    assert source.headers() == {"Authorization": "Bearer third"}
