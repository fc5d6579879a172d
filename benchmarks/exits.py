"""Processes that end with 25 MB in the spool: do they end as they would alone, and is all there?

    python benchmarks/exits.py [--processes 50] [--pythons /venv-3.10/bin/python,…]

Each cell runs as many processes at once, which end in every way, on every Python that is named,
beside one spool; the server is dead, slow or live, and the token good, expired or read-only. It
exits with 1 if a process ended in another way than its own, or a record is gone.
"""

# ruff: noqa: E402 - the support of the tests must be on the path first

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.sender import Spool
from dejavu_service.services import tokens
from dejavu_service.services.access import ANYBODY
from dejavu_service.storage import schema
from dejavu_service.storage.database import Database
from programs.end_with_records import EXIT_CODES
from support.bad_server import BadServer, drip, hang
from support.processes import PROGRAMS, environment
from support.records import context, measurement, record
from support.service import free_port, running_server

from dejavu_cache.model.record import RecordSet
from dejavu_cache.model.scenario import canonical_json

SPOOLED_BYTES = 25 * 2**20
FIRST_SPOOLED = 10_000_000
"""Number of the first record that waits from the beginning; the processes' own are smaller."""
RECORDS = 5
"""Records that each process puts."""
PAUSE = 0.3
"""Seconds that a process lives after it has put its records."""

LIVE = {"good": ("write", None), "read-only": ("read", None), "expired": ("write", 0.01)}
"""Roles of the tokens that a server which works is given, and their seconds, by name."""


class Cell(NamedTuple):
    """A server and a token: the cell's name, the server's URL, and the token."""

    name: str
    url: str
    token: str = ""


def fill(spool: Spool) -> set[int]:
    """Fill a spool; return the numbers of its records."""
    number = FIRST_SPOOLED
    while sum(file.size for file in spool.waiting()) < SPOOLED_BYTES:
        timings = [measurement(block, 1.0) for block in range(1, 21)]
        records = tuple(record(number + index, *timings) for index in range(100))
        spool.write(canonical_json(RecordSet(context=context(), records=records)).encode())
        number += 100
    return set(range(FIRST_SPOOLED, number))


def numbers(record_sets: Iterable[RecordSet]) -> set[int]:
    """Return the numbers of the records of the tests' context."""
    return {
        int(str(entry.scenario.args["M"]))
        for record_set in record_sets
        for entry in record_set.records
        if record_set.context == context()
    }


def run_cell(cell: Cell, processes: int, pythons: list[str], folder: Path) -> dict[str, object]:
    """Run the processes of a cell; return what became of them and of the records."""
    spool = Spool(cell.url, folder)
    expected = fill(spool)
    started = time.monotonic()
    running = []
    for index, way in zip(range(processes), itertools.cycle(EXIT_CODES)):
        python = pythons[index % len(pythons)]
        values = [cell.url, folder, index * RECORDS, RECORDS, way, PAUSE]
        command = [python, str(PROGRAMS / "end_with_records.py"), *map(str, values)]
        process = subprocess.Popen(
            command,
            env=environment(TOKEN=cell.token),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append((way, python, process))
        expected |= set(range(index * RECORDS, (index + 1) * RECORDS))
    wrong = []
    for way, python, process in running:
        try:
            _, errors = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.kill()
            wrong.append(f"{way} on {python}: did not end")
            continue
        if process.returncode != EXIT_CODES[way] or "Fatal Python error" in errors:
            wrong.append(f"{way} on {python}: {process.returncode}, {errors[-200:]}")
    return {
        "cell": cell.name,
        "processes": processes,
        "spool_mb": round(SPOOLED_BYTES / 2**20),
        "seconds": round(time.monotonic() - started),
        "wrong_exits": wrong,
        **count_records(spool, expected),
    }


def count_records(spool: Spool, expected: set[int]) -> dict[str, int]:
    """Count where the expected records are."""
    waiting = numbers(
        RecordSet.model_validate_json(file.path.read_bytes()) for file in spool.waiting()
    )
    stored: set[int] = set()
    if token := os.environ.get("READER_TOKEN"):
        client = ProtocolClient(spool.server, token=token)
        stored = numbers([RecordSet(context=context(), records=client.records(context()))])
    return {
        "records": len(expected),
        "waiting": len(expected & waiting),
        "on_the_server": len(expected & stored),
        "gone": len(expected - waiting - stored),
        "set_aside": len(spool.set_aside()),
    }


@contextmanager
def live_cell(name: str, folder: Path) -> Iterator[Cell]:
    """Run a server, and make one of the tokens of `LIVE`."""
    url = f"sqlite:///{folder / 'server.sqlite3'}"
    database = Database(url)
    schema.upgrade(database)
    role, seconds = LIVE[name]
    token = tokens.issue(database, ANYBODY, "a client", {"*": role}, seconds).token
    os.environ["READER_TOKEN"] = tokens.issue(database, ANYBODY, "the reader", {"*": "admin"}).token
    database.close()
    time.sleep(0.1)
    with running_server(url, folder / "log") as server:
        yield Cell(f"live, {name} token", server.base, token)
    del os.environ["READER_TOKEN"]


@contextmanager
def cells(folder: Path) -> Iterator[list[Cell]]:
    """Provide the servers that do not work."""
    servers = {"hangs": BadServer(hang), "drips": BadServer(drip)}
    yield [
        Cell("dead", f"http://127.0.0.1:{free_port()}"),
        *(Cell(name, server.url) for name, server in servers.items()),
    ]
    for server in servers.values():
        server.close()


def make_page(rows: list[dict[str, object]], machine: str) -> str:
    """Return the table as Markdown."""
    columns = ["cell", "processes", "records", "waiting", "on_the_server", "gone", "seconds"]
    lines = [
        "# Programs that end",
        "",
        "`python benchmarks/exits.py` wrote this page. The processes of a cell start at once, "
        f"beside {SPOOLED_BYTES >> 20} MB of records that wait, and end in {len(EXIT_CODES)} ways: "
        f"{', '.join(EXIT_CODES)}.",
        "",
        f"{machine}.",
        "",
        f"| {' | '.join(name.replace('_', ' ') for name in columns)} | wrong exits |",
        "|---|" + "---|" * len(columns),
    ]
    for row in rows:
        wrong = row["wrong_exits"]
        assert isinstance(wrong, list)
        lines.append(f"| {' | '.join(str(row[name]) for name in columns)} | {len(wrong)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=50)
    parser.add_argument("--pythons", default=sys.executable)
    arguments = parser.parse_args()
    pythons = arguments.pythons.split(",")
    rows = []

    def run(cell: Cell, folder: Path) -> None:
        rows.append(run_cell(cell, arguments.processes, pythons, folder))
        print(json.dumps(rows[-1]), flush=True)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        base = Path(name)
        with cells(base) as broken:
            for cell in broken:
                run(cell, base / cell.name)
        for token in LIVE:
            folder = base / token
            folder.mkdir()
            with live_cell(token, folder) as cell:
                run(cell, folder / "spool")
    versions = [
        subprocess.check_output([python, "-c", "import platform as p; print(p.python_version())"])
        .decode()
        .strip()
        for python in pythons
    ]
    machine = f"{datetime.now(timezone.utc):%Y-%m-%d}, Python {', '.join(versions)}"
    (ROOT / "benchmarks" / "results" / "exits.md").write_text(make_page(rows, machine))
    return 1 if any(row["gone"] or row["wrong_exits"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
