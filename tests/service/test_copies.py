"""Local copies of a server's records: what is pinned, promoted or deleted reaches every machine."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import pytest
from dejavu_client.http import remote_store
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import CopyCheck
from dejavu_client.http.transport import Transport
from dejavu_client.static_sets import INDEX, StaticStore, make_key, publish
from dejavu_client.static_sets.sources import Files
from dejavu_service.services import tokens
from dejavu_service.services.access import ANYBODY
from dejavu_service.storage.database import Database
from fastapi import FastAPI
from support import service
from support.fork_server import PipedProcess, kernel_nursery
from support.kernels import ADD
from support.processes import PROGRAMS, dejavu, environment
from support.remote_stores import through
from support.signed_sets import serve_folder
from support.sweeping import wait_until

from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.stores import FileStore


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
        process = PipedProcess(
            kernel_nursery("1").address, file=str(PROGRAMS / "launch_until_told.py"),
            arguments=[str(self.source), f"{launches}"], env=self.environment(**env),
        )  # fmt: skip
        with process.stdout:
            with process.stdin:
                yield Program(process.stdout)
            process.stdout.read()
        process.wait()

    def launch_once(self, **env: str) -> dict[str, Any]:
        with self.program(3, **env) as program:
            return program.next()

    def tune_once(self, server: service.Running) -> dict[str, Any]:
        """Launch until a server has what was tuned."""
        with self.program(1000) as program:
            line = program.next()
            wait_until(lambda: has_winner(server))
        return line


class Program:
    """A program that launches a kernel and prints how it chose the config."""

    def __init__(self, printed: IO[str]) -> None:
        self._printed = printed

    def next(self) -> dict[str, Any]:
        """Return the next line that it prints."""
        text = self._printed.readline()
        assert text, "the program ended without another line"
        return dict(json.loads(text))

    def until(self, **wanted: object) -> dict[str, Any]:
        """Return the next line that has certain values."""
        while (line := self.next()).items() & wanted.items() != wanted.items():
            pass
        return line


def read_set(server: service.Running) -> RecordSet:
    """Return the only record set of a server."""
    return RecordSet.model_validate_json(httpx.get(f"{server.base}/v1/main/export").content)


def has_winner(server: service.Running) -> bool:
    export = httpx.get(f"{server.base}/v1/main/export", timeout=240)
    return b'"winner"' in export.content


def pin_other(server: service.Running) -> int:
    """Pin a config that does not win, and return its block."""
    record_set = read_set(server)
    (only,) = record_set.records
    assert only.winner
    other = next(each for each in only.by_config if each != only.winner.config)
    path = f"/v1/main/contexts/{record_set.context.digest}/pins/{only.scenario.digest}"
    assert httpx.put(server.base + path, json={"config": service.body(other)}).is_success
    return int(str(other.params["BLOCK"]))


def test_pins_and_deletions_reach_machines_with_a_copy(
    server: service.Running, tmp_path: Path
) -> None:
    tuner, other = (Machine(tmp_path / name, server.base) for name in ("tuner", "other"))
    assert tuner.tune_once(server)["benchmarked"] == 3
    assert other.launch_once()["benchmarked"] == 0
    block = pin_other(server)
    with tuner.program(1000) as program:
        assert program.until(how="pinned") == {"how": "pinned", "block": block, "benchmarked": 0}
        record_set = read_set(server)
        httpx.delete(f"{server.base}/v1/main/contexts/{record_set.context.digest}/records")
        # The copy is soon checked against the server, after which "tuned" is "exact".
        assert program.until(benchmarked=3)["how"] in ("tuned", "exact")
        wait_until(lambda: has_winner(server))
    (retuned,) = read_set(server).records
    with other.program(1000, DEJAVU_CACHE_MODE="reuse"):
        wait_until(lambda: list(other.store.records(record_set.context)) == [retuned])


def test_a_synchronised_machine_loses_what_was_deleted_and_keeps_its_own(
    server: service.Running, tmp_path: Path
) -> None:
    """And a stranger's signed set, which it reads, does not come to the server."""
    machine = Machine(tmp_path / "machine", server.base)
    machine.tune_once(server)
    record_set = read_set(server)
    httpx.delete(f"{server.base}/v1/main/contexts/{record_set.context.digest}/records")
    own = service.measurement(service.config(512), 0.4)
    machine.store.put(
        record_set.context, [Record(scenario=record_set.records[0].scenario, measurements=(own,))]
    )
    make_key(key := tmp_path / "key.pem")
    strangers = RecordSet(context=service.context("stranger.kernel"), records=(service.record(),))
    public = publish([strangers], tmp_path / "set", key)
    machine.url += f",static+{(tmp_path / 'set').as_uri()}?key={public}"
    synced = dejavu("sync", **machine.environment())
    assert synced.returncode == 0, synced.stdout + synced.stderr
    (left,) = FileStore(machine.store.root).records(record_set.context)
    assert left.measurements == (own,)
    assert httpx.get(f"{server.base}/v1/main/export").content == b""


def test_a_serving_process_without_a_folder_sees_what_others_tune_and_pin(
    server: service.Running, tmp_path: Path
) -> None:
    serving = Machine(tmp_path / "serving", server.base, has_folder=False)
    tuner = Machine(tmp_path / "tuner", server.base, has_folder=False)
    with serving.program(2000, DEJAVU_CACHE_MODE="reuse") as program:
        assert program.next()["how"] == "default"
        tuner.tune_once(server)
        assert program.until(how="exact")["benchmarked"] == 0
        block = pin_other(server)
        assert program.until(how="pinned") == {"how": "pinned", "block": block, "benchmarked": 0}


def test_what_a_publisher_recalls_goes_from_running_processes(tmp_path: Path) -> None:
    """A launch that had a stranger's record takes its successor, and then none of theirs."""
    theirs, ours = Machine(tmp_path / "theirs", "memory://"), Machine(tmp_path / "ours", "")
    assert theirs.launch_once()["benchmarked"] == 3
    (tuned,) = [one for one in theirs.store.record_sets() if one.records[0].winner]
    (only,) = tuned.records
    assert only.winner
    others = tuple(each for each in only.measurements if each.config != only.winner.config)
    winner = only.winner.model_copy(update={"config": others[0].config})
    corrected = only.model_copy(update={"winner": winner, "measurements": others[:1]})
    make_key(key := tmp_path / "key.pem")
    folder = tmp_path / "set"
    public = publish([tuned], folder, key)
    earlier = (folder / INDEX).read_bytes()
    with serve_folder(folder) as url:
        ours.url = f"{ours.store.url},static+{url}?key={public}"
        with ours.program(1000, DEJAVU_CACHE_MODE="reuse") as program:
            assert program.next()["how"] == "exact"
            publish([RecordSet(context=tuned.context, records=(corrected,))], folder, key)
            block = int(str(others[0].config.params["BLOCK"]))
            assert program.until(block=block)["how"] == "exact"
            publish([], folder, key)
            assert program.until(how="default")["benchmarked"] == 0
        (folder / INDEX).write_bytes(earlier)
        assert ours.launch_once(DEJAVU_CACHE_MODE="reuse")["how"] == "default"
    assert not [*ours.store.contexts()]


def test_a_server_is_published_from_and_is_a_mirror(sqlite_url: str, tmp_path: Path) -> None:
    """Who reads the set needs no token, and is told where nothing has changed."""
    with closing(Database(sqlite_url)) as database:
        token = tokens.issue(database, ANYBODY, "ci", {"*": "write"}).token
    pushed = RecordSet(context=service.context(), records=(service.record(),))
    (folder := tmp_path / "sets").mkdir()
    settings = {"DEJAVU_SERVER_SETS": str(folder)}
    with service.running_server(sqlite_url, tmp_path / "server.log", settings) as server:
        headers = {"Authorization": f"Bearer {token}"}
        httpx.post(f"{server.base}/v1/main/records", json=service.body(pushed), headers=headers)
        words = ["--sign", str(folder / "key.pem"), "--new-key", "--store", server.base]
        exported = dejavu("export", str(folder / "ours"), *words, DEJAVU_CACHE_TOKEN=token)
        source = Files(f"{server.base}/sets/ours", 5)
        store = StaticStore(source, exported.stdout.split()[-1], folder=tmp_path / "copies")
        (mirrored,) = store.records(service.context())
        _, etag = source.read(INDEX, 2**20) or (b"", "")
        paths = ("/sets/key.pem", "/sets/ours/none", "/sets/", "/v1/main/contexts")
        codes = [httpx.get(f"{server.base}{path}").status_code for path in paths]
        assert (source.read(INDEX, 2**20, etag), codes) == (None, [404, 404, 404, 401])
    assert mirrored.winner == service.record().winner


def test_recalls_are_repeated_for_some_time(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    with service.client_of(app) as client:
        check = CopyCheck()
        server = ProtocolClient("http://localhost", transport=through(client))

        def is_recalled() -> bool:
            changes = check.changes(server, {service.context(): [service.scenario(1)]})
            return service.context() in changes and bool(changes[service.context()].recalls)

        service.post(client, service.record(1))
        assert not is_recalled()
        client.delete(service.RECORDS)
        assert is_recalled()
        assert is_recalled()
        monkeypatch.setattr(remote_store, "REPEATED_SECONDS", -1.0)
        assert [is_recalled() for _ in range(2)] == [True, False]


def test_a_server_cannot_fill_the_memory_with_recalls_that_nobody_asked_for() -> None:
    asked, others = service.scenario(1).digest, [f"{number:024x}" for number in range(100)]

    def answer(request: httpx.Request) -> httpx.Response:
        recalls = {digest: ["0" * 64] for digest in [asked, *others]}
        change = {"revision": "1", "records": [], "gone": [asked, *others], "recalls": recalls}
        return httpx.Response(200, json={"contexts": {service.context().digest: change}})

    lying = ProtocolClient("http://x", transport=Transport(httpx.MockTransport(answer)))
    (changes,) = CopyCheck().changes(lying, {service.context(): [service.scenario(1)]}).values()
    assert set(changes.recalls) == {asked}
