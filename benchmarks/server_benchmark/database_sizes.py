"""The same work on a small and on a large database in turn."""

from __future__ import annotations

import statistics
import subprocess
import time
from contextlib import ExitStack
from typing import Any, NamedTuple

from dejavu_service.storage.database import Database
from sqlalchemy import text

from .api import post_records, records_path
from .databases import prepare
from .load_generator import encode_get, measure_throughput
from .made_up_records import fill, make_context, make_record
from .processes import peak_mb, run_server, wait_until_quiet
from .ratios import ratio_of_rounds

__all__ = ["WORKLOADS", "measure_database_sizes"]

WORKLOADS = ("uncached_reads", "checks", "writes")


class RunningServer(NamedTuple):
    """Server on a database of one size, and 100 paths spread over all of its contexts."""

    port: int
    process: subprocess.Popen[bytes]
    token: str
    paths: list[str]

    def measure(self, seconds: float, salt: int) -> dict[str, float]:
        """Return the rate of each workload, per second; `salt` makes the written records new."""
        reads = [encode_get(path, self.token) for path in self.paths]
        checks = [encode_get(path, self.token, "*") for path in self.paths]
        return {
            "uncached_reads": measure_throughput(self.port, reads, seconds, b"200"),
            "checks": measure_throughput(self.port, checks, seconds, b"304"),
            "writes": _measure_writes(self.port, self.token, salt),
        }


def measure_database_sizes(urls: dict[int, str], rounds: int, seconds: float) -> dict[str, Any]:
    """Measure reads, checks and writes with nothing cached in the servers' memory.

    Args:
        urls: empty databases, by the number of records to fill them with.
        rounds: how many times each workload is measured.
        seconds: how long each measurement takes.
    """
    results: dict[str, Any] = {}
    rates: dict[str, dict[int, list[float]]] = {
        name: {size: [] for size in urls} for name in WORKLOADS
    }
    with ExitStack() as stack:
        servers: dict[int, RunningServer] = {}
        for size, url in urls.items():
            database, token = prepare(url)
            start = time.perf_counter()
            fill(database, size)
            results[f"{size:,}"] = {"filled_in_s": round(time.perf_counter() - start, 1)}
            results["plans"] = _query_plans(database)
            database.close()
            kernels = (f"fleet.kernel{size // 100 * index // 100}" for index in range(100))
            paths = [records_path(make_context(kernel)) for kernel in kernels]
            port, process = stack.enter_context(run_server(url, DEJAVU_SERVER_CACHE_BYTES="0"))
            servers[size] = RunningServer(port, process, token, paths)
        # The first round only warms up, and is left out below.
        for round_number in range(rounds + 1):
            for size, server in servers.items():
                for name, rate in server.measure(seconds, 1000 * round_number).items():
                    rates[name][size].append(rate)
        for size, server in servers.items():
            for name, by_size in rates.items():
                median = round(statistics.median(by_size[size][1:]), 1)
                results[f"{size:,}"][f"{name}_per_second"] = median
            results[f"{size:,}"]["peak_memory_mb"] = peak_mb(server.process)
    small, large = min(urls), max(urls)
    for name, by_size in rates.items():
        results[f"{name}_large_over_small"] = ratio_of_rounds(
            by_size[large][1:], by_size[small][1:]
        )
    return results


def _measure_writes(port: int, token: str, salt: int, count: int = 100) -> float:
    """Return written records per second, each in a request of its own."""
    wait_until_quiet()
    start = time.perf_counter()
    for index in range(count):
        context = make_context(f"fleet.kernel{index % 50}")
        post_records(port, token, context, [make_record(10_000 + salt + index, configs=4)])
    return count / (time.perf_counter() - start)


def _query_plans(database: Database) -> dict[str, list[str]]:
    """Return the database's plans for the queries that every request needs."""
    digest = make_context("fleet.kernel7").digest
    condition = (
        f"WHERE namespace = 'main' AND digest = '{digest}'"
        if database.is_sqlite
        else f"JOIN unnest(ARRAY['main'], ARRAY['{digest}']) AS wanted (n, d) "
        "ON namespace = n AND digest = d"
    )
    queries = {
        "revision": f"SELECT id, revision, records FROM contexts {condition}",
        "records of a context": "SELECT r.text FROM contexts c "
        "JOIN records r ON r.context_id = c.id "
        f"WHERE c.namespace = 'main' AND c.digest = '{digest}'",
        "claims of a scenario": "SELECT id FROM parts "
        "WHERE context_id = 7 AND scenario = 'x' AND digest = 'y'",
    }
    explain = "EXPLAIN QUERY PLAN" if database.is_sqlite else "EXPLAIN"
    plans = {}
    with database.read() as connection:
        for name, query in queries.items():
            rows = connection.execute(text(f"{explain} {query}"))
            plans[name] = [str(row[-1]).strip() for row in rows]
    return plans
