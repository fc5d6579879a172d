"""Host time of a resolved launch, and of its parts.

The kernel has 16 arguments (5 tensors, 11 integers) and a grid that is a function of the arguments.
All ways to launch it take turns in one process; the times are medians. Needs a GPU and a minute;
prints the results and writes `benchmarks/results/launch.json`.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from reports import RESULTS, describe_run, write_report
from triton import knobs
from triton.runtime import driver

from dejavu_cache import Pow2, cached_autotune
from dejavu_cache.model.scenario import Scenario
from dejavu_cache.triton_internals.binder import binder_for
from dejavu_cache.triton_internals.versions import active_hook, c_launcher

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=4) for block in (64, 128, 256, 512)]
KEYS = ["n0", "n1", "n2", "n3", "n4", "n5"]
SCENARIOS = 10_000


def sixteen(t0, t1, t2, t3, t4, n0, n1, n2, n3, n4, n5, s0, s1, s2, s3, s4, BLOCK: tl.constexpr):
    """Add 16 arguments, which takes the GPU next to no time."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = (
        tl.load(t0 + at, mask=at < n0)
        + tl.load(t1 + at, mask=at < n1)
        + tl.load(t2 + at, mask=at < n2)
    )
    value += tl.load(t3 + at, mask=at < n3) + n4 + n5 + s0 + s1 + s2 + s3 + s4
    tl.store(t4 + at, value, mask=at < n0)


def grid(meta: dict[str, Any]) -> tuple[int]:
    """Return the number of programs, one for each block."""
    return ((meta["n0"] + meta["BLOCK"] - 1) // meta["BLOCK"],)


def once(kernel_call: Callable[[], Any], quantiles: Any) -> list[float]:
    """Launch once and return made-up times, since tuning is not what is measured."""
    kernel_call()
    return [1.0, 1.0, 1.0]


def microseconds(
    calls: dict[str, Callable[[], Any]], rounds: int = 300, repeat: int = 50
) -> dict[str, float]:
    """Return the median host time of each call, in microseconds.

    The calls take turns, and the device is never more than `repeat` launches behind.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    gc.disable()
    for _ in range(rounds):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            times[name].append((time.perf_counter() - start) / repeat * 1e6)
    gc.enable()
    return {name: round(statistics.median(by_round), 2) for name, by_round in times.items()}


def arguments(n: int = 1000) -> list[Any]:
    """Return 5 tensors and 11 integers; the first six integers are keys."""
    return (
        [torch.zeros(2048, device="cuda") for _ in range(5)]
        + [n, 1001, 1002, 1003, 104, 105]
        + list(range(6, 11))
    )


def make_kernel(decorator: Callable[..., Any], keys: int, **options: Any) -> Any:
    """Return the kernel under an autotuner, with the first `keys` keys."""
    return decorator(configs=CONFIGS, key=KEYS[:keys], do_bench=once, **options)(
        triton.jit(sixteen)
    )


def launches(folder: Path) -> dict[str, float]:
    """Time every way to launch."""
    args = arguments()
    bare = triton.jit(sixteen)
    compiled = bare[grid](*args, BLOCK=64, num_warps=4)
    theirs, ours = (
        make_kernel(triton.autotune, 3),
        make_kernel(cached_autotune, 3, store=folder / "ours"),
    )
    six = make_kernel(cached_autotune, 6, store=folder / "six")
    buckets = {name: Pow2(max=4096) for name in KEYS}
    bucketed = make_kernel(cached_autotune, 6, store=folder / "bucketed", buckets=buckets)
    fallback = make_kernel(cached_autotune, 3, store=folder / "empty", mode="reuse")
    crowded = make_kernel(cached_autotune, 3, store="memory://", mode="reuse")
    fill(crowded, args)
    x = torch.zeros(1, device="cuda")
    return microseconds(
        {
            "torch.add": lambda: torch.add(x, x),
            "triton.jit": lambda: bare[grid](*args, BLOCK=64, num_warps=4),
            "triton.autotune": lambda: theirs[grid](*args),
            "compiled kernel": lambda: compiled[(16, 1, 1)](*args, 64),
            "cached_autotune, 3 keys": lambda: ours[grid](*args),
            "cached_autotune, 6 keys": lambda: six[grid](*args),
            "cached_autotune, 6 keys in pow2 buckets": lambda: bucketed[grid](*args),
            "cached_autotune, a fallback in mode reuse": lambda: fallback[grid](*args),
            f"cached_autotune, {SCENARIOS} scenarios": lambda: crowded[grid](*args),
            "cached_autotune, keyword arguments": lambda: ours[grid](
                *args[:10],
                n5=args[10],
                s0=args[11],
                s1=args[12],
                s2=args[13],
                s3=args[14],
                s4=args[15],
            ),
        }
    )


def fill(kernel: Any, args: list[Any]) -> None:
    """Launch a kernel in 10,000 scenarios."""
    kernel[grid](*args)
    for index in range(SCENARIOS):
        kernel[grid](*args[:6], 2000 + index, *args[7:])
    torch.cuda.synchronize()
    kernel[grid](*args)


def breakdown(folder: Path) -> dict[str, float]:
    """Time the parts of one resolved launch, each on its own; each includes a lambda's call."""
    args = arguments()
    kernel = make_kernel(cached_autotune, 3, store=folder / "ours")
    compiled = kernel[grid](*args)
    fn = kernel.fn
    bind = binder_for(fn, frozenset({"BLOCK"}), KEYS[:3], {})
    bound, key = bind(*args)
    bound["BLOCK"] = 64
    ready = {key: 1}
    call, stream = c_launcher(compiled), torch.cuda.current_stream().cuda_stream
    binaries = fn.device_caches[torch.cuda.current_device()][0]
    name = next(iter(binaries))

    def device() -> Any:
        active = driver.active
        index = active.get_current_device()
        return active.get_current_stream(index)

    return microseconds(
        {
            "a lambda": lambda: None,
            "device and stream": device,
            "binding the arguments and making the key": lambda: bind(*args),
            "looking the key up": lambda: ready[key],
            "Triton's cache has this kernel": lambda: binaries.get(name) is compiled,
            "the grid": lambda: grid(bound),
            "launch hooks": lambda: (
                active_hook(knobs.runtime.launch_enter_hook),
                active_hook(knobs.runtime.launch_exit_hook),
            ),
            "the C launcher": lambda: call(16, 1, 1, stream, None, None, None, bound.values()),
            "Triton's launcher of the compiled kernel": lambda: compiled.run(
                16,
                1,
                1,
                stream,
                compiled.function,
                compiled.packed_metadata,
                None,
                None,
                None,
                *args,
                64,
            ),
            "the whole launch": lambda: kernel[grid](*args),
        }
    )


def first_sight(folder: Path) -> dict[str, float]:
    """Time the first launch with a file of 10,000 records, in milliseconds beyond Triton's."""
    args = arguments()
    writer = make_kernel(cached_autotune, 1, store=folder)
    writer[grid](*args)
    contexts = writer.home.contexts(writer._name)
    (context,) = (context for context in contexts if context.problem.keys)
    (record,) = writer.home.records(context)
    more = [
        record.model_copy(
            update={
                "scenario": Scenario(args={"n0": 10_000 + index}, dtypes=record.scenario.dtypes)
            }
        )
        for index in range(SCENARIOS)
    ]
    writer.home.put(context, more)
    times: dict[str, list[float]] = {"theirs": [], "kernel": [], "scenario": [], "again": []}

    def measure(name: str, call: Callable[[], Any]) -> None:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        times[name].append((time.perf_counter() - start) * 1e3)

    for index in range(30):
        bare, ours = triton.jit(sixteen), make_kernel(cached_autotune, 1, store=folder)
        scenario = [*args[:5], 10_001 + 2 * index, *args[6:]]
        another = [*args[:5], 10_101 + 2 * index, *args[6:]]
        measure("theirs", lambda bare=bare, a=scenario: bare[grid](*a, BLOCK=64, num_warps=4))
        measure("kernel", lambda ours=ours, a=scenario: ours[grid](*a))
        measure("scenario", lambda ours=ours, a=another: ours[grid](*a))
        measure("again", lambda ours=ours, a=another: ours[grid](*a))
    median = {name: statistics.median(by_launch) for name, by_launch in times.items()}
    return {
        "triton.jit, a kernel's first launch (module load)": round(median["theirs"], 3),
        "cached_autotune, a kernel's first launch, beyond that": round(
            median["kernel"] - median["theirs"], 3
        ),
        "cached_autotune, another recorded scenario, beyond a launch": round(
            median["scenario"] - median["again"], 3
        ),
    }


def main(results_folder: Path) -> None:
    """Measure, print and write the results."""
    with tempfile.TemporaryDirectory() as folder:
        times = launches(Path(folder))
        ours, bucketed = (
            times["cached_autotune, 3 keys"],
            times["cached_autotune, 6 keys in pow2 buckets"],
        )
        crowded = times[f"cached_autotune, {SCENARIOS} scenarios"]
        results = {
            **describe_run(),
            "launch, us": times,
            "of triton.jit (at most 0.75)": round(ours / times["triton.jit"], 3),
            "of triton.autotune (at most 0.5)": round(ours / times["triton.autotune"], 3),
            "6 pow2 buckets over 3 exact keys (at most 1.1)": round(bucketed / ours, 3),
            f"{SCENARIOS} scenarios over one (flat)": round(crowded / ours, 3),
            "parts, us": breakdown(Path(folder)),
            f"first sight in a file of {SCENARIOS} records, ms": first_sight(
                Path(folder) / "first"
            ),
        }
    print(json.dumps(results, indent=2))
    write_report(results_folder, "launch.json", results)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) == 2 else RESULTS)
