"""A program ends with its own exit code, in its own time, and nothing that it measured is gone."""

import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from dejavu_client.http.sender import Spool
from programs.end_with_records import EXIT_CODES
from support.bad_server import BadServer, drip, hang
from support.fork_server import light_nursery
from support.processes import PROGRAMS, environment, run_command, run_python
from support.records import context, measurement, record

from dejavu_cache.model.record import RecordSet

RECORDS = 5


def answer_with_much(peer: socket.socket) -> None:
    """Send more than a client parses within its wait."""
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(MUCH) + MUCH)


MEASURED = [measurement(block, 1.0) for block in range(1, 21)]
MUCH = (
    RecordSet(context=context(), records=tuple(record(m, *MEASURED) for m in range(750)))
    .model_dump_json(exclude_none=True)
    .encode()
)


@pytest.fixture
def dead() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def waiting_numbers(spool: Spool) -> set[int]:
    """Return the records of `context()` that wait in a spool."""
    sets = [RecordSet.model_validate_json(file.path.read_bytes()) for file in spool.waiting()]
    return {
        int(str(entry.scenario.args["M"]))
        for record_set in sets
        for entry in record_set.records
        if record_set.context == context()
    }


@pytest.mark.parametrize("answer", [None, hang, drip, answer_with_much])
def test_a_program_whose_server_is_dead_or_slow_ends_and_its_records_wait_on_disk(
    answer: Any, dead: str, tmp_path: Path
) -> None:
    running, server = [], BadServer(answer) if answer else None
    url = server.url if server else dead
    for number, way in enumerate(EXIT_CODES):
        process = light_nursery().start_file(
            PROGRAMS / "end_with_records.py", url, tmp_path, number * RECORDS, RECORDS, way, 0,
            folder=tmp_path.with_name("printed"),
        )  # fmt: skip
        running.append((way, process))
    for way, process in running:
        out, err = process.communicate(timeout=240)
        assert process.returncode == EXIT_CODES[way], (way, out, err)
        assert time.time() - float(out) < 200
        assert ("the program's own error" in err) == (way == "raise")
        assert "Fatal Python error" not in err
    assert waiting_numbers(Spool(url, tmp_path)) == set(range(len(running) * RECORDS))
    if server:
        server.close()


def test_the_end_waits_no_longer_than_the_flush(tmp_path: Path) -> None:
    """A server that hangs with the request delays the end by the documented bound, once."""
    server = BadServer(hang)
    code = """
        import atexit, sys, time
        from pathlib import Path

        started = []
        atexit.register(lambda: print(time.monotonic() - started[0]))  # runs after the library's
        from dejavu_client.http.protocol_client import ProtocolClient
        from dejavu_client.http.remote_store import RemoteStore
        from dejavu_client.http.sender import Spool
        from support.records import context, record

        url, folder = sys.argv[1:]
        stores = [
            RemoteStore(
                ProtocolClient(url, namespace=name), wait=5, spool=Spool(name, Path(folder))
            )
            for name in ("a", "b", "c")
        ]
        for store in stores:
            store.put(context(), [record(1)])
        started.append(time.monotonic())
    """
    done = run_python(code, server.url, str(tmp_path))
    assert 1.5 < float(done.stdout) < 200
    assert done.stderr == ""
    assert all(len(Spool(name, tmp_path)) == 1 for name in ("a", "b", "c"))
    server.close()


def test_a_full_disk_costs_a_warning_and_no_exit_code(dead: str, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    program = (PROGRAMS / "end_with_records.py", dead, blocked / "spool", 0, 1, "exit", 0)
    done = run_command(sys.executable, *program, env=environment(), check=False)
    assert done.returncode == 7
    assert "cannot be spooled" in done.stderr
