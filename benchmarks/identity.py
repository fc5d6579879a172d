"""Compare identities with the code that Triton generates: edited kernels, and all its settings.

No GPU is needed. `make identity` writes `benchmarks/results/identity.json`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.compiler_settings_check import check_settings  # noqa: E402
from support.identity_check import TARGETS, check_edits, edits_of  # noqa: E402
from support.identity_corpus import CORPUS  # noqa: E402


def main() -> None:
    """Run the comparison and print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, help="how many edits; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1, help="edits with this many seeds")
    parser.add_argument("--settings", type=int, help="how many settings; default: all")
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
    outcome = check_edits(edits)
    import triton

    result = {
        "triton": triton.__version__,
        "targets": [f"{backend}:{arch}" for backend, arch, _ in TARGETS],
        "edits": len(edits),
        "harmless": sum(
            count for kind, count in outcome.edits.items() if kind.startswith("harmless")
        ),
        "kinds": dict(sorted(outcome.edits.items())),
        "refused": outcome.refused,
        "compared": outcome.compared,
        "wrong": outcome.wrong,
        "costly": outcome.costly,
        "settings": asdict(check_settings(("helpers",), options.settings, options.seed)),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
