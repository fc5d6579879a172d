"""Prewarming: how long it takes on a CPU, and what a process that starts from it saves on a GPU.

    python benchmarks/prewarm.py --build [FOLDER]   # no GPU: 100 winners, two targets; writes FOLDER/prewarm-build.json
    python benchmarks/prewarm.py [FOLDER]           # on a GPU, some minutes; writes FOLDER/prewarm.json

On a GPU, three kinds of fresh processes take turns to run the same scenarios of Llama-3-8B's attention, each once:
cold (nothing tuned, nothing compiled), with Triton's own caches as an earlier process left them, and from a prewarmed
folder. What is counted goes from when everything is imported and the device is there to when the last result is.
A cold process tunes with CONFIGS configs of each scenario, far fewer than there are: it is a lower bound.
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
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SCENARIOS = 32
CONFIGS = 4
ROUNDS = 5


def serve(out: str) -> None:
    """What each process does: all scenarios once; tells its times in seconds."""
    began = time.perf_counter()
    import torch
    import triton  # noqa: F401 - part of what a program imports

    from dejavu_cache.attention.kernels import segmented
    from dejavu_cache.attention.sweep_suite import LAUNCHES, PRESETS, _is_worth_tuning, batch_of, lengths

    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    imported = time.perf_counter() - began
    model = PRESETS["llama3-8b"]
    cases = [
        (name, each)
        for each in lengths()
        for name in ("segmented", "qblock", "hopper")
        if _is_worth_tuning(name, each, model)
    ]
    chosen = [cases[at * len(cases) // SCENARIOS] for at in range(SCENARIOS)]
    spent = 0.0
    digests, found = [], {}
    for number, (name, each) in enumerate(chosen):
        torch.manual_seed(number)
        batch = batch_of(each, model, 16, torch.bfloat16)
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
        found[f"{name} {each.name}"] = launch.kernel.explain(*launch.args, **launch.kwargs).how
    told = {"imports": imported, "first results": spent, "found": found, "outputs": digests}
    Path(out).write_text(json.dumps(told))


def process(out: Path, **env: str) -> dict[str, Any]:
    """One fresh process; its whole life is told too."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--serve", str(out)], env={**os.environ, **env}, check=False
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    return {**json.loads(out.read_text()), "life": time.perf_counter() - start}


def compiled(folder: Path) -> list[str]:
    """What Triton wrote to its cache: kernels with their options, and other files."""
    told = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        made = json.loads(path.read_text()) if path.suffix == ".json" else {}
        options = [f"{name}={made[name]}" for name in ("num_warps", "num_stages") if name in made]
        told.append(" ".join([path.name, *options]))
    return told


def command(*words: object, **env: str) -> None:
    """Runs the command line."""
    words = (sys.executable, "-m", "dejavu_client", *words)
    subprocess.run([str(word) for word in words], env={**os.environ, **env}, check=True)


def on_gpu(folder: Path) -> None:
    import torch
    import triton

    properties = torch.cuda.get_device_properties(0)
    runs: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": [], "prewarmed": []}
    with tempfile.TemporaryDirectory(prefix="dejavu-prewarm-") as text:
        work = Path(text)
        out, records, warm, built = (
            work / "out.json",
            work / "records",
            work / "triton",
            work / "prewarmed",
        )
        few = {
            "DEJAVU_CACHE_TUNE_CONFIGS": str(CONFIGS),
            "DEJAVU_CACHE_SHIPPED": "0",
            "DEJAVU_CACHE_PROGRESS": "0",
        }
        runs["cold"].append(
            process(out, DEJAVU_CACHE_URL=str(records), TRITON_CACHE_DIR=str(work / "cold"), **few)
        )
        start = time.perf_counter()
        command(
            "prewarm", "dejavu_cache.attention", "--from", records, "--device", properties.name, "--out", built,
            CUDA_VISIBLE_DEVICES="", DEJAVU_CACHE_SHIPPED="0",
        )  # fmt: skip
        took = time.perf_counter() - start
        serving = {**few, "DEJAVU_CACHE_MODE": "reuse"}
        process(
            out, DEJAVU_CACHE_URL=str(records), TRITON_CACHE_DIR=str(warm), **serving
        )  # fills Triton's cache
        for number in range(ROUNDS):
            runs["warm"].append(
                process(out, DEJAVU_CACHE_URL=str(records), TRITON_CACHE_DIR=str(warm), **serving)
            )
            empty = str(work / f"empty-{number}")
            runs["prewarmed"].append(
                process(out, DEJAVU_CACHE_URL=str(built), TRITON_CACHE_DIR=empty, **serving)
            )
            missed = {
                name: how for name, how in runs["prewarmed"][-1]["found"].items() if how != "exact"
            }
            assert not missed, f"a prewarmed process found no record of {missed}"
            left = compiled(Path(empty))
            assert not left, f"a prewarmed process compiled {left}"
        outputs = {
            json.dumps(run["outputs"]) for kind in ("warm", "prewarmed") for run in runs[kind]
        }
        assert len(outputs) == 1, "the outputs differ"
    median = {
        kind: {
            what: statistics.median(run[what] for run in each)
            for what in ("imports", "first results", "life")
        }
        for kind, each in runs.items()
    }
    first = {kind: times["first results"] for kind, times in median.items()}
    result = {
        "date": datetime.date.today().isoformat(),
        "device": properties.name,
        "triton": triton.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "scenarios": SCENARIOS,
        "configs tuned of each": CONFIGS,
        "rounds": ROUNDS,
        "median seconds": median,
        "prewarmed / Triton's caches warm": first["prewarmed"] / first["warm"],
        "cold / prewarmed": first["cold"] / first["prewarmed"],
        "seconds to prewarm": took,
        "runs, seconds": {
            kind: [
                {name: run[name] for name in ("imports", "first results", "life")} for run in each
            ]
            for kind, each in runs.items()
        },
    }
    write(folder / "prewarm.json", result)


def write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(
        json.dumps(
            {name: value for name, value in result.items() if name != "runs, seconds"}, indent=2
        )
    )


def make_records(url: str) -> None:
    """100 scenarios of a matrix product for each of two GPUs, no two with the same winner and types."""
    sys.path.insert(0, str(HERE.parent / "tests" / "prewarm"))
    import prewarm_product
    from binding import Pointer
    from make_records import DEVICES, DevicelessDriver, context, launch, record
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from dejavu_cache.model.scenario import Scenario
    from dejavu_cache.stores import open_store
    from dejavu_cache.triton_internals.compilation import jit_function

    driver.set_active(DevicelessDriver(GPUTarget("cuda", 90, 32)))
    product = prewarm_product.product
    dtypes = ("bfloat16", "float16", "float8_e5m2")
    with open_store(url) as store:
        for device in DEVICES[:2]:
            records = []
            for number in range(100):
                best, dtype = number % len(product.configs), dtypes[number // len(product.configs)]
                x = Pointer(dtype)
                launches = (
                    launch(
                        jit_function(product),
                        product.configs[best],
                        device,
                        x,
                        x,
                        x,
                        4096,
                        4096,
                        4096,
                    ),
                )
                scenario = Scenario(
                    args={"M": 4096 + number, "N": 4096, "K": 4096},
                    dtypes=dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), dtype),
                )
                records.append(record(product, scenario, best, launches))
            store.put(context(product, device, keys=("M", "N", "K"), method="events-cold"), records)


def on_cpu(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="dejavu-prewarm-") as text:
        work = Path(text)
        own = {
            "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
            "XDG_CACHE_HOME": str(work / "user"),
        }
        subprocess.run(
            [sys.executable, __file__, "--records", str(work / "records")],
            env={**os.environ, **own},
            check=True,
        )
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            command(
                "prewarm", "prewarm_product", "--from", work / "records", "--device", "NVIDIA H200",
                "--device", "NVIDIA B200", "--out", work / "out", "--no-fallbacks", **own,
            )  # fmt: skip
            seconds.append(time.perf_counter() - start)
        manifest = json.loads((work / "out" / "prewarmed.json").read_text())
        cubins = len(list((work / "out").rglob("*.cubin")))
        start = time.perf_counter()
        command("bundle", "create", work / "out", work / "out.tar.zst", **own)
        packing = time.perf_counter() - start
        size = (work / "out.tar.zst").stat().st_size
    import triton

    result = {
        "date": datetime.date.today().isoformat(),
        "cpus": len(os.sched_getaffinity(0)),
        "triton": triton.__version__,
        "python": platform.python_version(),
        "winners": 100,
        "targets": manifest["targets"],
        "cubins": cubins,
        "seconds": seconds[0],
        "seconds, nothing changed": seconds[1],
        "MiB": sum(file["size"] for file in manifest["files"].values()) / 2**20,
        "bundle, MiB": size / 2**20,
        "bundle, seconds": packing,
    }
    write(folder / "prewarm-build.json", result)


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["--serve"]:
        serve(words[1])
    elif words[:1] == ["--records"]:
        make_records(words[1])
    elif words[:1] == ["--build"]:
        on_cpu(Path(words[1]) if words[1:] else RESULTS)
    else:
        on_gpu(Path(words[0]) if words else RESULTS)
