"""Local copies of a server's records: what is pinned, promoted or deleted reaches every machine."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import CopyCheck
from dejavu_client.http.transport import Transport
from fastapi import FastAPI
from support.kernels import ADD
from support.processes import PROGRAMS, dejavu, environment
from support.remote_stores import through
from support.service import (
    START,
    Running,
    body,
    client_of,
    config,
    context,
    measurement,
    record,
    record_set,
    running_server,
    scenario,
)
from support.sweeping import wait_until

from dejavu_cache.model.merge import part_digest
from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Scenario, now
from dejavu_cache.stores import FileStore, MemoryStore, Store
from dejavu_cache.stores.copies import take_over


class Machine:
    """A machine with a folder of its own before the server, or with the server alone."""

    def __init__(self, folder: Path, server: str, *, has_folder: bool = True) -> None:
        folder.mkdir()
        self.source = folder / "kernels.py"
        self.source.write_text(textwrap.dedent(ADD))
        self.store = FileStore(folder / "store")
        self.url = f"{self.store.url},{server}" if has_folder else server
        self._folder = folder

    def environment(self, **more: str) -> dict[str, str]:
        return environment(
            DEJAVU_CACHE_URL=self.url,
            DEJAVU_CACHE_SHIPPED="0",
            DEJAVU_CACHE_REFRESH="0.2",
            DEJAVU_CACHE_WAIT="5",
            TRITON_INTERPRET="1",
            XDG_CACHE_HOME=str(self._folder),
            **more,
        )

    @contextmanager
    def program(self, launches: int, **env: str) -> Iterator[Program]:
        process = subprocess.Popen(
            [
                sys.executable,
                str(PROGRAMS / "launch_until_told.py"),
                str(self.source),
                f"{launches}",
            ],
            env=self.environment(**env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield Program(process)
        finally:
            process.communicate(timeout=240)

    def launch_once(self, **env: str) -> dict[str, Any]:
        with self.program(3, **env) as program:
            return program.next()

    def tune_once(self, server: Running) -> dict[str, Any]:
        """Launch until a server has what was tuned."""
        with self.program(1000) as program:
            line = program.next()
            wait_until(lambda: has_winner(server))
        return line


class Program:
    """A program that launches a kernel and prints how it chose the config."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def next(self) -> dict[str, Any]:
        """Return the next line that it prints."""
        assert self._process.stdout
        text = self._process.stdout.readline()
        assert text, "the program ended without another line"
        line: dict[str, Any] = json.loads(text)
        return line

    def until(self, **wanted: object) -> dict[str, Any]:
        """Return the next line that has certain values."""
        while (line := self.next()).items() & wanted.items() != wanted.items():
            pass
        return line


@pytest.fixture
def server(sqlite_url: str, tmp_path: Path) -> Iterator[Running]:
    with running_server(sqlite_url, tmp_path / "log") as running:
        yield running


def stored(server: Running) -> RecordSet:
    """Return the only record set of a server."""
    return RecordSet.model_validate_json(httpx.get(f"{server.base}/v1/main/export").content)


def has_winner(server: Running) -> bool:
    export = httpx.get(f"{server.base}/v1/main/export", timeout=240)
    return b'"winner"' in export.content


def pin_other(server: Running) -> int:
    """Pin a config that does not win, and return its block."""
    known = stored(server)
    (only,) = known.records
    assert only.winner
    other = next(each for each in only.by_config if each != only.winner.config)
    path = f"/v1/main/contexts/{known.context.digest}/pins/{only.scenario.digest}"
    assert httpx.put(server.base + path, json={"config": body(other)}).is_success
    return int(str(other.params["BLOCK"]))


def test_pins_and_deletions_reach_machines_with_a_copy(server: Running, tmp_path: Path) -> None:
    tuner, other = (Machine(tmp_path / name, server.base) for name in ("tuner", "other"))
    assert tuner.tune_once(server)["benchmarked"] == 3
    assert other.launch_once()["benchmarked"] == 0
    block = pin_other(server)
    with tuner.program(1000) as program:
        assert program.until(how="pinned") == {"how": "pinned", "block": block, "benchmarked": 0}
        known = stored(server)
        httpx.delete(f"{server.base}/v1/main/contexts/{known.context.digest}/records")
        # The copy is soon checked against the server, after which "tuned" is "exact".
        assert program.until(benchmarked=3)["how"] in ("tuned", "exact")
        wait_until(lambda: has_winner(server))
    (retuned,) = stored(server).records
    with other.program(1000, DEJAVU_CACHE_MODE="reuse"):
        wait_until(lambda: list(other.store.records(known.context)) == [retuned])


def test_a_synchronised_machine_loses_what_was_deleted_and_keeps_its_own(
    server: Running, tmp_path: Path
) -> None:
    machine = Machine(tmp_path / "machine", server.base)
    machine.tune_once(server)
    known = stored(server)
    httpx.delete(f"{server.base}/v1/main/contexts/{known.context.digest}/records")
    own = measurement(config(512), 0.4)
    machine.store.put(
        known.context, [Record(scenario=known.records[0].scenario, measurements=(own,))]
    )
    synced = dejavu("sync", **machine.environment())
    assert synced.returncode == 0, synced.stdout + synced.stderr
    (left,) = FileStore(machine.store.root).records(known.context)
    assert left.measurements == (own,)
    assert httpx.get(f"{server.base}/v1/main/export").content == b""


def test_a_serving_process_without_a_folder_sees_what_others_tune_and_pin(
    server: Running, tmp_path: Path
) -> None:
    serving = Machine(tmp_path / "serving", server.base, has_folder=False)
    tuner = Machine(tmp_path / "tuner", server.base, has_folder=False)
    with serving.program(2000, DEJAVU_CACHE_MODE="reuse") as program:
        assert program.next()["how"] == "default"
        tuner.tune_once(server)
        assert program.until(how="exact")["benchmarked"] == 0
        block = pin_other(server)
        assert program.until(how="pinned") == {"how": "pinned", "block": block, "benchmarked": 0}


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_store_recalls_parts_and_keeps_the_rest(kind: str, tmp_path: Path) -> None:
    store: Store = FileStore(tmp_path) if kind == "file" else MemoryStore()
    store.put(context(), [record(1), record(2)])
    gone, kept = record(1).measurements[0], record(1).measurements[1:]
    everything = {part_digest(part) for part in record(2).measurements}
    store.recall(context(), {scenario(1): {part_digest(gone)}, scenario(2): everything})
    (left,) = store.records(context())
    assert (left.measurements, left.winner) == (kept, None), "the winner had the recalled timing"
    store.recall(context(), {scenario(1): {part_digest(part) for part in kept}})
    assert list(store.records(context())) == []
    assert list(store.contexts()) == []


def test_copies_are_asked_about_in_parts(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dejavu_client.http.remote_store.MOST_COPIES", 3)
    with client_of(app) as http_client:
        http_client.post("/v1/main/records", json=body(record_set(*map(record, range(10)))))
        check, server = (
            CopyCheck(),
            ProtocolClient("http://localhost", transport=through(http_client)),
        )
        wanted = {context(): [scenario(m) for m in range(12)]}
        local = MemoryStore()

        def compare() -> list[Record]:
            changes = check.changes(server, wanted)
            if context() in changes:
                take_over(local, context(), wanted[context()], changes[context()])
            return list(changes[context()].records) if context() in changes else []

        assert len(compare()) == 10
        assert compare() == []
        home = f"/v1/main/contexts/{context().digest}/records"
        http_client.delete(home, params={"scenario": [scenario(0).digest, scenario(9).digest]})
        later = record(11, after=(now() - START).total_seconds())
        http_client.post("/v1/main/records", json=body(record_set(later)))
        assert compare() == [later]
        assert {each.scenario for each in local.records(context())} == {
            *map(scenario, range(1, 9)),
            scenario(11),
        }


def test_recalls_are_repeated_whatever_else_has_changed(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dejavu_client.http.remote_store.MOST_COPIES", 2)
    local = MemoryStore()
    with client_of(app) as http_client:
        check, server = (
            CopyCheck(),
            ProtocolClient("http://localhost", transport=through(http_client)),
        )

        def compare(*of: int) -> set[Scenario]:
            wanted = [scenario(m) for m in of]
            for changes in check.changes(server, {context(): wanted}).values():
                take_over(local, context(), wanted, changes)
            return {each.scenario for each in local.records(context())}

        http_client.post("/v1/main/records", json=body(record_set(*map(record, (1, 2)))))
        assert compare(1, 2) == {scenario(1), scenario(2)}
        http_client.delete(f"/v1/main/contexts/{context().digest}/records")
        assert compare(1, 2) == set()
        later = record(3, after=(now() - START).total_seconds())
        http_client.post("/v1/main/records", json=body(record_set(later)))
        assert compare(1, 2, 3) == {scenario(3)}
        local.put(context(), [record(1)])  # as a look-up does that began before the deletion
        assert compare(1, 2, 3) == {scenario(3)}
        monkeypatch.setattr("dejavu_client.http.remote_store.REPEATED_SECONDS", -1.0)
        assert compare(1, 2, 3) == {scenario(3)}
        assert check.changes(server, {context(): [scenario(m) for m in (1, 2, 3)]}) == {}


def test_a_server_cannot_fill_the_memory_with_recalls_that_nobody_asked_for() -> None:
    asked, others = scenario(1).digest, [f"{number:024x}" for number in range(100)]

    def answer(request: httpx.Request) -> httpx.Response:
        recalls = {digest: ["0" * 64] for digest in [asked, *others]}
        change = {"revision": "1", "records": [], "gone": [asked, *others], "recalls": recalls}
        return httpx.Response(200, json={"contexts": {context().digest: change}})

    lying = ProtocolClient("http://x", transport=Transport(httpx.MockTransport(answer)))
    (changes,) = CopyCheck().changes(lying, {context(): [scenario(1)]}).values()
    assert set(changes.recalls) == {asked}
