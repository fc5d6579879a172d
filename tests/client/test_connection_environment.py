"""Proxies, certificates and tokens of the environment, which fail no launch."""

import os
from pathlib import Path

import pytest
from dejavu_client.http.errors import UnreachableError
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.sender import Spool
from dejavu_client.http.transport import TokenSource, shared_transport
from support.command_line import run_cli
from support.records import context, record

from dejavu_cache.settings import Settings

SERVER = "http://127.0.0.1:9"
UNUSABLE = {
    "ALL_PROXY": "socks5://127.0.0.1:1",
    "HTTP_PROXY": "ftp://proxy",
    "NO_PROXY": "[::1",
    "SSL_CERT_FILE": "/nowhere/ca.pem",
}


@pytest.fixture(params=UNUSABLE)
def variable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set one variable to what no connection can be made with, and return its name."""
    monkeypatch.setenv(request.param, UNUSABLE[request.param])
    monkeypatch.setattr(shared_transport, "_connections", None)
    return str(request.param)


def test_a_refused_connection_says_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*UNUSABLE, *map(str.lower, UNUSABLE)):
        monkeypatch.delenv(name, raising=False)
    seen = run_cli("ls", "--store", SERVER)
    assert (seen.returncode, len(seen.stderr.splitlines())) == (3, 1), seen
    assert "Connection refused; check its URL, and that it runs" in seen.stderr


def test_a_server_counts_as_unreachable_and_the_variable_is_named(
    variable: str, tmp_path: Path
) -> None:
    """A look-up fails as for a server that is away, and what is written waits on disk."""
    spool = Spool("x", tmp_path)
    store = RemoteStore(ProtocolClient(SERVER), wait=5, spool=spool)
    with pytest.raises(UnreachableError, match=variable):
        store.get(context(), record(1).scenario)
    store.put(context(), [record(1)])
    store.close()
    assert len(spool) == 1


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
    file.unlink()
    os.mkfifo(file)  # to which nobody writes
    assert source.headers() == {"Authorization": "Bearer third"}
