"""Bulk reads and reads of one record against bare endpoints that send the same bytes."""

from __future__ import annotations

import gzip
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from dejavu_cache.model.record import RecordSet
from dejavu_cache.model.scenario import Context

from .api import post_records, records_path
from .databases import prepare
from .load_generator import encode_get, measure_half_load, measure_throughput
from .made_up_records import make_context, make_record
from .processes import peak_mb, run_bare, run_server
from .ratios import ratio_of_rounds

__all__ = ["measure_bulk_reads"]


def measure_bulk_reads(url: str, rounds: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Measure bulk reads, unchanged ones and the bare endpoint in turn.

    Args:
        url: an empty database.
        rounds: how many times each is measured.
        seconds: how long each measurement takes.
        folder: where the bare endpoint's body is written.
    """
    database, token = prepare(url)
    database.close()
    small, large = make_context("shop.kernels.matmul"), make_context("shop.kernels.large")
    path = records_path(small)
    with ExitStack() as stack:
        port, process = stack.enter_context(run_server(url))
        post_records(port, token, small, [make_record(m) for m in range(100)])
        post_records(port, token, large, [make_record(m) for m in range(1000)])
        answer = httpx.get(
            f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {token}"}
        )
        packed = gzip.compress(answer.content, 4, mtime=0)
        assert len(packed) == int(answer.headers["content-length"])
        (folder / "body").write_bytes(packed)
        bare_port, bare_process = stack.enter_context(run_bare(folder / "body"))
        bare = [encode_get("/bare")]
        full = [encode_get(path, token)]
        bare_record_port, record_path = stack.enter_context(
            _bare_record(port, token, path, folder / "record")
        )
        record = [encode_get(record_path, token)]
        unchanged = [encode_get(path, token, answer.headers["etag"])]
        names = ("bare", "full", "unchanged", "bare_record", "record")
        rates: dict[str, list[float]] = {name: [] for name in names}
        halves: dict[str, list[dict[str, float]]] = {"bare": [], "full": []}
        for _ in range(rounds):
            rates["bare"].append(measure_throughput(bare_port, bare, seconds, b"200"))
            rates["full"].append(measure_throughput(port, full, seconds, b"200"))
            rates["unchanged"].append(measure_throughput(port, unchanged, seconds, b"304"))
            rates["bare_record"].append(measure_throughput(bare_record_port, bare, seconds, b"200"))
            rates["record"].append(measure_throughput(port, record, seconds, b"200"))
            halves["bare"].append(
                measure_half_load(bare_process, bare_port, bare, rates["bare"][-1], seconds)
            )
            halves["full"].append(
                measure_half_load(process, port, full, rates["full"][-1], seconds)
            )
        return {
            "bytes_plain": len(answer.content),
            "bytes_gzip": len(packed),
            "requests_per_second": {
                name: round(statistics.median(by_round)) for name, by_round in rates.items()
            },
            "full_over_bare": ratio_of_rounds(rates["full"], rates["bare"]),
            "unchanged_over_bare": ratio_of_rounds(rates["unchanged"], rates["bare"]),
            "record_over_bare": ratio_of_rounds(rates["record"], rates["bare_record"]),
            "half_load": {name: _medians(by_round) for name, by_round in halves.items()},
            "thousand_records": _time_thousand_records(port, token, large),
            "peak_memory_mb": peak_mb(process),
        }


@contextmanager
def _bare_record(port: int, token: str, path: str, body: Path) -> Iterator[tuple[int, str]]:
    """Run a bare endpoint that sends one of the records at `path`; yield its port and the path."""
    path = f"{path}/{make_record(50).scenario.digest}"
    answer = httpx.get(
        f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {token}"}
    )
    packed = gzip.compress(answer.content, 4, mtime=0)
    assert len(packed) == int(answer.headers["content-length"])
    body.write_bytes(packed)
    with run_bare(body) as (bare_port, _):
        yield bare_port, path


def _medians(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return medians over the rounds, and the ratio and the time without a core of each round."""
    medians: dict[str, Any] = {
        name: round(statistics.median(latencies[name] for latencies in rounds), 3)
        for name in rounds[0]
    }
    for name in ("ratio", "coreless_ms"):
        medians[f"{name}_rounds"] = [latencies[name] for latencies in rounds]
    return medians


def _time_thousand_records(port: int, token: str, context: Context) -> dict[str, float]:
    """Time one client that reads 1,000 records: the first request after a change, and the next."""
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {token}"}
    ) as client:
        client.get("/livez")
        times = []
        for _ in range(2):
            start = time.perf_counter()
            content = client.get(records_path(context)).content
            times.append(round((time.perf_counter() - start) * 1e3, 1))
    start = time.perf_counter()
    assert len(RecordSet.model_validate_json(content).records) == 1000
    return {
        "first_ms": times[0],
        "next_ms": times[1],
        "then_validated_in_ms": round((time.perf_counter() - start) * 1e3),
    }
