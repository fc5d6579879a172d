"""CPU time that a launch of an untuned scenario takes in mode `reuse`, by the size of the store.

    python benchmarks/fallback.py                      # this checkout
    python benchmarks/fallback.py --before FOLDER      # and another one, side by side

Needs no GPU: kernels run in Triton's interpreter, whose own time is in all figures. Prints the
results and writes `benchmarks/results/fallback.json` and `fallback.md`. A prediction is what the
launch of an untuned scenario reads and computes from the records of near ones.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parent.parent
SIZES = (1_000, 10_000)
PROCESSES = 5

KERNEL = """
import json, os, sys, time
os.environ.update(TRITON_INTERPRET="1", DEJAVU_CACHE_SHIPPED="0", DEJAVU_CACHE_URL=sys.argv[1])
import numpy, torch, triton, triton.language as tl
from dejavu_cache import cached_autotune

def kernel(x, n, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), 1.0)

CONFIGS = [
    triton.Config({"B": 16}, num_warps=warps, num_stages=stages)
    for warps in (1, 2, 4, 8) for stages in (1, 2, 3, 4, 5)
]
cached = cached_autotune(configs=CONFIGS, key=["n"], mode="reuse")(triton.jit(kernel))
x, count = torch.zeros(64), int(sys.argv[2])
"""

RECORDING = """
from dejavu_cache.model.record import Measurement, Record, Winner
from dejavu_cache.model.scenario import Scenario, now
from dejavu_cache.triton_internals.config_names import describe

at, configs = now(), [describe(config) for config in CONFIGS]
def record(n):
    best = 10 + n % 3
    timings = (
        Measurement(config=config, median=1 + abs(place - best) / 10, p20=1.0, p80=2.0, at=at)
        for place, config in enumerate(configs)
    )
    return Record(scenario=Scenario(args={"n": n}, dtypes={"x": "float32"}),
                  measurements=tuple(timings), winner=Winner(config=configs[best], at=at))
context = cached.request(x, 1).context
cached.home.put(context, [record(n) for n in range(1, count + 1)])
"""

LAUNCHING = """
from dejavu_cache.runtime.known_records import KnownRecords, fall_back

def milliseconds(call, *arguments):
    start = time.process_time()
    call(*arguments)
    return (time.process_time() - start) * 1e3

untuned = count + 1
request, records = cached.request(x, untuned), KnownRecords(cached.home)

def predict(request):
    near = getattr(records, "near_a_launch", lambda request: records)  # as earlier checkouts
    fall_back(request, near(request), uncompared=True)

result = {"the first prediction of a process": milliseconds(
    predict, request)}
result["the next predictions"] = min(
    milliseconds(predict, request) for _ in range(20))
launch = cached[(1,)]
result["a tuned scenario, first launch"] = milliseconds(launch, x, 7)
result["a tuned scenario, next launches"] = min(milliseconds(launch, x, 7) for _ in range(50))
result["an untuned scenario, first launch"] = milliseconds(launch, x, untuned)
result["an untuned scenario, next launches"] = min(
    milliseconds(launch, x, untuned) for _ in range(50))
time.sleep(5.1)
result["an untuned scenario, after 5 s"] = milliseconds(launch, x, untuned)
how = cached.explain(x, untuned).how
assert how == "predicted", how
print(json.dumps(result))
"""


def run(checkout: Path, folder: Path, program: str, size: int) -> str:
    """Run a program in a process of a checkout, and return what it prints."""
    file = folder / "program.py"  # Triton reads a kernel's source from its file
    file.write_text(KERNEL + program)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (checkout, checkout / "client"))),
        "PYTHONPYCACHEPREFIX": str(folder / checkout.name),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    command = [sys.executable, "-W", "ignore", file, folder / "store", str(size)]
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def measure(checkouts: dict[str, Path], size: int) -> dict[str, dict[str, float]]:
    """Return medians of milliseconds of CPU time by checkout and launch; processes take turns."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory() as folder:
        run(next(iter(checkouts.values())), Path(folder), RECORDING, size)
        for _ in range(PROCESSES + 1):
            for name, checkout in checkouts.items():
                runs[name].append(json.loads(run(checkout, Path(folder), LAUNCHING, size)))
    medians: dict[str, dict[str, float]] = {}
    for name, (_, *results) in runs.items():  # the first process writes bytecode
        rows = {row: [times[row] for times in results] for row in results[0]}
        medians[name] = {row: round(statistics.median(rows[row]), 2) for row in rows}
    return medians


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
    times = {str(size): measure(checkouts, size) for size in SIZES}
    versions = {"python": platform.python_version()}
    versions |= {
        name: __import__(name).__version__ for name in ("triton", "torch", "numpy", "pydantic")
    }
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
    text = f"# Untuned launches in mode `reuse`\n\n{stamp}. 20 configs per record, "
    text += f"medians of {PROCESSES} processes.\n\n"
    RESULTS.joinpath("fallback.md").write_text(f"{text}{table(times)}\n")
    print(table(times))


if __name__ == "__main__":
    main()
