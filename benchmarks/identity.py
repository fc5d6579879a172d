"""Launch kernels that were edited, or launched otherwise, with the records of the ones before.

No GPU is needed: launches are real up to the driver, and what Triton compiles for them is compared.
`make identity` writes `benchmarks/results/identity.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.compiling_gpu import TARGETS  # noqa: E402
from support.identity_check import check_edits, edits_of, quiet_processes  # noqa: E402
from support.identity_corpus import CORPUS  # noqa: E402


def main() -> None:
    """Run the comparison and print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, help="how many edits; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1, help="edits with this many seeds")
    parser.add_argument("--settings", type=int, help="how many settings; default: all")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument("--out", type=Path, help="a file for the result")
    options = parser.parse_args()
    edits = [
        (name, edit)
        for seed in range(options.seed, options.seed + options.rounds)
        for name, kernel in CORPUS.items()
        for edit in edits_of(kernel, seed)
    ]
    if options.sample:
        edits = random.Random(options.seed).sample(edits, options.sample)
    import triton

    result: dict[str, Any] = {"triton": triton.__version__, "edits": len(edits), "targets": {}}
    for target in options.targets:
        with quiet_processes(options.jobs) as pool:
            result["targets"][target] = summary(edits, target, pool)
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


def summary(edits: Any, target: str, pool: Any) -> dict[str, Any]:
    """Return what became of the edits, with the share of harmless ones that cost nothing."""
    started = time.perf_counter()
    outcome = check_edits(edits, target, pool)
    counts = outcome.edits
    harmless = sum(count for kind, count in counts.items() if kind.startswith("harmless"))
    return {
        "harmless": harmless,
        "harmless free": round(1 - len(outcome.costly) / harmless, 4) if harmless else None,
        **asdict(outcome),
        "edits": dict(sorted(counts.items())),
        "needless": len(outcome.needless),
        "seconds": round(time.perf_counter() - started),
    }


if __name__ == "__main__":
    main()
