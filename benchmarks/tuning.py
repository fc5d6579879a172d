"""Tuning of a matrix product with 48 configs and a cold compile cache, against `triton.autotune`.

    python benchmarks/tuning.py [FOLDER]     # on a GPU, four minutes; writes FOLDER/tuning.json

Every tuning runs in a process of its own with an empty compile cache and an empty store, or with
the records of eight other products (`known`), after one that is not counted, which reads Triton's
files from the disk for the others. `running` processes have launched the kernel before, on another
product, with one config. The winners are then timed against the best of an exhaustive search,
taking turns in one process.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import triton
from kernels import matmul, matmul_configs, matmul_kernel
from reports import RESULTS, describe_run, write_report
from triton.testing import do_bench

SIZE = (4096, 4096, 4096)
KNOWN = [(m, n, k) for m in (1024, 8192) for n in (2048, 8192) for k in (1024, 8192)]
RUNS = {"ours": 3, "known": 5, "known-running": 5, "theirs": 1, "theirs-running": 1}
CONTENDERS = 6
ROUNDS = 9


def inputs(size: tuple[int, int, int] = SIZE) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random [M, K] and [K, N] in bfloat16, the same in every process."""
    torch.manual_seed(0)
    m, n, k = size
    options = {"device": "cuda", "dtype": torch.bfloat16}
    return torch.randn(m, k, **options), torch.randn(k, n, **options)


def learn() -> None:
    """Record all configs of other products."""
    from dejavu_cache import cached_autotune

    kernel = cached_autotune(configs=matmul_configs(), key=["M", "N", "K"], tune_loss=0)(
        matmul_kernel
    )
    for size in KNOWN:
        matmul(kernel, *inputs(size))


def tune(side: str) -> dict[str, Any]:
    """Tune once; return the seconds until the first launch is done, and the winner.

    The kernel is decorated first, as in a module that a program imports.
    """
    from dejavu_cache import cached_autotune

    autotune = triton.autotune if side.startswith("theirs") else cached_autotune
    kernel = autotune(configs=matmul_configs(), key=["M", "N", "K"])(matmul_kernel)
    if side.endswith("running"):
        only = triton.autotune(configs=matmul_configs()[:1], key=[])(matmul_kernel)
        matmul(only, *inputs(KNOWN[0]))
    a, b = inputs()
    expected = a @ b
    torch.cuda.synchronize()
    start = time.perf_counter()
    c = matmul(kernel, a, b)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    torch.testing.assert_close(c, expected, rtol=2e-2, atol=1e-1)
    return {
        "seconds": seconds,
        "winner": str(kernel.best_config),
        "benchmarked": getattr(kernel, "benchmarked", None),
    }


def race(names: list[str]) -> dict[str, float]:
    """Return milliseconds of some configs and of the best of all 48: medians, taking turns."""
    a, b = inputs()
    by_name = {str(config): config for config in matmul_configs()}
    screened: dict[str, float] = {}
    for name, config in by_name.items():
        try:
            screened[name] = median_of(config, a, b, rep=40)
        except triton.runtime.errors.OutOfResources:
            continue
    racing = dict.fromkeys([*names, *sorted(screened, key=screened.__getitem__)[:CONTENDERS]])
    rounds: dict[str, list[float]] = {name: [] for name in racing}
    for _ in range(ROUNDS):
        for name in racing:
            rounds[name].append(median_of(by_name[name], a, b, rep=40))
    return {name: statistics.median(medians) for name, medians in rounds.items()}


def median_of(config: triton.Config, a: torch.Tensor, b: torch.Tensor, rep: int) -> float:
    """Return one config's median in milliseconds, by Triton's own benchmark."""
    m, n, k = SIZE
    c = torch.empty(m, n, device="cuda", dtype=a.dtype)
    grid = (m // config.kwargs["BLOCK_M"], n // config.kwargs["BLOCK_N"])
    return float(
        do_bench(
            lambda: matmul_kernel[grid](a, b, c, m, n, k, **config.all_kwargs()),
            rep=rep,
            quantiles=[0.5],
        )
    )


def run_process(*arguments: str, cache: Path) -> Any:
    """Run this program in a process of its own, and return what it prints."""
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(cache),
        "DEJAVU_CACHE_URL": str(cache / "store"),
        # As installed: the first process compiles Python's modules for the others.
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(cache.parent / "bytecode"),
    }
    environment.pop("DEJAVU_CACHE_MODE", None)
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(folder: Path) -> None:
    """Run both sides, time the winners, print a table and write `tuning.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in RUNS}
        learned = Path(scratch) / "learned"
        run_process("learn", cache=learned)
        for turn in range(max(RUNS.values())):
            for side, wanted in RUNS.items():
                if turn < wanted:
                    cache = Path(scratch) / f"{side}-{turn}"
                    if side.startswith("known"):
                        shutil.copytree(learned / "store", cache / "store")
                    runs[side].append(run_process("tune", side, cache=cache))
                    print(
                        f"{side}: {runs[side][-1]['seconds']:.2f} s, {runs[side][-1]['winner']}",
                        flush=True,
                    )
        winners = [run["winner"] for side in runs.values() for run in side]
        times = run_process("race", *dict.fromkeys(winners), cache=Path(scratch) / "theirs-0")
    best = min(times, key=times.__getitem__)
    for side in runs.values():
        for run in side:
            run["over best"] = times[run["winner"]] / times[best]
    seconds = {
        side: statistics.median(run["seconds"] for run in side_runs)
        for side, side_runs in runs.items()
    }
    report = {
        **describe_run(),
        "cpus": len(os.sched_getaffinity(0)),
        "size": SIZE,
        "configs": len(matmul_configs()),
        "seconds": seconds,
        "times faster": {
            **{side: seconds["theirs"] / seconds[side] for side in ("ours", "known")},
            "known-running": seconds["theirs-running"] / seconds["known-running"],
        },
        "worst winner over best": {
            side: max(run["over best"] for run in side_runs) for side, side_runs in runs.items()
        },
        "best": {"config": best, "ms": times[best]},
        "runs": runs,
        "race ms": times,
    }
    write_report(folder, "tuning.json", report)
    worst = report["worst winner over best"]
    print(f"\n{'':16}{'cold tune, s':>14}{'worst winner / best':>22}{'benchmarked':>14}")
    for side, side_runs in runs.items():
        benchmarked = [run["benchmarked"] for run in side_runs]
        print(f"{side:16}{seconds[side]:14.2f}{worst[side]:22.3f}{benchmarked!s:>14}")
    print(f"written to {folder / 'tuning.json'}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["learn"]:
        print(json.dumps(learn()))
    elif sys.argv[1:2] == ["tune"]:
        print(json.dumps(tune(sys.argv[2])))
    elif sys.argv[1:2] == ["race"]:
        print(json.dumps(race(sys.argv[2:])))
    else:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)
