"""Shipped winners of random scenarios against every config that can run.

    python benchmarks/exhaustive.py [FOLDER]     # on an H200; writes FOLDER/exhaustive.json

A scenario is a batch and an implementation of the attention sweep for llama3-8b. Every config that
the kernel declares and that can run is measured, also those that the sweep passes over as unlikely;
a config that takes twice as long as the sweep's winner is measured once. Then the best and the
winner take turns with full effort. Compiling takes minutes. Several GPUs share the scenarios.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import triton
from reports import RESULTS, describe_run, write_report

from dejavu_cache.attention.kernels.kernel_call import KernelCall
from dejavu_cache.attention.search_space import METHOD, why_not
from dejavu_cache.attention.sweep_suite import LAUNCHES, PRESETS, Lengths, batch_of, lengths
from dejavu_cache.tuning.device_timer import FULL, SCREENING, DeviceTimer, TimedLaunch

MODEL, PAGE, DTYPE = PRESETS["llama3-8b"], 16, torch.bfloat16
SAMPLE, SEED = 20, 0
CONTENDERS, ROUNDS, HOPELESS = 8, 5, 2
SPAWN = get_context("spawn")
CANNOT = (triton.runtime.errors.OutOfResources, triton.CompilationError)


def sample() -> list[tuple[str, Lengths]]:
    """Return random scenarios of the sweeps of what ships."""
    cases = [
        (name, composition)
        for composition in lengths()
        for name in ("segmented", "qblock", "static_grid")
        if name == "qblock" or max(composition.new) == 1 or max(composition.past) >= 2048
    ]
    return random.Random(SEED).sample(cases, SAMPLE)


def can_run(launch: KernelCall, config: triton.Config) -> bool:
    """Return whether a launch of attention can run with a config."""
    arguments = launch.arguments
    sizes = arguments["HEAD_PADDED"], arguments["GROUP"], DTYPE.itemsize
    is_small = config.kwargs["BLOCK_M"] <= arguments.get("MOST_ROWS", math.inf)
    return is_small and why_not(config, *sizes, 90) is None


def runnable_configs(launch: KernelCall) -> list[triton.Config]:
    """Return the kernel's configs that can run."""
    return [config for config in launch.kernel.configs if can_run(launch, config)]


def call(launch: KernelCall, config: triton.Config) -> Callable[[], Any]:
    """Return a launch with a config as the tuner measures it, its post hook included."""
    kernel, meta = launch.kernel, {**launch.kwargs, **config.all_kwargs()}
    arguments = {**launch.arguments, **config.kwargs}
    grid = launch.grid(arguments) if callable(launch.grid) else launch.grid

    def run() -> None:
        kernel.fn[grid](*launch.args, **meta)
        kernel.post_hook(arguments, exception=None)

    return run


def compile_share(share: int, of: int) -> None:
    """Compile one worker's share of all configs into Triton's cache."""
    for implementation, composition in sample():
        launch = LAUNCHES[implementation](batch_of(composition, MODEL, PAGE, DTYPE))
        for config in distinct_binaries(runnable_configs(launch))[share::of]:
            with suppress(*CANNOT):
                launch.kernel.fn.warmup(
                    *launch.args, grid=(1,), **launch.kwargs, **config.all_kwargs()
                )


def distinct_binaries(configs: list[triton.Config]) -> list[triton.Config]:
    """Return one config of each binary; some parameters are not compiled in."""
    by_binary: dict[Any, triton.Config] = {}
    for config in configs:
        compiled_in = (value for name, value in config.kwargs.items() if name != "per_sm")
        by_binary.setdefault((*compiled_in, config.num_warps, config.num_stages), config)
    return list(by_binary.values())


def measure(implementation: str, composition: Lengths) -> dict[str, Any]:
    """Return the sweep's choice in one scenario, the best of all configs, and how they compare."""
    launch = LAUNCHES[implementation](batch_of(composition, MODEL, PAGE, DTYPE))
    launch()
    assert launch.kernel.benchmarked == 0, "the scenario was not in the sweep"
    chosen = str(launch.kernel.best_config)
    timer = DeviceTimer(METHOD)
    timer.warm_up()
    calls = {str(config): call(launch, config) for config in runnable_configs(launch)}
    limit = HOPELESS * statistics.median(timer.sample(TimedLaunch(calls[chosen]), FULL).times)
    screened: dict[str, float] = {}
    for name, run in calls.items():
        try:
            screened[name] = statistics.median(
                timer.sample(TimedLaunch(run), SCREENING, limit).times
            )
        except CANNOT:
            continue
    racing = dict.fromkeys([chosen, *sorted(screened, key=screened.__getitem__)[:CONTENDERS]])
    rounds: dict[str, list[float]] = {name: [] for name in racing}
    for _ in range(ROUNDS):
        for name in racing:
            rounds[name].append(
                statistics.median(timer.sample(TimedLaunch(calls[name]), FULL).times)
            )
    times = {name: statistics.median(medians) for name, medians in rounds.items()}
    best = min(times, key=times.__getitem__)
    return {
        "configs": len(screened),
        "chosen": chosen,
        "best": best,
        "chosen us": round(times[chosen] * 1e3, 2),
        "best us": round(times[best] * 1e3, 2),
        "chosen / best": round(times[chosen] / times[best], 4),
    }


def use_own_gpu(gpus: Any) -> None:
    """Select a GPU that no other process measures on."""
    torch.cuda.set_device(gpus.get())


def main(folder: Path) -> None:
    start = time.perf_counter()
    workers = min(len(os.sched_getaffinity(0)) - 2, 24)  # each holds a batch of up to 4 GiB
    with ProcessPoolExecutor(workers, SPAWN) as pool:
        list(pool.map(compile_share, range(workers), repeat(workers)))
    print(f"compiled in {time.perf_counter() - start:.0f} s", flush=True)
    gpus = SPAWN.Queue()
    for gpu in range(torch.cuda.device_count()):
        gpus.put(gpu)
    rows = {}
    with ProcessPoolExecutor(torch.cuda.device_count(), SPAWN, use_own_gpu, (gpus,)) as pool:
        for (implementation, composition), row in zip(
            sample(), pool.map(measure, *zip(*sample(), strict=True)), strict=True
        ):
            name = f"{implementation} {composition.name}"
            rows[name] = row
            print(f"{name:48}{row['configs']:6}{row['chosen / best']:8.3f}", flush=True)
    ratios = [row["chosen / best"] for row in rows.values()]
    report = {
        **describe_run(),
        "seconds": round(time.perf_counter() - start),
        "geometric mean of chosen / best": round(
            math.exp(statistics.fmean(map(math.log, ratios))), 4
        ),
        "worst": max(ratios),
        "scenarios": rows,
    }
    write_report(folder, "exhaustive.json", report)
    print({name: report[name] for name in ("geometric mean of chosen / best", "worst", "seconds")})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)
