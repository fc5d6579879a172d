"""Tune 20 scenarios five times each beside other work on the host, and race the winners.

    python benchmarks/repeated_tunes.py [--out FOLDER] [--seconds S] [--busy N] [--also-quiet]

Needs a GPU. Every tune has an empty store, and Triton's compile cache is warm. Meanwhile another
process (or N) does nothing but compute. When it has ended, the winners of a scenario and its
default config run in turns. A winner has flipped if it is slower than the best of its scenario's
winners by more than `THRESHOLD` and than the rounds of this race differ. The default takes part
twice, which shows how far the race can be trusted.
`--also-quiet` repeats the tunes on the quiet machine. Prints a summary; `--out` writes
repeated-tunes.json. Scenarios for which there is no time are left out and counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from kernels import (
    add_norm_configs,
    decorate_add_norm,
    matmul_configs,
    matmul_kernel,
    narrow_configs,
)
from reports import describe_run, write_report

TUNES = 5
ROUNDS = 15
THRESHOLD = 0.02
"""Share by which a winner must be slower than another config to count as worse, at least."""

SHARES = {"compile": 0.3, "tune": 0.7, "race": 0.95}
"""Shares of the time at which a part of the program begins no further scenario."""

SIZES = [
    (512, 512, 4096), (1024, 1024, 1024), (1024, 4096, 1024), (2048, 512, 2048),
    (2048, 2048, 512), (2048, 2048, 2048), (256, 4096, 4096), (256, 8192, 1024),
    (4096, 1024, 4096), (4096, 4096, 1024), (512, 4096, 2048), (4096, 4096, 4096),
]  # fmt: skip
"""Of the matrix products: M, N and K."""

SHAPES = [(rows, columns) for columns in (2048, 4096) for rows in (256, 1024, 4096, 16384)]
"""Of the additions with norms: rows and columns."""

BUSY_LOOP = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""

Decorator = Callable[..., Any]


class Tune(NamedTuple):
    """A tune's winner and its seconds."""

    winner: str
    seconds: float


@dataclass
class TunedScenario:
    """A kernel at one size, with what its tunes chose.

    Attributes:
        name: the kernel and the size.
        decorate: decorates the kernel with an autotuner of some of its configs.
        launch: launches the decorated kernel.
        configs: all configs by their text; the first is the default.
        binaries: names the binaries, which several sizes share.
        tunes: what was tuned while the CPUs were busy, and on the quiet machine.
        race: milliseconds of each round by config.
    """

    name: str
    decorate: Callable[[Decorator, list[triton.Config]], Any]
    launch: Callable[[Any], object]
    configs: dict[str, triton.Config]
    binaries: str
    tunes: dict[str, list[Tune]] = field(default_factory=dict)
    race: dict[str, list[float]] = field(default_factory=dict)

    @property
    def default(self) -> str:
        return next(iter(self.configs))


def product_scenario(m: int, n: int, k: int) -> TunedScenario:
    """Return a matrix product in bfloat16 with 24 configs."""
    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    a, b = torch.randn(m, k, **options), torch.randn(k, n, **options)
    c = torch.empty(m, n, **options)

    def decorate(autotune: Decorator, configs: list[triton.Config]) -> Any:
        return autotune(configs=configs, key=["M", "N", "K"])(matmul_kernel)

    def launch(kernel: Any) -> None:
        kernel[lambda meta: (m // meta["BLOCK_M"], n // meta["BLOCK_N"])](a, b, c, m, n, k)

    configs = {str(config): config for config in matmul_configs() if config.num_stages == 3}
    return TunedScenario(f"matmul {m}x{n}x{k}", decorate, launch, configs, "matmul")


def norm_scenario(rows: int, columns: int) -> TunedScenario:
    """Return an addition with a norm in bfloat16 with at most 20 configs."""
    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    x, residual, y = (torch.randn(rows, columns, **options) for _ in range(3))
    weight, total = torch.randn(columns, **options), torch.zeros(1, device="cuda")

    def launch(kernel: Any) -> None:
        kernel[lambda meta: (triton.cdiv(rows, meta["BLOCK_T"]),)](
            x, residual, weight, y, total, rows, columns, 1e-6
        )

    narrow = narrow_configs(add_norm_configs(), {"D": columns})
    configs = {str(config): config for config in narrow if config.num_stages == 2}
    name, binaries = f"add_norm {rows}x{columns}", f"add_norm {columns}"
    return TunedScenario(name, decorate_add_norm, launch, configs, binaries)


def all_scenarios() -> list[TunedScenario]:
    """Return the scenarios, alternating between the kernels as far as both reach."""
    torch.manual_seed(0)
    products = [product_scenario(*size) for size in SIZES]
    norms = [norm_scenario(*shape) for shape in SHAPES]
    pairs = [scenario for pair in zip(products, norms, strict=False) for scenario in pair]
    return [*pairs, *products[len(norms) :]]


def tune(scenario: TunedScenario) -> Tune:
    """Tune once into an empty store."""
    from dejavu_cache import cached_autotune
    from dejavu_cache.stores import MemoryStore

    def autotune(**options: Any) -> Any:
        return cached_autotune(**options, store=MemoryStore())

    kernel = scenario.decorate(autotune, list(scenario.configs.values()))
    start = time.perf_counter()
    scenario.launch(kernel)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    # Heuristics above the autotuner hide it.
    while not hasattr(kernel, "best_config"):
        kernel = kernel.fn
    return Tune(str(kernel.best_config), round(seconds, 3))


def race(scenario: TunedScenario) -> dict[str, list[float]]:
    """Return each round's medians in milliseconds of the winners, and of the default twice.

    `triton.testing.do_bench` would not tell short kernels apart where the host is slow: it also
    measures the time in which the device waits for a launch.
    """
    from dejavu_cache.tuning.device_timer import FULL, DeviceTimer, TimedLaunch

    timer = DeviceTimer("events-cold")
    timer.warm_up()
    winners = {tune.winner for tunes in scenario.tunes.values() for tune in tunes}
    entries = [scenario.default, *sorted(winners - {scenario.default})]
    kernels = {
        name: scenario.decorate(triton.autotune, [scenario.configs[name]]) for name in entries
    }
    kernels["default again"] = kernels[scenario.default]
    rounds: dict[str, list[float]] = {name: [] for name in kernels}
    for _ in range(ROUNDS):
        for name, kernel in kernels.items():
            sample = timer.sample(TimedLaunch(partial(scenario.launch, kernel)), FULL)
            rounds[name].append(statistics.median(sample.times))
    return rounds


def slower_by(rounds: dict[str, list[float]], name: str, other: str) -> float:
    """Return the share by which a config is slower than another: the median over the rounds."""
    pairs = zip(rounds[name], rounds[other], strict=True)
    return statistics.median(mine / theirs for mine, theirs in pairs) - 1


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run processes that only compute; they end with the context or with this process."""
    command = [sys.executable, "-c", BUSY_LOOP]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def describe_scenario(scenario: TunedScenario) -> dict[str, Any]:
    """Return what a raced scenario's winners cost, as the report has it."""
    rounds = scenario.race
    content: dict[str, Any] = {
        "scenario": scenario.name,
        "configs": len(scenario.configs),
        "default": scenario.default,
        "default ms": statistics.median(rounds[scenario.default]),
        "same config differs by": abs(slower_by(rounds, "default again", scenario.default)),
        "round noise": max(map(relative_spread, rounds.values())),
    }
    for condition, tunes in scenario.tunes.items():
        winners = {tune.winner for tune in tunes}
        best = min(winners, key=lambda name: statistics.median(rounds[name]))
        content[condition] = [
            {
                "winner": tune.winner,
                "seconds": tune.seconds,
                "ms": statistics.median(rounds[tune.winner]),
                "slower than the best winner": slower_by(rounds, tune.winner, best),
                "slower than the default": slower_by(rounds, tune.winner, scenario.default),
            }
            for tune in tunes
        ]
    return content


def relative_spread(times: list[float]) -> float:
    """Return half the distance of the quartiles as a share of the median."""
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / 2 / middle


def summarize(rows: list[dict[str, Any]], condition: str) -> dict[str, Any]:
    """Return the counts over all raced scenarios."""
    tunes = [tune for row in rows for tune in row.get(condition, ())]
    if not tunes:
        return {"tunes": 0}
    noise = [max(THRESHOLD, row["round noise"]) for row in rows for _ in row.get(condition, ())]
    flips = [tune["slower than the best winner"] for tune in tunes]
    losses = [tune["slower than the default"] for tune in tunes]
    flipped = sum(flip > most for flip, most in zip(flips, noise, strict=True))
    seconds = [tune["seconds"] for tune in tunes]
    return {
        "scenarios": sum(condition in row for row in rows),
        "tunes": len(tunes),
        "flips beyond noise": flipped,
        "share of flips": round(flipped / len(flips), 4),
        "largest flip": round(max(flips), 4),
        "slower than the default beyond noise": sum(
            loss > most for loss, most in zip(losses, noise, strict=True)
        ),
        "seconds per tune": round(statistics.median(seconds), 3),
        "longest tune in seconds": max(seconds),
    }


class Measurement:
    """The program's state: scenarios, time, and what failed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.start = time.monotonic()
        self.options = options
        self.scenarios = all_scenarios()
        self.errors: dict[str, str] = {}

    def each_in_time(self, part: str, among: list[TunedScenario]) -> Iterator[TunedScenario]:
        """Yield scenarios until a part's share of the time is over."""
        for scenario in among:
            if time.monotonic() - self.start > SHARES[part] * self.options.seconds:
                return
            yield scenario

    def attempt(self, scenario: TunedScenario, do: Callable[[], object]) -> None:
        """Run a part for a scenario, and note an error instead of raising it."""
        try:
            do()
        except Exception:
            self.errors[scenario.name] = traceback.format_exc()[-1500:]

    def run(self) -> None:
        """Compile, tune and race as many scenarios as there is time for."""
        first = {scenario.binaries: scenario for scenario in reversed(self.scenarios)}
        for scenario in self.each_in_time("compile", list(first.values())):
            self.attempt(scenario, lambda scenario=scenario: tune(scenario))
        with busy_processes(self.options.busy):
            time.sleep(0.5)  # until the processes have started
            for scenario in self.each_in_time("tune", self.scenarios):
                self.attempt(scenario, lambda scenario=scenario: tune_often(scenario, "busy"))
        tuned = [scenario for scenario in self.scenarios if "busy" in scenario.tunes]
        if self.options.also_quiet:
            for scenario in self.each_in_time("tune", tuned):
                self.attempt(scenario, lambda scenario=scenario: tune_often(scenario, "quiet"))
        for scenario in self.each_in_time("race", tuned):
            self.attempt(scenario, lambda scenario=scenario: race_winners(scenario))
            self.write()
        self.write()

    def report(self) -> dict[str, Any]:
        """Return what is measured so far."""
        rows = [describe_scenario(scenario) for scenario in self.scenarios if scenario.race]
        noise = [row["same config differs by"] for row in rows]
        return {
            **describe_run(),
            "cpus": os.cpu_count(),
            "busy processes": self.options.busy,
            "threshold": THRESHOLD,
            "scenarios declared": len(self.scenarios),
            "scenarios raced": len(rows),
            "same config differs by": {
                "median": round(statistics.median(noise), 4) if noise else None,
                "largest": round(max(noise), 4) if noise else None,
            },
            "busy": summarize(rows, "busy"),
            **({"quiet": summarize(rows, "quiet")} if self.options.also_quiet else {}),
            "seconds": round(time.monotonic() - self.start, 1),
            "errors": self.errors,
            "by scenario": rows,
        }

    def write(self) -> None:
        """Write the report, if a folder was named."""
        if self.options.out:
            write_report(self.options.out, "repeated-tunes.json", self.report())


def tune_often(scenario: TunedScenario, condition: str) -> None:
    """Tune a scenario `TUNES` times."""
    tunes = [tune(scenario) for _ in range(TUNES)]
    scenario.tunes[condition] = tunes
    print(f"{scenario.name:24} {condition}: {[entry.seconds for entry in tunes]} s", flush=True)


def race_winners(scenario: TunedScenario) -> None:
    """Race what a scenario's tunes chose."""
    scenario.race = race(scenario)


def main() -> None:
    """Measure, and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--busy", type=int, default=1)
    parser.add_argument("--also-quiet", action="store_true")
    measurement = Measurement(parser.parse_args())
    try:
        measurement.run()
    finally:
        report = measurement.report()
        del report["by scenario"]
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
