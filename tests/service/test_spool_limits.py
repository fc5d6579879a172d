"""A spool deletes the oldest beyond its size, and what waited too long in vain."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dejavu_client.http import spool as spool_module
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.spool import Spool, all_spools
from support.bad_server import BadServer
from support.processes import dejavu
from support.service import Running, free_port, running_server
from support.spools import deliver, numbers, singles, spool_of
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
    spool.sweep(())
    assert (len(spool), len(spool.set_aside())) == (10, 1)
    newest = [file.path for file in spool.waiting()][-4:]
    monkeypatch.setattr(spool_module, "MOST_BYTES", 4 * 4096)
    with spool.exclusive():
        spool.sweep(())
    assert len(spool) == 10, "somebody is sending them"
    spool.sweep(())
    assert [file.path for file in spool.waiting()] == newest
    assert spool.set_aside() == []
    assert "7 record sets for https://server deleted" in caplog.text
    os.utime(newest[0], (0, 0))
    os.utime(newest[1], (0, 0))
    spool.sweep({newest[1]})
    assert {file.path for file in spool.waiting()} == {*newest}
    a_week_passes(spool)
    spool.sweep({newest[1]})
    assert {file.path for file in spool.waiting()} == {*newest} - {newest[1]}
    assert [other.server for other in all_spools(tmp_path)] == ["https://server"]


def test_a_spool_is_bounded_on_a_file_system_without_locks_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    monkeypatch.setattr(spool_module, "MOST_BYTES", 4 * 4096)
    spool = spool_of("https://server", tmp_path, *singles(*range(10)))
    spool.sweep(())
    assert len(spool) == 4


LONG_AGO = (1000.0, time.time() - 91 * 86_400)
"""Dates of files that were written before the clock was set, or 91 days ago."""


def make_old_spool(url: str, folder: Path, written: float, *ms: int) -> Spool:
    """Return a spool with files that are older than any may become."""
    spool = spool_of(url, folder, *singles(*ms))
    for file in spool.waiting():
        os.utime(file.path, (written, written))
    return spool


def a_week_passes(spool: Spool) -> None:
    """Date back when files were first found overdue."""
    for mark in spool.folder.glob("overdue/*"):
        os.utime(mark, (time.time() - 7.1 * 86_400,) * 2)


@pytest.mark.parametrize("written", LONG_AGO, ids=["clock not set", "91 days"])
def test_what_waited_too_long_is_sent_before_anything_is_deleted(
    written: float, server: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = make_old_spool(server.base, tmp_path, written, 1, 2, 3, 4, 5)
    store = RemoteStore(ProtocolClient(server.base), wait=30, spool=spool)
    wait_until(lambda: len(spool) == 0)
    store.close()
    assert numbers(server.base) == {1, 2, 3, 4, 5}
    assert "were deleted" not in caplog.text


def test_sync_sends_what_waited_too_long(server: Running, tmp_path: Path) -> None:
    url = f"{server.base}?namespace=main"
    spool = make_old_spool(url, tmp_path / "dejavu-cache" / "spool", LONG_AGO[0], 1, 2, 3, 4, 5)
    done = dejavu("sync", "--store", f"{tmp_path / 'store'},{server.base}",
                  XDG_CACHE_HOME=str(tmp_path))  # fmt: skip
    assert (done.returncode, len(spool)) == (0, 0), done
    assert "5 record sets that waited were sent" in done.stdout
    assert "were deleted" not in done.stderr
    assert numbers(server.base) == {1, 2, 3, 4, 5}


def try_in_vain(spool: Spool, *, until: Callable[[], bool]) -> None:
    """Let a process try to send a spool to a server that is away."""
    store = RemoteStore(ProtocolClient(f"http://127.0.0.1:{free_port()}"), wait=5, spool=spool)
    wait_until(until)
    store.close()
    wait_until(lambda: not store.sender._has_thread)


def test_what_waited_too_long_is_deleted_once_it_cannot_be_sent_for_a_week(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine that was off for months may start before the way to its server does."""
    spool = make_old_spool("x", tmp_path, LONG_AGO[1], 1, 2)
    (young,) = {file.path for file in spool_of("x", tmp_path, *singles(3)).waiting()} - {
        file.path for file in spool.waiting() if file.written < time.time() - 86_400
    }
    marks = spool.folder / "overdue"
    for _ in range(2):
        try_in_vain(spool, until=lambda: len(list(marks.glob("*"))) == 2)
        assert len(spool) == 3
    a_week_passes(spool)
    try_in_vain(spool, until=lambda: len(spool) == 1)
    assert [file.path for file in spool.waiting()] == [young]
    assert "2 record sets for x deleted" in caplog.text
    assert list(marks.iterdir()) == []


def test_what_is_sent_after_all_leaves_no_mark_of_its_delay(
    server: Running, tmp_path: Path
) -> None:
    """The marks of overdue files go with these."""
    spool = make_old_spool(server.base, tmp_path, LONG_AGO[1], 1, 2)
    spool.sweep({file.path for file in spool.waiting()})
    assert len(spool) == 2
    assert deliver(spool, server).sent == 2
    spool.sweep(())
    assert list((spool.folder / "overdue").iterdir()) == []


def test_a_server_that_is_only_busy_costs_no_records(tmp_path: Path) -> None:
    busy = BadServer(
        lambda peer: peer.sendall(
            b"HTTP/1.1 503 Busy\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"
        )
    )
    spool = make_old_spool(busy.url, tmp_path, LONG_AGO[0], 1, 2)
    store = RemoteStore(ProtocolClient(busy.url), wait=5, spool=spool)
    wait_until(lambda: store.circuit.busy is not None)
    store.close()
    wait_until(lambda: not store.sender._has_thread)
    assert len(spool) == 2
    busy.close()
