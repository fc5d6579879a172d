"""A server that asks its clients to wait, restarts, or holds far more than a launch needs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from dejavu_client.http.errors import BusyError, RemoteError
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.spool import Spool
from support.kernels import launch, load
from support.records import config, context, measurement, record
from support.service import Running, running_server
from support.sweeping import wait_until

from dejavu_cache.model.record import RecordSet, Winner
from dejavu_cache.model.scenario import now


@pytest.fixture
def server(sqlite_url: str, tmp_path: Path) -> Iterator[Running]:
    with running_server(sqlite_url, tmp_path / "log") as started:
        yield started


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[RemoteStore]]:
    """Yield a list of stores to close."""
    opened: list[RemoteStore] = []
    yield opened
    for store in opened:
        store.close()


def open_remote(stores: list[RemoteStore], base: str, wait: float, tmp_path: Path) -> RemoteStore:
    spool = Spool("x", tmp_path / f"spool{len(stores)}")
    stores.append(RemoteStore(ProtocolClient(base), wait=wait, spool=spool))
    return stores[-1]


def test_a_launch_reads_one_record_of_a_context_too_large_to_read(
    server: Running, stores: list[RemoteStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = [
        record(m, *(measurement(block, block / 7) for block in range(1, 5))) for m in range(1500)
    ]
    ProtocolClient(server.base).send(RecordSet(context=context(), records=tuple(large)))
    with monkeypatch.context() as keyed_reads_alone:
        keyed_reads_alone.setattr(ProtocolClient, "records", None)
        for m in (0, 700, 1499):
            store = open_remote(stores, server.base, 20.0, tmp_path)
            found = store.get(context(), record(m).scenario)
            assert found is not None
            assert found.record == large[m]
    assert len(list(stores[0].records(context()))) == 1500


def test_a_launch_waits_for_a_server_that_has_too_many_clients(
    sqlite_url: str, stores: list[RemoteStore], tmp_path: Path
) -> None:
    """Rather than tune what the server has."""
    limits = {"DEJAVU_SERVER_RATE": "1"}
    with running_server(sqlite_url, tmp_path / "log", limits) as server:
        benchmarked = []
        for _ in range(3):
            kernel = load(tmp_path / "kernels.py").add
            kernel._options["store"] = open_remote(stores, server.base, 2.0, tmp_path)
            launch(kernel, 100)
            stores[-1].sender.flush(240)
            benchmarked.append(kernel.benchmarked)
            while ask_once(server.base):  # until nothing is left of the burst
                pass
        assert benchmarked == [3, 0, 0]


@pytest.mark.parametrize("mode", ["tune", "strict"])
def test_a_launch_waits_for_a_silent_server_that_may_be_busy(
    mode: str, server: Running, stores: list[RemoteStore], tmp_path: Path
) -> None:
    """Several times as long as otherwise, rather than tune what the server has, or fail."""
    remote = [open_remote(stores, server.base, wait, tmp_path) for wait in (20, 0.25)]
    kernels = [load(tmp_path / "kernels.py").add for _ in remote]
    for kernel, store in zip(kernels, remote, strict=True):
        kernel._options["store"] = store
    launch(kernels[0], 100)
    assert remote[0].sender.flush(240)
    pid = server.process.pid
    kernels[1]._options["mode"] = mode
    os.kill(pid, signal.SIGSTOP)
    wake = threading.Timer(0.6, os.kill, [pid, signal.SIGCONT])
    wake.start()
    launch(kernels[1], 100)
    wake.join()
    assert kernels[1].benchmarked == 0


def ask_once(base: str) -> bool:
    try:
        ProtocolClient(base).record(context(), record(1).scenario)
    except BusyError:
        return False
    return True


def test_a_server_that_asks_to_wait_is_left_alone_and_has_not_failed(
    sqlite_url: str, stores: list[RemoteStore], tmp_path: Path
) -> None:
    limits = {"DEJAVU_SERVER_RATE": "0.01"}
    with running_server(sqlite_url, tmp_path / "log", limits) as server:
        assert ask_once(server.base)
        store = open_remote(stores, server.base, 5.0, tmp_path)
        for _ in range(100):
            with pytest.raises(BusyError, match="429"):
                store.get(context(), record(1).scenario)
        assert store.calls.closed
        assert server.log.read_text().count('"status": 429') <= 2
        with store.lease(context(), record(1).scenario, wait=0) as may_tune:
            assert not may_tune


def test_who_waits_for_a_lease_waits_through_a_restart(
    server: Running, stores: list[RemoteStore], tmp_path: Path
) -> None:
    scenario = record(1).scenario
    tuner, waiter = (open_remote(stores, server.base, 5.0, tmp_path) for _ in range(2))
    outcomes: list[tuple[bool, bool]] = []

    def wait() -> None:
        with waiter.lease(context(), scenario, wait=60) as may_tune:
            outcomes.append((may_tune, waiter.get(context(), scenario, fresh=True) is not None))

    with tuner.lease(context(), scenario, wait=0) as may_tune:
        assert may_tune
        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: server.log.read_text().count("/v1/main/leases") == 2)  # both asked
        server.kill()
        time.sleep(1.5)
        assert thread.is_alive(), "it does not tune on its own"
        server.start()
        tuner.put(context(), [record(1, winner=Winner(config=config(64), at=now()))], now=True)
    thread.join(240)
    assert outcomes
    assert outcomes[0][1], "the record is there before anybody may tune"


def test_a_lease_ends_after_what_was_measured_while_the_server_was_away_is_there(
    server: Running, stores: list[RemoteStore], tmp_path: Path
) -> None:
    scenario = record(1).scenario
    tuner, waiter = (open_remote(stores, server.base, 5.0, tmp_path) for _ in range(2))
    with tuner.lease(context(), scenario, wait=0) as may_tune:
        assert may_tune
        server.kill()
        with suppress(RemoteError):
            tuner.get(context(), scenario, fresh=True)
        assert not tuner.calls.closed
        tuner.put(context(), [record(1, winner=Winner(config=config(64), at=now()))])
        server.start()
        wait_until(lambda: tuner.calls.closed)

    def look_up() -> object:
        with waiter.lease(context(), scenario, wait=60) as may_tune:
            assert may_tune
            return waiter.get(context(), scenario, fresh=True)

    with ThreadPoolExecutor() as pool:  # this thread would be the holder that has the lease
        assert pool.submit(look_up).result() is not None


def test_a_server_that_was_never_there_is_not_waited_for(
    server: Running, stores: list[RemoteStore], tmp_path: Path
) -> None:
    server.kill()
    store = open_remote(stores, server.base, 0.25, tmp_path)
    with pytest.raises(RemoteError):
        store.get(context(), record(1).scenario)
    with store.lease(context(), record(1).scenario, wait=600) as may_tune:
        assert may_tune
