"""What waits for a server is deleted only when the server said that it has it."""

import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from dejavu_client.http import sender as sender_module
from dejavu_client.http.errors import RefusedError, ServerFaultError
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.sender import Spool
from support.command_line import run_cli
from support.processes import PROGRAMS, dejavu, environment, run_command
from support.records import context, record
from support.remote_stores import deliver, numbers, singles, spool_of
from support.service import Running, make_token
from support.sweeping import wait_until

from dejavu_cache.model.record import RecordSet
from dejavu_cache.stores import FileStore

SERVER = {"DEJAVU_SERVER_MAX_BODY": "25000"}


def invalid(*ms: int) -> bytes:
    """Return a record set in which the last record is none that a server takes."""
    document = RecordSet(context=context(), records=tuple(map(record, ms))).model_dump(
        mode="json", exclude_none=True
    )
    document["records"][-1]["measurements"][0]["median"] = -1.0
    return json.dumps(document).encode()


@pytest.mark.parametrize(("role", "status"), [("", 401), ("expired", 401), ("read", 403)])
def test_a_token_that_may_not_write_keeps_everything(
    server: Running, sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, role: str,
    status: int,
) -> None:  # fmt: skip
    good = make_token(sqlite_url, "write")
    token = make_token(sqlite_url, "read") if role == "read" else role and f"{good[:-4]}aaaa"
    spool = spool_of(server.base, tmp_path / "spool", *singles(1, 2, 3))
    store = RemoteStore(ProtocolClient(server.base, token=token), wait=5, spool=spool)
    deadline = time.monotonic() + 240
    while f"refused with {status}" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.05)
    assert f"refused with {status}" in caplog.text
    assert caplog.text.count("read-only for this token") == (role == "read")
    store.put(context(), [record(4)])
    store.close()
    assert len(spool) == 4
    writer = RemoteStore(ProtocolClient(server.base, token=good), wait=5, spool=spool)
    writer.sender.drain(30.0)
    writer.close()
    assert len(spool) == 0
    assert numbers(server.base, good) == {1, 2, 3, 4}


def test_a_refused_record_is_set_aside_and_the_rest_is_sent(
    server: Running, tmp_path: Path
) -> None:
    spool = spool_of(server.base, tmp_path, *singles(1, 2))
    spool.write(invalid(3, 4, 5, 6, 7))
    spool.write(b"half")
    spool.write(b'{"context": {}, "records": ["half a character: \\ud800"]}')
    spool_of(
        server.base, tmp_path, RecordSet(context=context(kernel="other"), records=(record(1),))
    )
    sent, _ = deliver(spool, server)
    assert (sent, len(spool.set_aside()), len(spool)) == (3, 3, 0)
    assert numbers(server.base) == {1, 2, 3, 4, 5, 6}
    aside = {
        entry.path.read_bytes().partition(b"\n")[2]: entry.reason for entry in spool.set_aside()
    }
    assert "is damaged" in aside.pop(b"half")
    (unsound,) = (text for text in aside if b"half a character" in text)
    assert "400" in aside.pop(unsound)
    ((text, reason),) = aside.items()
    assert [entry["scenario"]["args"]["M"] for entry in json.loads(text)["records"]] == [7]
    assert "422" in reason


def test_a_refused_record_that_cannot_be_set_aside_costs_nobody_the_server(
    server: Running, tmp_path: Path
) -> None:
    """It waits where it is; the others are sent, and launches go on asking the server."""
    spool = spool_of(server.base, tmp_path, *singles(1, 2))
    spool.write(invalid(3))
    (spool.folder / "set-aside").write_text("no folder can be made here, as on a full disk")
    store = RemoteStore(ProtocolClient(server.base), wait=30, spool=spool)
    wait_until(lambda: len(spool) == 1)
    store.put(context(), [record(4)])
    assert store.sender.flush(240)
    assert store.get(context(), record(1).scenario) is not None
    assert store.calls.closed
    store.close()
    assert numbers(server.base) == {1, 2, 4}
    (refused,) = spool.waiting()
    _, (problem,) = deliver(spool, server)
    assert f"set-aside/{refused.path.stem}" in problem


def test_a_set_beyond_the_limits_is_sent_in_parts(server: Running, tmp_path: Path) -> None:
    everything = RecordSet(context=context(), records=tuple(map(record, range(330))))
    spool = spool_of(server.base, tmp_path, everything)
    deliver(spool, server)
    assert (len(spool), spool.set_aside()) == (0, [])
    assert numbers(server.base) == set(range(330))
    folder = FileStore(tmp_path / "folder")
    folder.put(context(), everything.records)
    pushed = dejavu(
        "sync", "--push-only", "--store", f"{folder.root},{server.base}?namespace=pushed"
    )
    assert pushed.returncode == 0, pushed.stderr
    assert numbers(f"{server.base}?namespace=pushed") == set(range(330))


def test_records_on_which_the_server_fails_wait_and_the_rest_is_sent(tmp_path: Path) -> None:
    spool = spool_of("x", tmp_path, *singles(1, 2, 3))
    sent = []

    def send(text: bytes, records: int) -> None:
        document = json.loads(text)
        if any(entry["scenario"]["args"]["M"] == 2 for entry in document["records"]):
            raise ServerFaultError("answered 500")
        sent.append(document)

    assert deliver(spool, send) == (2, ["answered 500"])
    assert len(spool) == 1


def test_a_set_that_is_refused_altogether_costs_few_requests(tmp_path: Path) -> None:
    requests = []

    def refuse(text: bytes, records: int) -> None:
        requests.append(records)
        raise RefusedError("refused with 422", 422)

    spool = spool_of(
        "x", tmp_path, RecordSet(context=context(), records=tuple(map(record, range(900))))
    )
    deliver(spool, refuse)
    assert len(requests) < 100
    texts = [entry.path.read_bytes().partition(b"\n")[2] for entry in spool.set_aside()]
    assert sum(len(json.loads(text)["records"]) for text in texts) == 900


def test_a_spool_that_cannot_be_written_is_not_said_to_be_in_use(
    server: Running, tmp_path: Path
) -> None:
    root = tmp_path / "dejavu-cache" / "spool"
    spool = spool_of(f"{server.base}?namespace=main", root, *singles(1))
    (spool.folder / ".lock").mkdir()
    out = dejavu("sync", "--store", server.base, XDG_CACHE_HOME=str(tmp_path))
    assert out.returncode == 1
    (line,) = [line for line in out.stdout.splitlines() if line.startswith("not sent: ")]
    assert line.startswith(f"not sent: {spool.folder}: records that are sent cannot be deleted")
    assert line.endswith("Is a directory: let this user write to the folder")
    assert numbers(server.base) == set()


@pytest.mark.parametrize("kind", ["os.fork", "fork", "spawn", "forkserver", "pool fork"])
def test_child_processes_keep_their_results(kind: str, server: Running, tmp_path: Path) -> None:
    # Newer versions of Python warn of every fork beside a thread.
    env = environment(PYTHONWARNINGS="ignore::DeprecationWarning")
    program = PROGRAMS / "measure_in_children.py"
    done = run_command(sys.executable, program, server.base, tmp_path, kind, env=env)
    assert done.stderr == ""
    if kind == "os.fork" or kind.startswith("pool"):  # they may end without running anything
        spool = Spool(server.base, tmp_path)
        deliver(spool, server)
    assert numbers(server.base) == {0, 1, 2, 3}


def test_the_commands_say_what_waits(server: Running, sqlite_url: str, tmp_path: Path) -> None:
    write, read = make_token(sqlite_url, "write"), make_token(sqlite_url, "read")
    home = {"XDG_CACHE_HOME": str(tmp_path), "DEJAVU_CACHE_URL": server.base}
    spool = spool_of(
        f"{server.base}?namespace=main", tmp_path / "dejavu-cache" / "spool", *singles(1, 2)
    )
    spool.write(invalid(3))
    store = ("--store", str(tmp_path / "store"))
    doctor = dejavu("doctor", **home).stdout
    assert re.search(r"3 record sets wait \([\d.]+ KiB\) in", doctor)
    for token, status in (("", "401"), (read, "403")):
        done = dejavu("sync", *store, **home, DEJAVU_CACHE_TOKEN=token)
        assert done.returncode != 0
        assert "0 record sets that waited were sent" in done.stdout
        assert f"refused with {status}" in done.stdout
        assert len(spool) == 3
    done = dejavu("sync", *store, **home, DEJAVU_CACHE_TOKEN=write)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 record sets that waited were sent" in done.stdout
    assert "1 record set is set aside" in done.stdout
    doctor = dejavu("doctor", **home, DEJAVU_CACHE_TOKEN=write).stdout
    assert "422" in doctor
    server.kill()
    spool_of(spool.server, spool.folder.parent, *singles(9))
    done = dejavu("sync", *store, **home, DEJAVU_CACHE_TOKEN=write)
    assert done.returncode != 0
    assert "1 record set" in done.stdout
    assert "does not answer" in done.stdout


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
    monkeypatch.setattr(sender_module, "MOST_BYTES", 4 * 4096)
    spool.trim()
    assert [file.path for file in spool.waiting()] == newest
    assert spool.set_aside() == []
    assert "7 record sets for https://server deleted" in caplog.text


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
        broken.setattr(sender_module.Spool, "waiting", lambda _: 1 / 0)
        store.put(context(), [record(1)])
        assert store.sender.flush(240)
        wait_until(lambda: "ZeroDivisionError" in caplog.text)
    store.put(context(), [record(2)])
    wait_until(lambda: numbers(server.base) == {1, 2})
    store.close()


LoseAnswer = Callable[[str, str], None]


@pytest.fixture
def lose_answer(monkeypatch: pytest.MonkeyPatch) -> LoseAnswer:
    """Return a function that lets the first answer to a method and a path get lost.

    The server has done what was asked, as where a load balancer loses patience.
    """
    handle = httpx.HTTPTransport.handle_request

    def lose(method: str, path: str) -> None:
        lost: list[httpx.Response] = []

        def handle_and_lose(own: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
            answer = handle(own, request)
            if lost or request.method != method or path not in request.url.path:
                return answer
            lost.append(answer)
            answer.close()
            raise httpx.RemoteProtocolError("the server closed the connection")

        monkeypatch.setattr(httpx.HTTPTransport, "handle_request", handle_and_lose)

    return lose


@pytest.mark.parametrize(
    ("method", "path", "command", "parts", "left"),
    [
        ("POST", "/quarantines", "quarantine add --host here --yes", [2], set()),
        ("DELETE", "/quarantines", "quarantine undo {quarantine}", [0], {1, 2}),
        ("DELETE", "/records", "gc --all --yes", [], set()),
        ("POST", "/promote", "promote --to other", [], {1, 2}),
        ("POST", "/quarantines", "quarantine add --host here", [], {1, 2}),
    ],
)
def test_a_command_whose_answer_gets_lost_says_nothing_that_is_not_so(
    server: Running, lose_answer: LoseAnswer, method: str, path: str, command: str,
    parts: list[int], left: set[int],
) -> None:  # fmt: skip
    """What it asked for is done once, and the error says that it may be done.

    A promotion, and a question, are asked again: twice costs nobody anything.
    """
    client = ProtocolClient(server.base)
    client.send(RecordSet(context=context(), records=(record(1), record(2))))
    undone = client.quarantine({"host": "here"})["id"] if "undo" in command else ""
    lose_answer(method, path)
    seen = run_cli(*command.format(quarantine=undone).split(), "--store", server.base)
    if parts or command.startswith("gc"):
        assert (seen.returncode, seen.stdout) == (3, ""), seen
        assert "may have done what was asked" in seen.stderr
    else:
        assert (seen.returncode, seen.stderr) == (0, ""), seen
        assert "2 records" in seen.stdout
    assert [item["parts"] for item in client.rows("quarantines")] == parts
    assert numbers(server.base) == left
