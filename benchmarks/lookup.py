"""Costs of a lookup: a resolved launch against `triton.autotune`, the first lookup, memory, import.

Everything is measured side by side in one run and written to `benchmarks/results/lookup.json`. The
kernel is a stand-in that does nothing, so that only the host's work is timed and no GPU is needed.
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
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
import triton

from dejavu_cache import Pow2, cached_autotune
from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import (
    Config,
    Context,
    Device,
    Environment,
    Kernel,
    Problem,
    Scenario,
    now,
)
from dejavu_cache.stores import FileStore

RECORDS = 10_000
RESULTS = Path(__file__).parent / "results"


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


def record(index: int) -> Record:
    """Return a record with four measurements."""
    measurements = (
        Measurement(
            config=Config(params={"BLOCK": 16 << i}, options={"num_warps": 4}),
            median=0.1 + i,
            at=now(),
            by="a@b",
        )
        for i in range(4)
    )
    return Record(
        scenario=Scenario(args={"M": index, "N": 64}, dtypes={"x": "float16"}),
        measurements=tuple(measurements),
    )


def context(kernel: int) -> Context:
    """Return one of the contexts that the records are spread over."""
    device = Device(name="NVIDIA H200", arch="sm_90", units=132, memory_gib=140)
    return Context(
        kernel=Kernel(name=f"pkg.kernel{kernel}", source="0" * 32),
        environment=Environment(device=device, triton="3.6.0", codegen="ptxas 12.9"),
        problem=Problem(keys=("M", "N"), method="events-cold"),
    )


def first_sight(folder: Path, kernels: int) -> dict[str, float]:
    """Measure the first lookup in a store of 10,000 records of `kernels` kernels."""
    per_kernel = RECORDS // kernels
    for kernel in range(kernels):
        FileStore(folder).put(context(kernel), [record(index) for index in range(per_kernel)])
    times = []
    for _ in range(15):
        store = FileStore(folder)
        start = time.perf_counter()
        assert store.get(context(0), record(7).scenario)
        times.append((time.perf_counter() - start) * 1e3)
    tracemalloc.start()
    store = FileStore(folder)
    for kernel in range(kernels):
        assert store.get(context(kernel), record(7).scenario)
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
            "date": datetime.date.today().isoformat(),
            "machine": platform.machine(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "versions": {
                "python": platform.python_version(),
                "triton": triton.__version__,
                "torch": torch.__version__,
            },
            "resolved launch, us": launch,
            "ratio to triton.autotune": launch["cached_autotune"] / launch["triton.autotune"],
            f"first sight, {RECORDS} records of one kernel": first_sight(Path(folder) / "one", 1),
            f"first sight, {RECORDS} records of 100 kernels": first_sight(
                Path(folder) / "many", 100
            ),
            "import dejavu_cache, s": import_seconds(),
        }
    print(json.dumps(results, indent=2))
    results_folder.mkdir(exist_ok=True)
    (results_folder / "lookup.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=RESULTS)
    main(parser.parse_args().folder)
