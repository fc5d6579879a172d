"""Launch each attention kernel on pretended GPUs, in a random config; print what does not compile.

Nothing runs: tensors lie on the CPU, and launches end where Triton would put them on a stream.
"""

import random
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from support.attention_batches import Case, draw, runnable, take_new_tokens
from support.compiling_gpu import TARGETS, pretend_gpu

from dejavu_cache.attention.api import IMPLEMENTATIONS
from dejavu_cache.attention.batch import make_batch
from dejavu_cache.attention.kernels import few_sequences, hopper, write_cache
from dejavu_cache.attention.schedule import Schedule, make_schedule
from dejavu_cache.attention.sweep_suite import KERNELS
from dejavu_cache.triton_internals.versions import COVERED

PLAIN = Case(new=[1, 20], past=[40, 0], heads=(32, 8), head_size=128, dtype=torch.bfloat16)
"""Heads of Llama 3 8B."""

EVERYTHING = replace(
    PLAIN, heads=(40, 8), head_size=80, page=24, window=100, softcap=5.0, alibi=True, sinks=True,
    cache_dtype=torch.float8_e5m2,
)  # fmt: skip
"""All that a call may have, odd heads and pages, and a float8 cache."""

HOPPER: dict[str, tuple[Case, int, int, bool]] = {
    "heads of 96": (replace(PLAIN, head_size=96), 2, 2, False),
    "decoding in two halves that writes": (PLAIN, 0, 2, True),
    "decoding with heads of 256": (replace(PLAIN, heads=(8, 1), head_size=256), 0, 1, True),
    "heads of 64 in float8": (
        replace(PLAIN, head_size=64, cache_dtype=torch.float8_e4m3fn), 0, 1, False,
    ),
}  # fmt: skip
"""Shapes, pairs, halves, and whether new tokens are written.

They have most of the code which the Hopper kernel has for some shapes alone.
"""


def batch_of(case: Case) -> tuple[Any, Any]:
    """Return a batch, and its new tokens."""
    drawn = draw(case, "cpu")
    new = take_new_tokens(drawn.arguments)
    return make_batch(**drawn.arguments, softmax_scale=None, out=None), new


def launch_tuned(name: str, case: Case, config: Any) -> None:
    KERNELS[name].configs = [config]
    IMPLEMENTATIONS[name](batch_of(case)[0])


def launch_hopper(case: Case, pairs: int, halves: int, writes: bool) -> None:
    batch, new = batch_of(case)
    nothing = torch.empty(0)
    schedule = Schedule(nothing.int(), nothing, blocks=2, pairs=pairs, halves=halves)
    hopper.prepare(batch, schedule, overlap=True, new=new if writes else None)()


def launches(target: str) -> dict[str, Callable[[], Any]]:
    """Return the launches to try, by what they are."""
    pick = random.Random(target)
    found: dict[str, Callable[[], Any]] = {"write": lambda: write_cache.write(*batch_of(PLAIN))}
    for name in KERNELS:
        case = pick.choice([PLAIN, EVERYTHING])
        config = pick.choice(runnable(name, case))
        found[f"{name}, {config}, {case}"] = partial(launch_tuned, name, case, config)
    few = pick.choice([PLAIN, EVERYTHING])
    found[f"few_sequences, {few}"] = lambda: few_sequences.run(batch_of(few)[0])
    if target == "cuda:90" and COVERED:
        hopper.driver_version = lambda: hopper.CAPTURES_OVERLAP  # type: ignore[assignment]
        found["schedule"] = lambda: make_schedule(batch_of(PLAIN)[0])
        found |= {name: partial(launch_hopper, *shape) for name, shape in HOPPER.items()}
    return found


def failures(target: str) -> tuple[int, list[str]]:
    """Return how many launches there are, and what went wrong."""
    pretend_gpu(target)
    tried, failed = launches(target), []
    for name, launch in tried.items():
        try:
            launch()
        except Exception as error:
            failed.append(f"{name}, for {target}: {type(error).__name__}: {str(error)[:300]}")
    return len(tried), failed


def main() -> int:
    listed = 0
    failed: list[str] = []
    for target in TARGETS:
        # A process of its own: Triton remembers how the first target of one converts float8.
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
            count, messages = pool.submit(failures, target).result()
        listed += count
        failed += messages
    print(*failed, f"{listed - len(failed)} of {listed} compile", sep="\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
