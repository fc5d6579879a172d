"""CPU time that a launch of an untuned scenario takes in mode `reuse`, by the size of the store.

    python benchmarks/fallback.py                      # this checkout
    python benchmarks/fallback.py --before FOLDER      # and another one, side by side

Needs no GPU: kernels run in Triton's interpreter, whose own time is in all figures. Prints the
results and writes `benchmarks/results/fallback.json` and `fallback.md`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parent.parent
SIZES = (1_000, 10_000)

PROGRAM = """
import json, os, sys, tempfile, time
os.environ.update(TRITON_INTERPRET="1", DEJAVU_CACHE_SHIPPED="0")
os.environ["DEJAVU_CACHE_URL"] = tempfile.mkdtemp()
import torch, triton, triton.language as tl
from dejavu_cache import cached_autotune
from dejavu_cache.model.record import Measurement, Record, Winner
from dejavu_cache.model.scenario import Scenario, now
from dejavu_cache.triton_internals.config_names import describe

def kernel(x, n, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), 1.0)

CONFIGS = [
    triton.Config({"B": 16}, num_warps=warps, num_stages=stages)
    for warps in (1, 2, 4, 8) for stages in (1, 2, 3, 4, 5)
]
cached = cached_autotune(configs=CONFIGS, key=["n"], mode="reuse")(triton.jit(kernel))
x, at = torch.zeros(64), now()
request = cached.request(x, 10**9)
measurements = tuple(
    Measurement(config=describe(config), median=1.0 + place, p20=1.0, p80=2.0, at=at)
    for place, config in enumerate(CONFIGS)
)
winner = Winner(config=measurements[0].config, at=at)
cached.home.tiers[0].put(request.context, [
    Record(scenario=Scenario(args={"n": n}, dtypes={"x": "float32"}), measurements=measurements,
           winner=winner)
    for n in range(1, int(sys.argv[1]) + 1)
])
fresh = cached_autotune(configs=CONFIGS, key=["n"], mode="reuse")(triton.jit(kernel))

def milliseconds(n):
    start = time.process_time()
    fresh[(1,)](x, n)
    return (time.process_time() - start) * 1e3

result = {"a tuned scenario, first launch": milliseconds(7)}
result["a tuned scenario, next launches"] = min(milliseconds(7) for _ in range(50))
result["an untuned scenario, first launch"] = milliseconds(10**9)
result["an untuned scenario, next launches"] = min(milliseconds(10**9) for _ in range(50))
time.sleep(5.1)
result["an untuned scenario, after 5 s"] = milliseconds(10**9)
result["another untuned scenario, first launch"] = milliseconds(10**9 + 1)
print(json.dumps({name: round(value, 3) for name, value in result.items()}))
"""


def measure(checkout: Path, size: int) -> dict[str, float]:
    """Return milliseconds of CPU time by launch, measured in a process of a checkout."""
    path = os.pathsep.join(map(str, (checkout, checkout / "client")))
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"  # Triton reads a kernel's source from its file
        program.write_text(PROGRAM)
        output = subprocess.run(
            [sys.executable, "-W", "ignore", program, str(size)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    times: dict[str, float] = json.loads(output.stdout)
    return times


def table(times: dict[str, dict[str, dict[str, float]]]) -> str:
    """Lay out the results as Markdown."""
    columns = [(size, code) for size, codes in times.items() for code in codes]
    names = list(times[columns[0][0]][columns[0][1]])
    lines = ["| CPU time, ms | " + " | ".join(f"{size} records, {code}" for size, code in columns)]
    lines.append("|---" * (len(columns) + 1))
    for name in names:
        lines.append(f"| {name} | " + " | ".join(str(times[s][c][name]) for s, c in columns))
    return "\n".join(f"{line} |" if not line.startswith("|---") else f"{line}|" for line in lines)


def main() -> None:
    """Measure the checkouts in turns, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="another checkout to measure beside this one")
    before = parser.parse_args().before
    checkouts = {**({"before": before} if before else {}), "now": ROOT}
    times = {
        str(size): {code: measure(path, size) for code, path in checkouts.items()} for size in SIZES
    }
    versions = {"python": platform.python_version()}
    versions |= {name: __import__(name).__version__ for name in ("triton", "torch", "pydantic")}
    result = {
        "date": datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "versions": versions,
        "CPU time, ms": times,
    }
    RESULTS.joinpath("fallback.json").write_text(json.dumps(result, indent=2) + "\n")
    stamp = f"{result['date']}, {result['machine']}, " + ", ".join(
        f"{name} {version}" for name, version in versions.items()
    )
    text = f"# Untuned launches in mode `reuse`\n\n{stamp}. 20 configs per record.\n\n"
    RESULTS.joinpath("fallback.md").write_text(f"{text}{table(times)}\n")
    print(table(times))


if __name__ == "__main__":
    main()
