"""What a lookup costs: a resolved launch against `triton.autotune`'s hit, first sight, memory, import.

Everything is measured side by side in one run, on this machine, and written to `benchmarks/results/lookup.json`.
On a machine without a GPU the kernel is a stand-in that does nothing, so that only the host's work is timed.
"""

from __future__ import annotations

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


class Nothing(triton.KernelInterface):
    """A kernel of 16 arguments whose launch costs nothing: what remains is the autotuner's own time."""

    def __init__(self, names: list[str]) -> None:
        self.arg_names = names

    @staticmethod
    def fn() -> None:
        """A function, which is what an autotuner looks for at the bottom."""

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Launches nothing."""


def once(kernel_call: Callable[[], Any], quantiles: Any) -> list[float]:
    """A benchmark that does not take time."""
    kernel_call()
    return [1.0, 1.0, 1.0]


def microseconds(
    calls: dict[str, Callable[[], Any]], rounds: int = 200, repeat: int = 50
) -> dict[str, float]:
    """The median time of each call, the calls taking turns."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            taken[name].append((time.perf_counter() - start) / repeat * 1e6)
    return {name: statistics.median(times) for name, times in taken.items()}


def resolved_launch(store: Path) -> dict[str, float]:
    """Host time of a hit: 5 tensors and 11 numbers, 3 of them keys."""
    names = [f"t{i}" for i in range(5)] + [f"n{i}" for i in range(11)]
    configs = [triton.Config({"BLOCK": block}) for block in (16, 32)]
    key = ["n0", "n1", "n2"]
    theirs = triton.autotune(configs=configs, key=key, do_bench=once)(Nothing(names))
    ours = cached_autotune(configs=configs, key=key, do_bench=once, store=store)(Nothing(names))
    bucketed = cached_autotune(
        configs=configs,
        key=key,
        do_bench=once,
        store=store,
        buckets={name: Pow2(max=4096) for name in key},
    )(Nothing(names))
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
    """A record with four measurements."""
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
    """One of the contexts that the records are spread over."""
    device = Device(name="NVIDIA H200", arch="sm_90", units=132, memory_gib=140)
    return Context(
        kernel=Kernel(name=f"pkg.kernel{kernel}", source="0" * 32),
        environment=Environment(device=device, triton="3.6.0", codegen="ptxas 12.9"),
        problem=Problem(keys=("M", "N"), method="events-cold"),
    )


def first_sight(folder: Path, kernels: int) -> dict[str, float]:
    """Time and memory of the first lookup in a store of 10,000 records of so many kernels."""
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
    held = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    return {"ms": statistics.median(times), "MiB, all kernels loaded": held}


def import_seconds() -> float:
    """The median time that `import dejavu_cache` adds to a fresh interpreter."""
    code = "import time; start = time.perf_counter(); import dejavu_cache; print(time.perf_counter() - start)"
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(9)
    ]
    return statistics.median(float(run.stdout) for run in runs)


def main(results_folder: Path) -> None:
    """Measures, prints and writes the results."""
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
    main(Path(sys.argv[1]) if len(sys.argv) == 2 else RESULTS)
