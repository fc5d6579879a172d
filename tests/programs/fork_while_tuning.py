"""Fork while a thread tunes a kernel on a pretended GPU; the child tunes another one."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import support.pretended_gpu  # noqa: F401 - replaces the driver
import torch
import triton
import triton.language as tl

from dejavu_cache import cached_autotune

STARTED, FINISH = threading.Event(), threading.Event()


def body(x, n, B: tl.constexpr):
    tl.store(x, n)


def bench(kernel_call: Any, quantiles: Any) -> list[float]:
    kernel_call()
    return [1.0, 1.0, 1.0]


def bench_until_forked(kernel_call: Any, quantiles: Any) -> list[float]:
    STARTED.set()
    FINISH.wait()
    return bench(kernel_call, quantiles)


def make(measure: Any) -> Any:
    configs = [triton.Config({"B": block}) for block in (16, 32)]
    return cached_autotune(configs=configs, key=["n"], do_bench=measure)(triton.jit(body))


tuned, other = make(bench_until_forked), make(bench)
thread = threading.Thread(target=lambda: tuned[(1,)](torch.empty(64), 3))
thread.start()
STARTED.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    other[(1,)](torch.empty(64), 4)
    print("child", other.benchmarked, flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
FINISH.set()
thread.join()
print("parent", tuned.benchmarked, status)
