"""A running server keeps the store contract, and shares what one machine found with the next."""

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from unittest.mock import create_autospec

import httpx
import pytest
import torch
from dejavu_client.http import remote_store
from dejavu_client.http.errors import BusyError, RemoteError
from dejavu_client.http.protocol_client import ProtocolClient, split_server_url
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.sender import Spool
from dejavu_client.http.transport import Transport
from support.command_line import run_cli
from support.kernels import launch, load
from support.processes import dejavu
from support.records import MOMENT, config, context, measurement, record
from support.remote_stores import open_remote, through
from support.service import Running, begin_post, free_port, running_server
from support.sweeping import wait_until

from dejavu_cache.model.record import Record, RecordSet, Winner
from dejavu_cache.model.scenario import Scenario, now
from dejavu_cache.model.worth import ONCE, MissCount, Saving
from dejavu_cache.stores import FileStore, Store, TieredStore
from dejavu_cache.testing import StoreContract


@pytest.fixture
def server(postgres_url: str, tmp_path: Path) -> Iterator[Running]:
    """Yield a server that the test may stop."""
    with running_server(postgres_url, tmp_path / "server.log") as started:
        yield started


class TestRemoteStore(StoreContract):
    first_claim_stands = True

    def reopen(self, store: Store) -> Store:
        assert isinstance(store, RemoteStore)
        return open_remote(store.url, store.spool.folder.parents[1])


class TestLocalFirst:
    """A folder before the server: what launches use."""

    def test_what_the_server_knows_is_filled_in_and_not_asked_for_again(
        self, store: RemoteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.put(context(), [record(16)])
        assert store.sender.flush(240)
        store.close()
        folder = FileStore(tmp_path / "folder")
        tiered = TieredStore([folder, store])
        stored = tiered.get(context(), record(16).scenario)
        assert stored is not None
        assert stored.store == store.url
        monkeypatch.setattr(RemoteStore, "get", lambda *_, **__: pytest.fail("the server is asked"))
        stored = tiered.get(context(), record(16).scenario)
        assert stored is not None
        assert stored.store == folder.url

    def test_a_scenario_is_asked_for_once_be_it_recorded_or_not(
        self, store: RemoteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.put(context(), [record(m) for m in range(10)])
        assert store.sender.flush(240)
        store.close()
        ask = create_autospec(ProtocolClient.record, side_effect=ProtocolClient.record)
        monkeypatch.setattr(ProtocolClient, "record", ask)
        for m in [*range(12), *range(12)]:
            assert (store.get(context(), record(m).scenario) is not None) == (m < 10)
        assert ask.call_count == 12


def test_a_launch_waits_once_for_a_server_that_answers_each_question_late(
    namespace_url: str, tmp_path: Path
) -> None:
    kernel, asked = load(tmp_path / "kernels.py").add, list[str]()

    class Late(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            asked.append(request.method)
            request.extensions["trace"]("http11.receive_response_headers.started", {})
            time.sleep(0.4)
            return super().handle_request(request)

    store = open_remote(namespace_url, tmp_path, wait=0.5)
    store.client._transport = Transport(Late())
    request = kernel.request(torch.ones(1), torch.ones(1), 1)
    near = [Scenario(args={"n": n}, dtypes=request.scenario.dtypes) for n in range(9)]
    known = [Record(scenario=each, measurements=(measurement(), measurement(32))) for each in near]
    store.client.send(RecordSet(context=request.context, records=tuple(known)))
    kernel._options.update(store=store, mode="reuse")
    launch(kernel, 100)
    assert 1 < asked.count("GET") < 5


@pytest.mark.parametrize("is_later", [False, True], ids=["this process", "a later one"])
def test_the_spool_empties_when_the_server_is_back(
    is_later: bool, url: str, tmp_path: Path
) -> None:
    """Exactly once in effect, whoever sends it."""
    base = f"http://127.0.0.1:{(port := free_port())}"
    store = open_remote(base, tmp_path, wait=0.2)
    for m in range(5):
        store.put(context(), [record(m)])
    assert store.sender.flush(240)
    assert len(store.spool) == 5
    if is_later:
        store.close()
        for file in store.spool.waiting():  # before the clock was set, or for ever
            os.utime(file.path, (1000.0, 1000.0))
    with running_server(url, tmp_path / "server.log", port=port):
        if is_later:
            store = open_remote(base, tmp_path)
        wait_until(lambda: len(store.spool) == 0)
        assert store.calls.closed
        stored = list(ProtocolClient(base).records(context()))
        assert [entry.scenario.args["M"] for entry in stored] == [0, 1, 2, 3, 4]
        assert all(len(entry.measurements) == 1 for entry in stored)


def test_misses_that_a_server_takes_in_no_single_request_are_all_counted(
    shared_server: Running,
) -> None:
    client = ProtocolClient(shared_server.base, namespace="misses")
    sizes = {f"size_{number}": number for number in range(250)}
    missed = [Scenario(args={**sizes, "M": m}, dtypes={}) for m in range(400)]
    client.report_misses({(context(), scenario): ONCE for scenario in missed})
    assert len(client.misses(limit=1000)) == 400


def test_timings_that_a_server_passes_over_are_named_once(
    namespace_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine whose clock is days ahead must not believe that it shares."""
    store = open_remote(namespace_url, tmp_path)
    ahead = measurement(16, at=now() + timedelta(days=3))
    for number in (1, 2):
        store.put(context(), [record(number, ahead)])
        assert store.sender.flush(240)
    assert caplog.text.count("passed over some of these timings") == 1


def test_a_forked_child_has_a_sender_of_its_own(namespace_url: str, tmp_path: Path) -> None:
    store = open_remote(namespace_url, tmp_path)
    store.put(context(), [record(1)])
    assert store.sender.flush(240)
    store.close()
    child = os.fork()
    if not child:
        try:
            store.put(context(), [record(2)])
            store.sender.flush(240)
            store.close()
            os._exit(0 if store.get(context(), record(2).scenario, fresh=True) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(store.records(context()))) == 2


def test_the_commands_move_records(server: Running, tmp_path: Path) -> None:
    folder, copy = FileStore(tmp_path / "folder"), FileStore(tmp_path / "copy")
    winner = Winner(config=config(32), at=now())
    tuned = record(16, measurement(32, 1.0), measurement(64, 2.0), winner=winner)
    folder.put(context(), [tuned, record(32)])

    def run(words: str, store: object = server.base) -> str:
        done = run_cli(*words.split(), "--store", store)
        assert done.returncode == 0, done
        return done.stdout

    assert "2 new, 0 known" in run("sync --push-only", f"{folder.root},{server.base}")
    assert "2 new, 0 known" in run("sync --pull-only", f"{copy.root},{server.base}")
    assert copy.path(context()).read_bytes() == folder.path(context()).read_bytes()
    assert "pinned to BLOCK=64" in run("pin add --where M=16 --config BLOCK=64")
    assert "pinned" in run("show add")
    run("pin add --remove")
    assert "pinned" not in run("show add")
    assert "2 records" in run("promote --to release")
    assert "add" in run("ls", f"{server.base}?namespace=release")
    wanting = open_remote(server.base, tmp_path)
    saving = Saving(expected=1.0, at_least=0.5, takes=2.0)
    for missed in (MissCount(4000, saving), ONCE):
        wanting.miss(context(), record(999).scenario, missed)
    assert wanting.sender.flush(240)
    wanting.close()
    assert "4 s (>= 2 s)" in run("show --misses")
    (shown,) = json.loads(run("show --misses --json"))
    assert (shown["count"], shown["saving"]) == (4001, dict(saving))
    assert "known in" in run("sync", f"{copy.root},{server.base}")


def test_a_lease_is_renewed_as_long_as_it_is_held(
    store: RemoteStore, namespace_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_store, "LEASE_SECONDS", 4.0)
    other = open_remote(namespace_url, tmp_path / "other")
    with store.lease(context(), record(1).scenario, wait=0) as held:
        assert held
        with ThreadPoolExecutor(1) as asking:
            assert not asking.submit(may_lease, other, 8.0).result()
    assert may_lease(other, 240)


def may_lease(store: RemoteStore, wait: float) -> bool:
    with store.lease(context(), record(1).scenario, wait=wait) as granted:
        return granted


def test_who_waits_for_a_lease_wakes_when_the_record_is_there(
    store: RemoteStore, namespace_url: str, tmp_path: Path
) -> None:
    waiter = open_remote(namespace_url, tmp_path / "waiter")
    with ThreadPoolExecutor(1) as waiting:
        with store.lease(context(), record(1).scenario, wait=0) as held:
            assert held
            granted = waiting.submit(may_lease, waiter, 200)
            time.sleep(1)
            assert not granted.done()
            store.put(context(), [record(1, winner=Winner(config=config(64), at=now()))])
        assert granted.result(240)
    assert waiter.get(context(), record(1).scenario, fresh=True) is not None


def test_who_waits_for_a_tune_is_not_sent_its_record_each_time(
    client: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ProtocolClient(str(client.base_url), transport=through(client))
    store = RemoteStore(other, wait=30, spool=Spool("server", tmp_path))
    store.put(context(), [record(1, measurement(32))], now=True)
    lease = other.lease(context(), record(1).scenario, "another process", 300.0)
    answers = list[tuple[str, int]]()
    client.event_hooks = {
        "response": [lambda got: answers.append((got.request.method, got.status_code))]
    }
    monkeypatch.setattr(remote_store, "ASK_SECONDS", 0.01)

    with ThreadPoolExecutor(1) as waiting, store:
        granted = waiting.submit(may_lease, store, 200)
        wait_until(lambda: answers.count(("GET", 304)) > 1)
        other.release(str(lease))
        assert granted.result(240)
    assert answers.count(("GET", 200)) == 2, "when it begins to wait, and as it asks first"


def test_records_on_a_server_are_renamed(namespace_url: str, tmp_path: Path) -> None:
    base, namespace = split_server_url(namespace_url, "main")
    client = ProtocolClient(base, namespace=namespace)
    old, new = context(kernel="pkg.old.add"), context(kernel="pkg.new.add")
    winner = Winner(config=config(32), at=MOMENT)
    tuned = record(16, measurement(32), measurement(64, 2.0), winner=winner)
    with RemoteStore(client, wait=10, spool=Spool(namespace_url, tmp_path / "spool")) as store:
        store.put(old, [tuned, record(32)], now=True)
        client.pin(old, tuned.scenario, config(64), "ann@host")
        before = list(store.records(old))

        arguments = ("rename", "pkg.old.add", "pkg.new.add", "--store", namespace_url)
        assert "2 records) would be renamed to pkg.new.add" in dejavu(*arguments).stdout
        assert list(store.contexts()) == [old]

        done = dejavu(*arguments, "--yes")
        assert (done.returncode, done.stderr) == (0, "")
        assert list(store.contexts()) == [new]
        after = list(store.records(new))
        assert [entry.measurements for entry in after] == [entry.measurements for entry in before]
        assert [entry.winner for entry in after] == [entry.winner for entry in before]
        assert [entry.pinned for entry in after] == [config(64), None]
        assert after[0].pin is not None
        assert after[0].pin.by == "ann@host"
        assert dejavu(*arguments, "--yes").stdout.startswith("nothing to rename")


Connect = Callable[[str, float], RemoteStore]


@pytest.fixture
def connect(tmp_path: Path) -> Connect:
    """Return a function that opens a store with a spool of its own."""
    numbers = itertools.count()
    return lambda base, wait: open_remote(base, tmp_path / str(next(numbers)), wait)


@pytest.mark.parametrize("mode", ["tune", "strict"])
def test_a_launch_waits_for_a_silent_server_that_may_be_busy(
    mode: str, server: Running, connect: Connect, tmp_path: Path
) -> None:
    """Several times as long as otherwise, rather than tune what the server has, or fail."""
    remote = [connect(server.base, wait) for wait in (20, 0.25)]
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


FEW = {"DEJAVU_SERVER_MAX_CONCURRENT_REQUESTS": "5"}
"""Four requests of each caller at a time."""


def occupy(server: Running) -> ExitStack:
    """Send halves of requests, until the server has as many of this caller as it may have."""
    opened = ExitStack()
    for _ in range(4):
        opened.enter_context(begin_post(server, "/v1/main/misses", 100))
    wait_until(lambda: httpx.get(f"{server.base}/v1/main/contexts").status_code == 429)
    return opened


def test_a_server_that_asks_to_wait_is_left_alone_and_has_not_failed(
    sqlite_url: str, connect: Connect, tmp_path: Path
) -> None:
    """A launch waits for it rather than tune what it has."""
    kernels = [load(tmp_path / "kernels.py").add for _ in range(2)]
    with running_server(sqlite_url, tmp_path / "log", FEW) as server:
        for kernel in kernels:
            kernel._options["store"] = connect(server.base, 2.0)
        launch(kernels[0], 100)
        assert kernels[0]._options["store"].sender.flush(240)
        occupied = occupy(server)
        before = server.log.read_text().count('"status": 429')
        store = connect(server.base, 5.0)
        for _ in range(100):
            with pytest.raises(BusyError, match="429"):
                store.get(context(), record(1).scenario)
        assert store.calls.closed
        assert server.log.read_text().count('"status": 429') <= before + 2
        with store.lease(context(), record(1).scenario, wait=0) as may_tune:
            assert not may_tune
        threading.Timer(1.0, occupied.close).start()
        launch(kernels[1], 100)
        assert [kernel.benchmarked for kernel in kernels] == [3, 0]


def test_who_waits_for_a_lease_waits_through_a_restart_and_finds_the_record(
    server: Running, connect: Connect
) -> None:
    """What was measured while the server was away is there before anybody else may tune."""
    scenario = record(1).scenario
    tuner, waiter = (connect(server.base, 5.0) for _ in range(2))

    def look_up() -> object:
        with waiter.lease(context(), scenario, wait=240):
            return waiter.get(context(), scenario, fresh=True)

    with ThreadPoolExecutor(1) as waiting:
        with tuner.lease(context(), scenario, wait=0) as may_tune:
            assert may_tune
            found = waiting.submit(look_up)
            wait_until(lambda: server.log.read_text().count("/v1/main/leases") == 2)  # both asked
            server.kill()
            with suppress(RemoteError):
                tuner.get(context(), scenario, fresh=True)
            assert not tuner.calls.closed
            tuner.put(context(), [record(1, winner=Winner(config=config(64), at=now()))])
            time.sleep(1.5)
            assert not found.done(), "it does not tune on its own"
            server.start()
            wait_until(lambda: tuner.calls.closed)
        assert found.result(240) is not None


def test_a_server_that_was_never_there_is_not_waited_for(server: Running, connect: Connect) -> None:
    server.kill()
    store = connect(server.base, 0.25)
    with pytest.raises(RemoteError):
        store.get(context(), record(1).scenario)
    with store.lease(context(), record(1).scenario, wait=600) as may_tune:
        assert may_tune
