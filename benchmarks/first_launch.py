"""First launch of the quick start's kernel in a process, all compiled, against bare Triton.

    python benchmarks/first_launch.py [FOLDER]   # on a GPU, a minute; FOLDER/first-launch.json

Processes take turns: with the kernel's winner under `triton.jit` alone, with records in a folder,
both with their binaries in Triton's cache, and from a prewarmed folder with an empty cache. Each is
a fork of one that has imported torch and Triton and touched no device. What counts are the import
of the program, which decorates the kernel, the inputs, which wait for the device, and the launch.

Without a GPU, one is pretended, as in `cold_start.py`: nothing is loaded or launched.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from cold_start import pretend_gpu, pretend_gpu_file, pretend_timings
from reports import RESULTS, describe_run, write_report

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"
BARE = "triton.jit"
ROUNDS = 11
STEPS = ("program", "inputs", "launch")
KINDS = ("seconds", "CPU seconds")
"""On the clock, and of all threads."""
PRETENDS = not os.path.exists("/dev/nvidiactl")


def environments(work: Path) -> dict[str, dict[str, str]]:
    """Return the variables of each kind of process."""
    folders = {"TRITON_CACHE_DIR": str(work / "triton"), "XDG_CACHE_HOME": str(work / "user")}
    check = {"DEJAVU_CACHE_CHECK": "0"} if PRETENDS else {}
    shared = {**folders, **check, "DEJAVU_CACHE_SHIPPED": "0"}
    empty = {"TRITON_CACHE_DIR": str(work / "empty")}
    return {
        BARE: shared,
        "records": {**shared, "DEJAVU_CACHE_URL": str(work / "store")},
        "prewarmed": {**shared, **empty, "DEJAVU_CACHE_URL": f"prewarmed://{work / 'folder'}"},
    }


def write_bare_program(path: Path) -> None:
    """Write the quick start without a decorator of ours; it launches the block in BLOCK."""
    text = (EXAMPLES / "quickstart.py").read_text()
    imports, decorated = text.split("@cached_autotune(")
    kernel = decorated[decorated.index("@triton.jit") :]
    kernel = kernel.replace("x.numel())\n", "x.numel(), BLOCK)\n").replace('meta["BLOCK"]', "BLOCK")
    block = f"import os\n\nBLOCK = int(os.environ['BLOCK'])\n\n{kernel}"
    path.write_text(imports.replace("from dejavu_cache import Pow2, cached_autotune\n", block))


def launch_first(kind: str, *, tunes: bool) -> dict[str, Any]:
    """Launch in this process; return the seconds of each step until that is done."""
    if PRETENDS:
        pretend_gpu()
    device = "cpu" if PRETENDS else "cuda"
    moments = [now()]
    program = __import__("bare" if kind == BARE else "quickstart")
    if PRETENDS and kind != BARE:
        pretend_gpu_file()
        if tunes:
            pretend_timings()
    moments.append(now())
    x, y = torch.rand(1000, device=device), torch.rand(1000, device=device)
    torch.cuda.synchronize()
    moments.append(now())
    result = program.add(x, y)
    torch.cuda.synchronize()
    moments.append(now())
    if not PRETENDS:
        torch.testing.assert_close(result, x + y)
    report: dict[str, Any] = {name: {} for name in KINDS}
    for step, begun, ended in zip(STEPS, moments, moments[1:], strict=False):
        for name, start, stop in zip(KINDS, begun, ended, strict=True):
            report[name][step] = stop - start
    if kind != BARE:
        from dejavu_cache.runtime.prewarmed_binaries import COMPILED

        assert tunes or not program.add_kernel.benchmarked
        assert not COMPILED
        report["block"] = program.add_kernel.best_config.kwargs["BLOCK"]
    return report


def now() -> tuple[float, float]:
    """Return the times of `KINDS`."""
    return time.perf_counter(), time.process_time()


def run(kind: str, work: Path, *, tunes: bool = False) -> dict[str, Any]:
    """Run one process of a kind, and return what it measured."""
    out = work / "out.json"
    out.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        try:
            os.environ.update(environments(work)[kind])
            out.write_text(json.dumps(launch_first(kind, tunes=tunes)))
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.waitpid(child, 0)
    content: dict[str, Any] = json.loads(out.read_text())
    return content


def prewarm(work: Path) -> None:
    """Make the prewarmed folder from the records, as a machine without a GPU does."""
    device = "NVIDIA H100" if PRETENDS else device_name()
    subprocess.run(
        [
            sys.executable, "-m", "dejavu_client", "prewarm", "quickstart", "--device", device,
            "--store", work / "store", "--out", work / "folder",
        ],
        env={
            **os.environ,
            **environments(work)["records"],
            "PYTHONPATH": os.pathsep.join(sys.path),
            "CUDA_VISIBLE_DEVICES": "",
        },
        check=True,
    )  # fmt: skip


def device_name() -> str:
    """Return the GPU's name without touching it in this process."""
    if PRETENDS:
        return "pretended"
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True).stdout.splitlines()[0]


def measure(work: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what each process measured, by kind."""
    sys.pycache_prefix, sys.dont_write_bytecode = str(work / "bytecode"), False
    sys.path[:0] = [str(work), str(EXAMPLES), str(HERE.parent), str(HERE.parent / "client")]
    write_bare_program(work / "bare.py")
    os.environ["BLOCK"] = str(run("records", work, tunes=True)["block"])
    prewarm(work)
    kinds = list(environments(work))
    for kind in kinds:  # fills Triton's cache, and writes bytecode
        run(kind, work)
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for _ in range(ROUNDS):
        for kind in kinds:
            runs[kind].append(run(kind, work))
    return runs


def summarize(runs: dict[str, list[dict[str, Any]]], kind: str) -> dict[str, dict[str, float]]:
    """Return the medians of each process, and what they are relative to bare Triton's."""
    table: dict[str, dict[str, float]] = {}
    for role, each in runs.items():
        row = {step: statistics.median(run[kind][step] for run in each) for step in STEPS}
        row["all"] = statistics.median(sum(run[kind].values()) for run in each)
        base = table.get(BARE, row)
        ratios = {f"{name}, ratio": round(row[name] / base[name], 3) for name in ("launch", "all")}
        table[role] = {**{name: round(value, 4) for name, value in row.items()}, **ratios}
    return table


def main(folder: Path) -> None:
    """Measure all kinds, print a table and write `first-launch.json`."""
    with tempfile.TemporaryDirectory(prefix="dejavu-first-") as text:
        runs = measure(Path(text))
    report = {
        **describe_run(device_name()),
        "cpus": len(os.sched_getaffinity(0)),
        "rounds": ROUNDS,
        "medians": {kind: summarize(runs, kind) for kind in KINDS},
        "runs": runs,
    }
    write_report(folder, "first-launch.json", report)
    print(json.dumps(report["medians"], indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)
