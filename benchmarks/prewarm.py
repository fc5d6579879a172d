"""Prewarming: its time on a CPU, and what a process that starts from its folder saves on a GPU.

    python benchmarks/prewarm.py --build [FOLDER]   # no GPU; writes FOLDER/prewarm-build.json
    python benchmarks/prewarm.py [FOLDER]           # on a GPU, minutes; writes FOLDER/prewarm.json

The build compiles 100 winners for two targets. On a GPU, three kinds of fresh processes take turns
to run the same scenarios of Llama-3-8B's attention, each once: cold (nothing tuned, nothing
compiled), with Triton's own caches as an earlier process left them, and from a prewarmed folder.
The time counts from when everything is imported and the device is ready to the last result. A cold
process tunes CONFIGS configs of each scenario, far fewer than there are: it is a lower bound.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests"
RESULTS = HERE / "results"
SCENARIOS = 32
CONFIGS = 4
ROUNDS = 5
TIMES = ("imports", "first results", "life")
"""Times of a process in its results: until it has imported, to its last result, and in all."""


def serve(out: str) -> None:
    """Run all scenarios once, as each process does, and write the times in seconds."""
    start = time.perf_counter()
    import torch
    import triton  # noqa: F401 - part of what a program imports

    from dejavu_cache.attention.kernels import segmented
    from dejavu_cache.attention.sweep_suite import LAUNCHES, PRESETS, batch_of, lengths

    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    imported = time.perf_counter() - start
    model = PRESETS["llama3-8b"]
    cases = [
        (name, composition)
        for composition in lengths()
        for name in ("segmented", "qblock")
        if name == "qblock" or max(composition.new) == 1 or max(composition.past) >= 2048
    ]
    spent = 0.0
    digests, provenance = [], {}
    for number in range(SCENARIOS):
        name, composition = cases[number * len(cases) // SCENARIOS]
        torch.manual_seed(number)
        batch = batch_of(composition, model, 16, torch.bfloat16)
        torch.cuda.synchronize()
        start = time.perf_counter()
        if name == "segmented":
            segmented.run(batch)
        else:
            LAUNCHES[name](batch)()
        torch.cuda.synchronize()
        spent += time.perf_counter() - start
        digests.append(float(batch.out.float().sum()))
        launch = LAUNCHES[name](batch)
        resolution = launch.kernel.explain(*launch.args, **launch.kwargs)
        provenance[f"{name} {composition.name}"] = resolution.how
    result = {"imports": imported, "first results": spent, "found": provenance, "outputs": digests}
    Path(out).write_text(json.dumps(result))


def run_process(out: Path, **env: str) -> dict[str, Any]:
    """Run the scenarios in a fresh process; return its results and the seconds of its life."""
    start = time.perf_counter()
    process = subprocess.run(
        [sys.executable, __file__, "--serve", str(out)], env={**os.environ, **env}, check=False
    )
    if process.returncode:
        raise SystemExit(process.returncode)
    return {**json.loads(out.read_text()), "life": time.perf_counter() - start}


def list_cache(folder: Path) -> list[str]:
    """Return the names of the files that Triton wrote to its cache, and the kernels' options."""
    lines = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        metadata = json.loads(path.read_text()) if path.suffix == ".json" else {}
        options = [
            f"{name}={metadata[name]}" for name in ("num_warps", "num_stages") if name in metadata
        ]
        lines.append(" ".join([path.name, *options]))
    return lines


def run_command(*words: object, **env: str) -> None:
    """Run a command of the command line."""
    words = (sys.executable, "-m", "dejavu_client", *words)
    subprocess.run([str(word) for word in words], env={**os.environ, **env}, check=True)


def run_prewarmed(out: Path, folder: Path, cache: Path, env: dict[str, str]) -> dict[str, Any]:
    """Run a process from a prewarmed folder; fail if it misses a record or compiles anything."""
    url = f"prewarmed://{folder}"
    run = run_process(out, DEJAVU_CACHE_URL=url, TRITON_CACHE_DIR=str(cache), **env)
    missed = {name: how for name, how in run["found"].items() if how != "exact"}
    assert not missed, f"a prewarmed process found no record of {missed}"
    compiled_files = list_cache(cache)
    assert not compiled_files, f"a prewarmed process compiled {compiled_files}"
    return run


def run_in_turns(work: Path, device: str) -> tuple[dict[str, list[dict[str, Any]]], float]:
    """Return the runs of each kind of process, and the seconds that prewarming took."""
    out, records, prewarmed = work / "out.json", work / "records", work / "prewarmed"
    policy = work / "policy.toml"
    policy.write_text(f'[[kernel]]\nmatch = "*"\ntune_configs = {CONFIGS}\n')
    tuning = {
        "DEJAVU_CACHE_POLICY": str(policy),
        "DEJAVU_CACHE_SHIPPED": "0",
    }
    cold = run_process(
        out, DEJAVU_CACHE_URL=str(records), TRITON_CACHE_DIR=str(work / "cold"), **tuning
    )
    start = time.perf_counter()
    run_command(
        "prewarm", "dejavu_cache.attention", "--store", records, "--device", device,
        "--out", prewarmed, CUDA_VISIBLE_DEVICES="", DEJAVU_CACHE_SHIPPED="0",
    )  # fmt: skip
    seconds = time.perf_counter() - start
    reuse = {**tuning, "DEJAVU_CACHE_MODE": "reuse"}
    from_records = {
        **reuse,
        "DEJAVU_CACHE_URL": str(records),
        "TRITON_CACHE_DIR": str(work / "triton"),
    }
    run_process(out, **from_records)  # fills Triton's cache
    runs: dict[str, list[dict[str, Any]]] = {"cold": [cold], "warm": [], "prewarmed": []}
    for number in range(ROUNDS):
        runs["warm"].append(run_process(out, **from_records))
        empty_cache = work / f"empty-{number}"
        runs["prewarmed"].append(run_prewarmed(out, prewarmed, empty_cache, reuse))
    outputs = {json.dumps(run["outputs"]) for run in runs["warm"] + runs["prewarmed"]}
    assert len(outputs) == 1, "the outputs differ"
    return runs, seconds


def median_times(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return the medians of the runs' times."""
    return {name: statistics.median(run[name] for run in runs) for name in TIMES}


def list_times(runs: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return the times of each run."""
    return [{name: run[name] for name in TIMES} for run in runs]


def measure_on_gpu(folder: Path) -> None:
    """Compare cold, warm and prewarmed processes; write `prewarm.json`."""
    import torch
    from reports import describe_run

    device = torch.cuda.get_device_properties(0).name
    with tempfile.TemporaryDirectory(prefix="dejavu-prewarm-") as work:
        runs, seconds = run_in_turns(Path(work), device)
    medians = {kind: median_times(by_round) for kind, by_round in runs.items()}
    first = {kind: times["first results"] for kind, times in medians.items()}
    result = {
        **describe_run(),
        "scenarios": SCENARIOS,
        "configs tuned of each": CONFIGS,
        "rounds": ROUNDS,
        "median seconds": medians,
        "prewarmed / Triton's caches warm": first["prewarmed"] / first["warm"],
        "cold / prewarmed": first["cold"] / first["prewarmed"],
        "seconds to prewarm": seconds,
        "runs, seconds": {kind: list_times(by_round) for kind, by_round in runs.items()},
    }
    write(folder, "prewarm.json", result)


def write(folder: Path, name: str, result: dict[str, Any]) -> None:
    """Write a result, and print it without the single runs."""
    from reports import write_report

    write_report(folder, name, result)
    summary = {name: value for name, value in result.items() if name != "runs, seconds"}
    print(json.dumps(summary, indent=2))


def make_records(url: str) -> None:
    """Make records of a matrix product for two GPUs, 100 scenarios each.

    No two scenarios of a GPU have the same winner and dtypes, so that each needs its own binary.
    """
    sys.path[:0] = [str(TESTS), str(TESTS / "programs" / "prewarm")]
    import prewarm_product
    from make_records import DEVICES, context, launch, record
    from support.launch_binding import Pointer
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from dejavu_cache.model.scenario import Scenario
    from dejavu_cache.stores import open_store
    from dejavu_cache.triton_internals.hooks import DevicelessDriver
    from dejavu_cache.triton_internals.identity import jit_function

    driver.set_active(DevicelessDriver(GPUTarget("cuda", 90, 32)))
    product = prewarm_product.product
    dtypes = ("bfloat16", "float16", "float8_e5m2")
    with open_store(url) as store:
        for device in DEVICES[:2]:
            records = []
            for number in range(100):
                best, dtype = number % len(product.configs), dtypes[number // len(product.configs)]
                x = Pointer(dtype)
                recorded_launch = launch(
                    jit_function(product), product.configs[best], device, x, x, x, 4096, 4096, 4096
                )
                scenario = Scenario(
                    args={"M": 4096 + number, "N": 4096, "K": 4096},
                    dtypes=dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), dtype),
                )
                records.append(record(product, scenario, best, (recorded_launch,)))
            store.put(context(product, device, keys=("M", "N", "K"), method="events-cold"), records)


def measure_build(folder: Path) -> None:
    """Time prewarming on the CPU; write `prewarm-build.json`."""
    with tempfile.TemporaryDirectory(prefix="dejavu-prewarm-") as text:
        work = Path(text)
        env = {
            "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
            "XDG_CACHE_HOME": str(work / "user"),
        }
        subprocess.run(
            [sys.executable, __file__, "--records", str(work / "records")],
            env={**os.environ, **env},
            check=True,
        )
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            run_command(
                "prewarm", "prewarm_product", "--store", work / "records",
                "--device", "NVIDIA H200", "--device", "NVIDIA B200", "--out", work / "out", **env,
            )  # fmt: skip
            seconds.append(time.perf_counter() - start)
        manifest = json.loads((work / "out" / "prewarmed.json").read_text())
        cubins = len(list((work / "out").rglob("*.cubin")))
    from reports import describe_run

    result = {
        **describe_run(),
        "cpus": len(os.sched_getaffinity(0)),
        "winners": 100,
        "targets": manifest["targets"],
        "cubins": cubins,
        "seconds": seconds[0],
        "seconds, nothing changed": seconds[1],
        "MiB": sum(file["size"] for file in manifest["files"].values()) / 2**20,
    }
    write(folder, "prewarm-build.json", result)


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["--serve"]:
        serve(words[1])
    elif words[:1] == ["--records"]:
        make_records(words[1])
    elif words[:1] == ["--build"]:
        measure_build(Path(words[1]) if words[1:] else RESULTS)
    else:
        measure_on_gpu(Path(words[0]) if words else RESULTS)
