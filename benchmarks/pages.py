"""Time of the server's pages over 100,000 records and a copy of them, by the client's clock.

python benchmarks/pages.py --out benchmarks/results/pages.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
from dejavu_service.services.access import ANYBODY
from dejavu_service.services.misses import count_misses
from dejavu_service.services.records import merge_record_set
from dejavu_service.storage import summaries
from dejavu_service.storage.database import Database
from server_benchmark.databases import database_makers, prepare
from server_benchmark.made_up_records import make_context
from server_benchmark.processes import run_server

from dejavu_cache.model.record import Measurement, Record, RecordSet, Winner
from dejavu_cache.model.scenario import Config, Context, Scenario
from dejavu_cache.model.worth import MissCount

DEVICES = ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA B200", "AMD Instinct MI300X")
TRITONS = ("3.5.0", "3.6.0")
CONFIGS = [Config(params={"BLOCK": 2**power}, options={"num_warps": 4}) for power in (5, 6, 7)]


def scenario(number: int) -> Scenario:
    rows, columns = divmod(number, 16)
    return Scenario(
        args={"M": 16 * (rows + 1), "N": 2 ** (columns + 4), "causal": True},
        dtypes={"x_ptr": "bfloat16"},
    )


def record(number: int, shift: int) -> Record:
    medians = [0.1 + 0.01 * ((number + shift + rank) % 3) for rank in range(3)]
    now = datetime.now(timezone.utc)
    measurements = [
        Measurement(config=config, median=median, p20=median, p80=median, at=now, by="ci@node",
                    seconds=0.5)
        for config, median in zip(CONFIGS, medians, strict=True)
    ]  # fmt: skip
    best = CONFIGS[medians.index(min(medians))]
    return Record(
        scenario=scenario(number),
        winner=Winner(config=best, at=now),
        measurements=tuple(measurements),
    )


def contexts(kernels: int) -> list[Context]:
    return [
        make_context(f"team.kernels_{index % 7}.kernel_{index}", ("M", "N", "causal"), gpu, triton)
        for index in range(kernels)
        for gpu in DEVICES
        for triton in TRITONS
    ]


def fill(database: Database, kernels: int, records_each: int) -> None:
    for shift, context in enumerate(contexts(kernels)):
        records = tuple(record(number, shift) for number in range(records_each))
        for namespace in ("main", "copy"):
            sent = RecordSet(context=context, records=records)
            with database.write() as connection:
                merge_record_set(connection, ANYBODY, namespace, sent)
        missed = [
            (context, scenario(records_each + number), MissCount(number + 1)) for number in range(2)
        ]
        count_misses(database, ANYBODY, "main", missed)


def time_pages(client: httpx.Client, paths: dict[str, str], rounds: int) -> dict[str, float]:
    seconds = {}
    for name, path in paths.items():
        laps = []
        for _ in range(rounds):
            start = time.perf_counter()
            answer = client.get(path)
            laps.append(time.perf_counter() - start)
            assert answer.status_code == 200, (path, answer.text)
        seconds[name] = round(statistics.median(laps), 4)
    return seconds


def measure(url: str, kernels: int, records_each: int, rounds: int) -> dict[str, Any]:
    database, token = prepare(url)
    fill(database, kernels, records_each)
    with database.read() as connection:
        rows = summaries.load_contexts(connection, "main")
    database.close()
    digest, other = rows[0].digest, rows[1].digest
    context = f"/pages/main/contexts/{digest}"
    kernel = Context.model_validate_json(rows[0].text).kernel.name
    paths = {
        "overview": "/pages/main",
        "overview, searched and sorted": "/pages/main?q=kernel_1&sort=seconds",
        "kernel": f"/pages/main/kernel?name={kernel}",
        "context": context,
        "scenario": f"{context}/scenarios/{scenario(0).digest}",
        "compare contexts": f"{context}/compare?other={other}",
        "compare namespaces": "/pages/main/compare?to=copy",
        "overview of a GPU": "/pages/main?device=NVIDIA+B200",
        "missing": "/pages/main/misses",
        "missing on a GPU": "/pages/main/misses?device=NVIDIA+B200",
        "activity": "/pages/main/activity",
        "namespaces": "/namespaces",
    }
    headers = {"Authorization": f"Bearer {token}"}
    with (
        run_server(url) as (port, _),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client,
    ):
        return {
            "contexts": len(rows),
            "records": sum(row.records for row in rows),
            "median_seconds": time_pages(client, paths, rounds),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=50)
    parser.add_argument("--records", type=int, default=250, help="of each context")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        database_makers(arguments.databases, Path(folder)) as makers,
    ):
        result: dict[str, Any] = {
            "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {sys.version[:6]}",
        }
        for kind, make in makers.items():
            size = (arguments.kernels, arguments.records, arguments.rounds)
            result[kind] = measure(make("pages"), *size)
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
