"""A running server keeps the store contract, and shares what one machine found with the next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.spool import Spool
from support.kernels import launch, load
from support.processes import environment
from support.records import context, measurement, record
from support.remote_stores import open_remote
from support.service import Running, free_port, running_server

from dejavu_cache.model.record import Winner
from dejavu_cache.model.scenario import Scenario, now
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

    def test_the_folder_answers_and_the_server_is_not_asked(
        self, store: RemoteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = FileStore(tmp_path / "folder")
        folder.put(context(), [record(16)])
        asked: list[object] = []
        monkeypatch.setattr(ProtocolClient, "record", lambda *args: asked.append(args))
        assert TieredStore([folder, store]).get(context(), record(16).scenario) is not None
        assert asked == []

    def test_what_the_server_knows_is_filled_in(self, store: RemoteStore, tmp_path: Path) -> None:
        store.put(context(), [record(16)])
        assert store.sender.flush(240)
        store.close()
        folder = FileStore(tmp_path / "folder")
        stored = TieredStore([folder, store]).get(context(), record(16).scenario)
        assert stored is not None
        assert stored.store == store.url
        assert folder.get(context(), record(16).scenario) is not None

    def test_a_scenario_is_asked_for_once_be_it_recorded_or_not(
        self, store: RemoteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.put(context(), [record(m) for m in range(10)])
        assert store.sender.flush(240)
        store.close()
        asked = []
        ask = ProtocolClient.record

        def ask_and_count(*args: Any) -> Any:
            asked.append(args)
            return ask(*args)

        monkeypatch.setattr(ProtocolClient, "record", ask_and_count)
        for m in [*range(12), *range(12)]:
            assert (store.get(context(), record(m).scenario) is not None) == (m < 10)
        assert len(asked) == 12


def wait_until_empty(spool: Spool, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while len(spool) and time.monotonic() < until:
        time.sleep(0.05)
    return not len(spool)


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
    with running_server(url, tmp_path / "server.log", port=port):
        if is_later:
            store = open_remote(base, tmp_path)
        assert wait_until_empty(store.spool, 240)
        assert store.circuit.closed
        stored = list(ProtocolClient(base).records(context()))
        assert [entry.scenario.args["M"] for entry in stored] == [0, 1, 2, 3, 4]
        assert all(len(entry.measurements) == 1 for entry in stored)


def test_a_read_only_token_reads(
    server: Running, postgres_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = open_remote(server.base, tmp_path)
    writer.put(context(), [record(1)])
    writer.close()
    made = subprocess.run(
        [sys.executable, "-m", "dejavu_service", "token", "create", "--role=read", "--name=reader"],
        env=environment(DEJAVU_SERVER_DATABASE=postgres_url),
        capture_output=True,
        text=True,
        check=True,
    )
    token = made.stdout.split()[-1]
    reader = open_remote(server.base, tmp_path, token=token)
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:  # the server looks at its tokens every few seconds
        reader.put(context(), [record(2)])
        reader.close()
        if "read-only for this token" in caplog.text:
            break
    assert caplog.text.count("read-only for this token") == 1
    assert reader.get(context(), record(1).scenario, fresh=True) is not None
    assert len(reader.spool) == 1, "it waits for a token that may write"


def test_misses_that_a_server_takes_in_no_single_request_are_all_counted(
    shared_server: Running,
) -> None:
    client = ProtocolClient(shared_server.base, namespace="misses")
    sizes = {f"size_{number}": number for number in range(250)}
    missed = [Scenario(args={**sizes, "M": m}, dtypes={}) for m in range(400)]
    client.report_misses({(context(), scenario): 1 for scenario in missed})
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


def test_a_second_machine_benchmarks_nothing(namespace_url: str, tmp_path: Path) -> None:
    """Two local folders, one server: through the decorator."""
    kernels = [load(tmp_path / "kernels.py").add for _ in range(2)]
    for name, kernel in zip(("one", "two"), kernels, strict=True):
        shared = open_remote(namespace_url, tmp_path / name)
        kernel._options["store"] = TieredStore([FileStore(tmp_path / name / "records"), shared])
        launch(kernel, 100)
        launch(kernel, 200)
        assert shared.sender.flush(240)
        shared.close()
    assert [kernel.benchmarked for kernel in kernels] == [6, 0]
    assert isinstance(kernels[0].home, TieredStore)


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
    folder = FileStore(tmp_path / "folder")
    tie = record(
        16,
        measurement(32, 1.0),
        measurement(64, 2.0),
        winner=Winner(config=measurement(32).config, at=now()),
    )
    folder.put(context(), [tie, record(32)])

    def run(*arguments: object) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "dejavu_client", *map(str, arguments)],
            env=environment(XDG_CACHE_HOME=str(tmp_path)),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    assert "2 new, 0 known" in run("sync", "--push-only", "--store", f"{folder.root},{server.base}")
    copy = FileStore(tmp_path / "copy")
    assert "2 new, 0 known" in run("sync", "--pull-only", "--store", f"{copy.root},{server.base}")
    assert copy.path(context()).read_bytes() == folder.path(context()).read_bytes()
    assert "pinned to BLOCK=64" in run(
        "pin", "add", "--where", "M=16", "--config", "BLOCK=64", "--store", server.base
    )
    assert "pinned" in run("show", "add", "--store", server.base)
    run("pin", "add", "--remove", "--store", server.base)
    assert "pinned" not in run("show", "add", "--store", server.base)
    assert "2 records" in run("promote", "--to", "release", "--store", server.base)
    assert "add" in run("ls", "--store", f"{server.base}?namespace=release")
    wanting = open_remote(server.base, tmp_path)
    wanting.miss(context(), record(999).scenario)
    assert wanting.sender.flush(240)
    wanting.close()
    assert [
        row["count"]
        for row in json.loads(run("show", "--misses", "--store", server.base, "--json"))
    ] == [1]
    assert "known in" in run("sync", "--store", f"{copy.root},{server.base}")
