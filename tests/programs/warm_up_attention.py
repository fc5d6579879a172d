"""Warm attention up for an engine of Llama 3.1 8B's shape, and print which threads compiled.

The last number is the seconds that it took. The argument is the layer's dtype.
"""

import collections
import json
import sys
import threading
import time

import torch
import triton

from dejavu_cache.engines.vllm.planned_attention import (
    LayerFeatures,
    LayerShape,
    ServingLimits,
    begin_warm_up,
)

threads: list[str] = []
compile_kernel = triton.compiler.compile


def note_compilation(*args, **kwargs):
    """Remember the thread, and compile."""
    threads.append(threading.current_thread().name.partition("_")[0])
    return compile_kernel(*args, **kwargs)


triton.compiler.compile = note_compilation
torch.zeros(1, device="cuda")
dtype = getattr(torch, sys.argv[1])
shape = LayerShape(32, 8, 128, 16, dtype, dtype)
features = LayerFeatures(128**-0.5, (-1, -1), 0.0)
start = time.perf_counter()
begin_warm_up(shape, features, ServingLimits(64, 8192, 16384)).finish()
taken = time.perf_counter() - start
print(json.dumps([collections.Counter(threads), round(taken, 2)]))
