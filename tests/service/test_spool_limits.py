"""A spool deletes the oldest beyond its size, and nothing for its age."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dejavu_client.http import spool as spool_module
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from support.records import context, record
from support.service import Running, running_server
from support.spools import numbers, singles, spool_of
from support.sweeping import wait_until


@pytest.fixture
def server(sqlite_url: str, tmp_path: Path) -> Iterator[Running]:
    with running_server(sqlite_url, tmp_path / "server.log") as started:
        yield started


def test_a_spool_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was set aside goes first, then what has waited longest."""
    spool = spool_of("https://server", tmp_path, *singles(*range(10)))
    for age, file in enumerate(reversed(spool.waiting())):
        os.utime(file.path, (time.time() - 60 * age,) * 2)
    spool.put_aside(b"{}", "422")
    spool.trim()
    assert (len(spool), len(spool.set_aside())) == (10, 1)
    newest = [file.path for file in spool.waiting()][-4:]
    monkeypatch.setattr(spool_module, "MOST_BYTES", 4 * 4096)
    spool.trim()
    assert [file.path for file in spool.waiting()] == newest
    assert spool.set_aside() == []
    assert "7 record sets for https://server deleted" in caplog.text


def test_what_has_waited_for_ever_is_sent(server: Running, tmp_path: Path) -> None:
    """Also what was written before the clock was set."""
    spool = spool_of(server.base, tmp_path, *singles(1, 2, 3))
    for file in spool.waiting():
        os.utime(file.path, (1000.0, 1000.0))
    store = RemoteStore(ProtocolClient(server.base), wait=30, spool=spool)
    wait_until(lambda: len(spool) == 0)
    store.close()
    assert numbers(server.base) == {1, 2, 3}


def test_a_folder_that_cannot_be_listed_ends_no_sender(
    server: Running,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever waits for the thread goes on too."""
    spool = spool_of(server.base, tmp_path)
    store = RemoteStore(ProtocolClient(server.base), wait=30, spool=spool)
    with monkeypatch.context() as broken:
        broken.setattr(spool_module.Spool, "waiting", lambda _: 1 / 0)
        store.put(context(), [record(1)])
        assert store.sender.flush(240)
        wait_until(lambda: "ZeroDivisionError" in caplog.text)
    store.put(context(), [record(2)])
    wait_until(lambda: numbers(server.base) == {1, 2})
    store.close()
