"""The start of a fleet: clients that look up their kernels' records for the first time at once."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dejavu_service.services import tokens
from dejavu_service.services.access import ANYBODY
from dejavu_service.storage import contexts as stored_contexts
from dejavu_service.storage import record_texts
from dejavu_service.storage.database import Database
from dejavu_service.storage.tables import contexts, records
from sqlalchemy import insert

from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Context, Scenario, canonical_json

from .api import post_records, records_path
from .databases import prepare
from .made_up_records import make_context, make_record, record_row
from .processes import peak_mb, run_server

KERNELS = 20
"""Kernels that each client looks up."""
SCENARIOS = 50
"""Scenarios of each kernel that the server has."""

_CLIENT = Path(__file__).parent / "fleet_client.py"


def measure_fleet_start(
    url: str, clients: int, processes: int, seconds: float, replicas: int
) -> dict[str, Any]:
    """Have clients start one after the other, each with a look-up of every kernel.

    Args:
        url: an empty database.
        clients: how many start in all.
        processes: how many of them are processes with the real client; the others send the same
            requests, each over its own connection.
        seconds: how long the start takes; the clients begin at equal distances.
        replicas: how many servers share the database.
    """
    database, admin = prepare(url)
    token = tokens.issue(database, ANYBODY, "fleet", {"main": "write"}).token
    database.close()
    kernels = [make_context(f"fleet.start.kernel{number}") for number in range(KERNELS)]
    with ExitStack() as stack:
        servers = [stack.enter_context(run_server(url)) for _ in range(replicas)]
        ports = [port for port, _ in servers]
        for kernel in kernels:
            post_records(ports[0], admin, kernel, [make_record(m) for m in range(SCENARIOS)])
        outcome = asyncio.run(_start(ports, token, kernels, clients, processes, seconds))
        outcome["peak_memory_mb"] = [peak_mb(process) for _, process in servers]
    return outcome


async def _start(
    ports: list[int],
    token: str,
    kernels: list[Context],
    clients: int,
    processes: int,
    seconds: float,
) -> dict[str, Any]:
    real: list[dict[str, Any]] = []
    simulated: list[tuple[float, float, str]] = []
    start = time.time()
    every = clients // processes if processes else clients + 1
    made = [make_record(m) for m in range(SCENARIOS)]

    async def begin(number: int) -> None:
        await asyncio.sleep(number * seconds / clients)
        port = ports[number % len(ports)]
        looks = [(kernel, made[(number + i) % SCENARIOS]) for i, kernel in enumerate(kernels)]
        if number % every == 0 and number // every < processes:
            real.append(await _run_client(port, token, looks))
        else:
            simulated.extend(await _send_requests(port, token, looks))

    await asyncio.gather(*(begin(number) for number in range(clients)))
    looked_up = [tuple(look) for client in real for look in client["looked_up"]]
    return {
        "clients": clients,
        "processes": len(real),
        "replicas": len(ports),
        "seconds": round(max(at for at, _, _ in [*looked_up, *simulated]) - start, 2),
        "process_look_ups": _summarize(looked_up),
        "request_look_ups": _summarize(simulated),
        "samples": [
            (round(at - start, 2), round(lasted * 1e3, 1), is_real)
            for looks, is_real in ((looked_up, 1), (simulated, 0))
            for at, lasted, _ in looks
        ],
    }


async def _run_client(port: int, token: str, looks: list[tuple[Context, Record]]) -> dict[str, Any]:
    """Run a process with the real client, its libraries not yet imported."""
    with tempfile.TemporaryDirectory() as home:
        variables = {**os.environ, "XDG_CACHE_HOME": home, "DEJAVU_CACHE_TOKEN": token}
        process = await asyncio.create_subprocess_exec(
            sys.executable, _CLIENT, f"http://127.0.0.1:{port}",
            env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        wanted = [(kernel.text, record.scenario.text) for kernel, record in looks]
        output, _ = await process.communicate(json.dumps(wanted).encode())
    if process.returncode:
        raise RuntimeError(f"a client ended with {process.returncode}")
    client: dict[str, Any] = json.loads(output)
    return client


async def _send_requests(
    port: int, token: str, looks: list[tuple[Context, Record]]
) -> list[tuple[float, float, str]]:
    """Look up records over one new connection; the first look-up includes its set-up."""
    looked_up = []
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for kernel, record in looks:
        path = f"{records_path(kernel)}/{record.scenario.digest}"
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n"
            f"Authorization: Bearer {token}\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        await reader.readexactly(int(length[1]) if length else 0)
        outcome = "found" if head.startswith(b"HTTP/1.1 200") else head[9:12].decode()
        looked_up.append((time.time(), time.perf_counter() - start, outcome))
        start = time.perf_counter()
    writer.close()
    return looked_up


def _summarize(looked_up: list[tuple[float, float, str]]) -> dict[str, Any]:
    """Return the number of look-ups, those not found at once, and latencies in milliseconds."""
    lasted = sorted(seconds * 1e3 for _, seconds, _ in looked_up)
    outcomes = [outcome for _, _, outcome in looked_up]
    return {
        "number": len(looked_up),
        "not_found": {name: outcomes.count(name) for name in set(outcomes) - {"found"}},
        "median_ms": round(lasted[len(lasted) // 2], 1),
        "p99_ms": round(lasted[int(len(lasted) * 0.99)], 1),
        "worst_ms": round(lasted[-1], 1),
    }


def measure_cold_look_ups(
    url: str, scenarios: int, configs: int, runs: int, at_once: int
) -> dict[str, Any]:
    """Have cold processes look up one record of a large context while every core is busy.

    Args:
        url: an empty database.
        scenarios: how many the context has.
        configs: how many are measured in each.
        runs: how many times processes start.
        at_once: how many start together.
    """
    database, token = prepare(url)
    context = make_context("fleet.start.large")
    _fill(database, context, scenarios, configs)
    database.close()
    looked_up: list[tuple[float, float, str]] = []

    async def start(port: int, run: int) -> list[dict[str, Any]]:
        records = [_of_scenario(run * at_once + number) for number in range(at_once)]
        return await asyncio.gather(
            *(_run_client(port, token, [(context, record)]) for record in records)
        )

    with run_server(url) as (port, server), _busy_cores():
        for run in range(runs):
            for client in asyncio.run(start(port, run)):
                looked_up += [tuple(look) for look in client["looked_up"]]
        memory = peak_mb(server)
    return {
        "scenarios": scenarios,
        "configs": configs,
        "busy_cores": os.cpu_count(),
        "at_once": at_once,
        "peak_memory_mb": memory,
        **_summarize(looked_up),
    }


def _of_scenario(m: int) -> Record:
    return make_record(m, configs=1)


def _fill(database: Database, context: Context, scenarios: int, configs: int) -> None:
    """Write a context's records straight into the table that reads take them from."""
    model = make_record(0, configs=configs)
    text, own = canonical_json(model), model.scenario.text
    with database.write() as connection:
        (identity,) = stored_contexts.ensure(connection, "main", [context]).values()
        for start in range(0, scenarios, 100):
            rows = []
            for m in range(start, min(start + 100, scenarios)):
                scenario: Scenario = _of_scenario(m).scenario
                rows.append(record_row(identity, scenario, text.replace(own, scenario.text)))
            connection.execute(insert(records), rows)
        connection.execute(contexts.update().values(records=scenarios))
        first = _of_scenario(0).scenario.digest
        found = record_texts.load_texts(connection, "main", context.digest, [first])
    assert len(Record.model_validate_json(found[first]).measurements) == configs


@contextmanager
def _busy_cores() -> Iterator[None]:
    """Keep every core busy with a process of the same priority."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
