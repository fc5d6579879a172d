"""Costs of a lookup: a resolved launch against `triton.autotune`, the first lookup, memory, import.

Everything is measured side by side in one run and written to `benchmarks/results/lookup.json`. The
kernel is a stand-in that does nothing, so that only the host's work is timed and no GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
import triton
from reports import RESULTS, describe_run, write_report

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.records import context, measurement, record  # noqa: E402

from dejavu_cache import Pow2, cached_autotune  # noqa: E402
from dejavu_cache.stores import FileStore  # noqa: E402

RECORDS = 10_000


class EmptyKernel(triton.KernelInterface):
    """Kernel whose launch costs nothing, so that the autotuner's own time remains."""

    def __init__(self, names: list[str]) -> None:
        self.arg_names = [*names, "BLOCK"]

    @staticmethod
    def fn() -> None:
        """Stand for the jitted function, whose name an autotuner reads."""

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Launch nothing."""


def once(kernel_call: Callable[[], Any], quantiles: Any) -> list[float]:
    """Launch once and return made-up times, since tuning is not what is measured."""
    kernel_call()
    return [1.0, 1.0, 1.0]


def microseconds(
    calls: dict[str, Callable[[], Any]], rounds: int = 200, repeat: int = 50
) -> dict[str, float]:
    """Return the median time of each call, in microseconds; the calls take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            times[name].append((time.perf_counter() - start) / repeat * 1e6)
    return {name: statistics.median(by_round) for name, by_round in times.items()}


def resolved_launch(store: Path) -> dict[str, float]:
    """Time a hit with 5 tensors and 11 integers, 3 of them keys."""
    names = [f"t{i}" for i in range(5)] + [f"n{i}" for i in range(11)]
    configs = [triton.Config({"BLOCK": block}) for block in (16, 32)]
    key = ["n0", "n1", "n2"]
    theirs = triton.autotune(configs=configs, key=key, do_bench=once)(EmptyKernel(names))
    ours = cached_autotune(configs=configs, key=key, do_bench=once, store=store)(EmptyKernel(names))
    bucketed = cached_autotune(
        configs=configs,
        key=key,
        do_bench=once,
        store=store,
        buckets={name: Pow2(max=4096) for name in key},
    )(EmptyKernel(names))
    args = [torch.empty(1) for _ in range(5)] + list(range(100, 111))
    kernels = {
        "triton.autotune": theirs,
        "cached_autotune": ours,
        "cached_autotune, 3 pow2 buckets": bucketed,
    }

    def caller(kernel: Any) -> Callable[[], Any]:
        return lambda: kernel[(1,)](*args)

    return microseconds({name: caller(kernel) for name, kernel in kernels.items()})


def first_sight(folder: Path, kernels: int) -> dict[str, float]:
    """Measure the first lookup in a store of 10,000 records of `kernels` kernels."""
    contexts = [context(kernel=f"pkg.kernel{index}") for index in range(kernels)]
    measured = [measurement(16 << power, 0.1 + power) for power in range(4)]
    wanted = record(7).scenario
    for home in contexts:
        FileStore(folder).put(home, [record(m, *measured) for m in range(RECORDS // kernels)])
    times = []
    for _ in range(15):
        store = FileStore(folder)
        start = time.perf_counter()
        assert store.get(contexts[0], wanted)
        times.append((time.perf_counter() - start) * 1e3)
    tracemalloc.start()
    store = FileStore(folder)
    for home in contexts:
        assert store.get(home, wanted)
    mebibytes = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    return {"ms": statistics.median(times), "MiB, all kernels loaded": mebibytes}


def import_seconds() -> float:
    """Return the median time that `import dejavu_cache` adds to a fresh interpreter."""
    code = (
        "import time; start = time.perf_counter(); import dejavu_cache; "
        "print(time.perf_counter() - start)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(9)
    ]
    return statistics.median(float(run.stdout) for run in runs)


def main(results_folder: Path) -> None:
    """Measure, print and write the results into a folder."""
    with tempfile.TemporaryDirectory() as folder:
        launch = resolved_launch(Path(folder) / "launch")
        results = {
            **describe_run(),
            "machine": platform.machine(),
            "resolved launch, us": launch,
            "ratio to triton.autotune": launch["cached_autotune"] / launch["triton.autotune"],
            f"first sight, {RECORDS} records of one kernel": first_sight(Path(folder) / "one", 1),
            f"first sight, {RECORDS} records of 100 kernels": first_sight(
                Path(folder) / "many", 100
            ),
            "import dejavu_cache, s": import_seconds(),
        }
    print(json.dumps(results, indent=2))
    write_report(results_folder, "lookup.json", results)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=RESULTS)
    main(parser.parse_args().folder)
