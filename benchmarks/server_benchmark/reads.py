"""Reads of a large database, beside a bare endpoint that sends the same bytes."""

from __future__ import annotations

import gzip
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from .api import post_records, records_path
from .databases import prepare
from .load_generator import Load, encode_get, measure_load
from .made_up_records import fill, make_context, make_record
from .processes import peak_mb, run_bare, run_server

CONNECTIONS = (8, 64)
RECORDS = 100
"""Records of the context that is read, besides those that fill the database."""


def measure_reads(url: str, size: int, rounds: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Measure reads of one record, of all, and unchanged ones, each with a bare endpoint in turn.

    Args:
        url: an empty database.
        size: how many records to fill it with.
        rounds: how many times each is measured.
        seconds: how long each measurement takes.
        folder: where the bare endpoints' bodies are written.
    """
    database, token = prepare(url)
    start = time.perf_counter()
    fill(database, size)
    filled_in = time.perf_counter() - start
    database.close()
    context = make_context("shop.kernels.matmul")
    path = records_path(context)
    paths = {"one record": f"{path}/{make_record(50).scenario.digest}", "all records": path}
    with ExitStack() as stack:
        server = stack.enter_context(run_server(url))
        post_records(server.port, token, context, [make_record(m) for m in range(RECORDS)])
        loads = {}
        for name, read in paths.items():
            answer = httpx.get(
                f"http://127.0.0.1:{server.port}{read}",
                headers={"Authorization": f"Bearer {token}"},
            )
            body = folder / name.replace(" ", "_")
            body.write_bytes(gzip.compress(answer.content, 4, mtime=0))
            assert body.stat().st_size == int(answer.headers["content-length"])
            bare = stack.enter_context(run_bare(body))
            loads[name] = (bare, [encode_get(read, token)], b"200")
            if name == "one record":
                known = encode_get(read, token, answer.headers["etag"])
                loads["one record, unchanged"] = (bare, [known], b"304")
        measured: dict[str, Any] = {"records": size, "filled_in_s": round(filled_in, 1)}
        for connections in CONNECTIONS:
            pairs: dict[str, list[tuple[Load, Load]]] = {name: [] for name in loads}
            for _ in range(rounds):
                for name, (bare, requests, status) in loads.items():
                    beside = measure_load(bare, [encode_get("/bare")], connections, seconds, b"200")
                    ours = measure_load(server, requests, connections, seconds, status)
                    pairs[name].append((ours, beside))
            measured[str(connections)] = {name: _summarize(pairs[name]) for name in loads}
        measured["writes_per_second"] = _measure_writes(server.port, token)
        measured["peak_memory_mb"] = peak_mb(server.process)
    return measured


def _summarize(pairs: list[tuple[Load, Load]]) -> dict[str, float]:
    """Return medians over the rounds; other work disturbs the two of a round alike."""

    def median(values: list[float], digits: int) -> float:
        return round(statistics.median(values), digits)

    return {
        "rate": median([ours.rate for ours, _ in pairs], 0),
        "bare_rate": median([bare.rate for _, bare in pairs], 0),
        "ratio": median([ours.rate / bare.rate for ours, bare in pairs], 2),
        "cpu_us": median([ours.cpu_us for ours, _ in pairs], 1),
        "bare_cpu_us": median([bare.cpu_us for _, bare in pairs], 1),
        "cpu_ratio": median([bare.cpu_us / ours.cpu_us for ours, bare in pairs], 2),
        "p99_ms": median([ours.p99_ms for ours, _ in pairs], 1),
        "bare_p99_ms": median([bare.p99_ms for _, bare in pairs], 1),
    }


def _measure_writes(port: int, token: str, count: int = 100) -> float:
    """Return written records per second, each in a request of its own."""
    start = time.perf_counter()
    for index in range(count):
        context = make_context(f"fleet.kernel{index % 50}")
        post_records(port, token, context, [make_record(10_000 + index, configs=4)])
    return round(count / (time.perf_counter() - start), 1)
