"""Tune as one of three ranks that agree by a store of torch.distributed, and print the configs.

Arguments: PORT RANK FOLDER. Rank 2 launches one size alone, rank 0 has another list of configs
once, and rank 1 kills itself while it tunes the last size.
"""

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import triton
from support.kernels import load

from dejavu_cache import cached_autotune
from dejavu_cache.settings import current_settings

port, rank, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
store = dist.TCPStore("127.0.0.1", port, 3, is_master=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
module = load(folder / f"kernels{rank}.py", name="kernels")
dying = False
benchmarks = 0


def bench(kernel_call, quantiles):
    """Return made-up milliseconds, by which every rank would choose another config."""
    global benchmarks
    kernel_call()
    if dying:
        store.set("dying", "1")
        store.get("dying")  # the others know that this rank is the one that tunes
        os.kill(os.getpid(), signal.SIGKILL)
    benchmarks += 1
    return 1.0 + (benchmarks + rank) % 3


def autotuned():
    """Return the kernel as this rank decorates it."""
    return cached_autotune(
        configs=module.CONFIGS,
        key=["n"],
        do_bench=bench,
        store=folder / f"store{rank}",
        consensus="ranks",
    )(module.add.fn)


def launch(kernel, n):
    """Launch the kernel and return the BLOCK that it ran with."""
    x, y = torch.ones(n), torch.zeros(n)
    kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
    assert torch.equal(y, x + 1)
    return kernel.best_config.kwargs["BLOCK"]


kernel = autotuned()
said = {"same": [launch(kernel, n) for n in (100, 200, 300)], "benchmarked": kernel.benchmarked}
said["how"] = kernel.explain(torch.ones(1), torch.ones(1), 100).how
if rank == 2:
    said["alone"] = launch(kernel, 7)
if rank == 0:  # another version of the kernel declares other configs than the other ranks'
    other = autotuned()
    other.configs = [triton.Config({"BLOCK": 128})] * 2
    said["other"] = launch(other, 100)
dist.barrier()
dying = rank == 1
if not dying:
    os.environ["DEJAVU_CACHE_TUNE_WAIT"] = "3"
    current_settings.cache_clear()
    while not store.check(["dying"]):
        time.sleep(0.01)
said["after a death"] = launch(kernel, 400)
print(json.dumps(said), flush=True)
os._exit(0)
