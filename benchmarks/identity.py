"""Launch kernels that were edited, or launched otherwise, with the records of the ones before.

No GPU is needed: launches are real up to the driver, and what Triton compiles for them is compared.
A record may answer a launch only if the code is the same. `make identity` does it for every target
with every Triton, and writes `benchmarks/results/identity-VERSION.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from identity_runs.compiler_settings import check_settings  # noqa: E402
from identity_runs.edited_attention import check_attention  # noqa: E402
from identity_runs.launch_pairs import SECONDS, check_launches  # noqa: E402
from identity_runs.look_times import measure_looks  # noqa: E402
from support.compiling_gpu import TARGETS  # noqa: E402
from support.hidden_changes import check_changes  # noqa: E402
from support.identity_check import check_edits, edits_of, quiet_processes  # noqa: E402
from support.identity_corpus import CORPUS  # noqa: E402


def main() -> None:
    """Run the comparisons, and print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, help="how many edits; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1, help="edits with this many seeds")
    parser.add_argument("--settings", type=int, help="how many settings; default: all")
    parser.add_argument("--pairs", type=int, default=2000, help="pairs of launches")
    parser.add_argument("--attention", type=int, default=0, help="edits of attention kernels")
    parser.add_argument("--times", action="store_true", help="time first looks and hits, too")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument(
        "--targets", nargs="+", default=["cuda:90", "gfx942"], choices=list(TARGETS)
    )
    parser.add_argument("--out", type=Path, help="a folder for the result")
    options = parser.parse_args()
    import triton

    result: dict[str, Any] = {"triton": triton.__version__}
    for target in options.targets:
        result[target] = summary(options, target)
    if options.attention:
        third = options.attention // 3
        result["attention"] = check_attention(
            third, options.attention - third, options.seed, options.jobs
        )
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        path = options.out / f"identity-{triton.__version__}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    sys.exit(any(_wrong(result)))


def summary(options: argparse.Namespace, target: str) -> dict[str, Any]:
    """Return what was found for one target, each comparison in processes of its own."""
    edits = [
        (name, edit)
        for seed in range(options.seed, options.seed + options.rounds)
        for name, kernel in CORPUS.items()
        if target in kernel.targets
        for edit in edits_of(kernel, seed)
    ]
    if options.sample is not None:
        edits = random.Random(options.seed).sample(edits, options.sample)
    kernels = range(options.seed, options.seed + options.pairs // SECONDS)
    found: dict[str, Any] = {}
    started = time.perf_counter()
    with quiet_processes(options.jobs) as pool:
        changed = pool.submit(hidden_changes, target)
        settings = check_settings(target, pool, options.settings, options.seed)
        pairs = check_launches(kernels, target, pool)
        edited = check_edits(edits, target, pool)
        harmless = sum(n for kind, n in edited.counts.items() if kind.startswith("harmless"))
        costly = len(edited.cases["costly"])
        found["edits"] = {
            "edited": len(edits),
            "harmless": harmless,
            "harmless free": round(1 - costly / harmless, 4) if harmless else None,
            **edited.summary(),
        }
        found["changes"] = changed.result()
        found["launches"] = pairs.summary()
        found["settings"] = settings.summary()
    found["seconds"] = round(time.perf_counter() - started)
    if options.times:
        with quiet_processes(1) as pool:
            found["microseconds"] = pool.submit(measure_looks, target).result()
    return found


def hidden_changes(target: str) -> dict[str, Any]:
    """Return what became of the changes that no kernel's text shows, by outcome."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        outcomes = check_changes(Path(folder), target)
    found: dict[str, Any] = {"wrong": []}
    for name, outcome in outcomes.items():
        found.setdefault(outcome, []).append(name)
    return found


def _wrong(found: Any) -> Iterator[str]:
    """Yield the records that were taken wrongly."""
    if isinstance(found, dict):
        for name, value in found.items():
            yield from value if name == "wrong" else _wrong(value)


if __name__ == "__main__":
    main()
