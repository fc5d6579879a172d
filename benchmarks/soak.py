"""Hours of writers, readers, launching programs and faults, with invariants checked all the while.

    python benchmarks/soak.py [--seconds 3600] [--databases sqlite,postgres]
    pip install matplotlib; python benchmarks/soak_test/report.py

The databases are tested at the same time, each with replicas, a faulty network and, where a tmpfs
can be mounted, a disk that is full at times. It exits with 1 if anything was lost, wrong or left.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import datetime, timezone

from soak_test.report import RESULTS, broken_promises, make_page


def run_in_child(kind: str, seconds: float) -> None:
    """Run one session, and print its result as JSON."""
    from soak_test.session import run_session

    json.dump(run_session(kind, seconds), sys.stdout)


def run_all(kinds: list[str], seconds: float) -> int:
    """Run the sessions at the same time, and write their results; return the exit code."""
    arguments = [sys.executable, __file__, "--seconds", str(seconds), "--session"]
    children = [
        subprocess.Popen([*arguments, kind], stdout=subprocess.PIPE, text=True) for kind in kinds
    ]
    outputs = [child.communicate()[0] for child in children]
    results = [json.loads(output) for output in outputs if output]
    started = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    machine = f"{started}, Python {platform.python_version()}, {os.cpu_count()} cores"
    page = {"machine": machine, "databases": results}
    (RESULTS / "soak.json").write_text(json.dumps(page) + "\n")
    (RESULTS / "soak.md").write_text(make_page(results, machine))
    problems = [
        f"{result['kind']}: {text}" for result in results for text in broken_promises(result)
    ]
    problems += [
        f"{kind} did not end: see above"
        for kind, output in zip(kinds, outputs, strict=True)
        if not output
    ]
    print("\n".join(problems) or "everything held")
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--databases", default="sqlite,postgres")
    parser.add_argument("--session", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.session:
        run_in_child(arguments.session, arguments.seconds)
        return 0
    return run_all(arguments.databases.split(","), arguments.seconds)


if __name__ == "__main__":
    sys.exit(main())
