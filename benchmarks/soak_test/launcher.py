"""A program that launches an autotuned kernel in Triton's interpreter, as a process of the test.

Arguments: FOLDER NAME SECONDS. The store is in `DEJAVU_CACHE_URL`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from dejavu_cache import cached_autotune
from soak_test.workload import Ledger

BLOCKS = (16, 32, 64)
COMMON_SIZES = (100, 200, 400, 800)
PAUSE = 0.25


def equal_timings(launch: Any, quantiles: Any = None, **_: Any) -> list[float]:
    """Run the launch, and time every config the same."""
    launch()
    return [1.0, 1.0, 1.0]


@cached_autotune(
    configs=[triton.Config({"BLOCK": block}, num_warps=4) for block in BLOCKS],
    key=["n"],
    do_bench=equal_timings,
)
@triton.jit
def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


def main() -> None:
    folder, name, seconds = sys.argv[1:]
    ledger = Ledger(Path(folder) / f"{name}.ledger")
    own = 1000 + int(name.removeprefix("launcher")) * 10  # so that there is something to tune
    sizes = [*COMMON_SIZES, own, own + 1]
    until, launches = time.monotonic() + float(seconds), 0
    try:
        while time.monotonic() < until:
            n = sizes[launches % len(sizes)]
            x = torch.arange(n, dtype=torch.float32)
            y = torch.full_like(x, float("nan"))
            add[lambda meta, n=n: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
            launches += 1
            if not torch.equal(y, x + 1):
                ledger.write("failed", f"launch of {n}: wrong results")
            ledger.write("launched", n)
            time.sleep(PAUSE)
    except Exception as error:
        ledger.write("failed", f"launch: {error!r}"[:300].replace("\n", " "))
        raise
    ledger.write("benchmarks", add.benchmarked)


if __name__ == "__main__":
    main()
