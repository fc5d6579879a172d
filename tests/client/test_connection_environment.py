"""Proxies and certificates of the environment that cannot be used fail no launch."""

from __future__ import annotations

from pathlib import Path

import pytest
from dejavu_client.http.errors import UnreachableError
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.sender import Spool
from dejavu_client.http.transport import shared_transport
from support.command_line import run_cli
from support.records import context, record

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
    monkeypatch.setattr(shared_transport, "_client", None)
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
