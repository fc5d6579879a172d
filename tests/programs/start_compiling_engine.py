"""Start a stand-in for vLLM's worker; Triton compiles its kernel and ours for a pretended GPU.

Arguments: a folder for the stand-in's package, the number that its kernel stores, and two sizes.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path

import torch
from support.compiling_gpu import pretend_gpu

from dejavu_cache.engines.vllm.plugin import register
from dejavu_cache.runtime.launch_recorder import QUIET_SECONDS

WORKER = """
import os, triton, triton.language as tl
from dejavu_cache.attention.kernels.write_cache import write_cache_kernel as ours

@triton.jit
def fill(x, size, rows):
    tl.store(x, NUMBER + size * rows)

class Worker:
    load_model = determine_available_memory = print
    def compile_or_warm_up_model(self, x):
        os.environ["TRITON_PTXAS_PATH"] = __file__ + ".ptxas"  # as Inductor does
        fill[(1,)](x, SIZES)
        ours[(1, 2)](x, x, x, x, x.long(), *range(8), 1, 64, 64, PAGE=16, ROWS=16)
"""
pretend_gpu("cuda:90")
worker_file = Path(sys.argv[1], "vllm/v1/worker/gpu_worker.py")
worker_file.parent.mkdir(parents=True, exist_ok=True)
worker_file.write_text(WORKER.replace("NUMBER", sys.argv[2]).replace("SIZES", sys.argv[3]))
Path(sys.argv[1], "vllm/__init__.py").touch()  # it comes before an installed vLLM
sys.path.insert(0, sys.argv[1])
register()
another_ptxas = worker_file.with_suffix(".py.ptxas")
another_ptxas.write_text("#!/bin/sh\necho release 13.0, V13.0.99")
another_ptxas.chmod(0o700)
worker = import_module("vllm.v1.worker.gpu_worker").Worker()
worker.load_model()
worker.compile_or_warm_up_model(torch.empty(64))
time.sleep(3 * QUIET_SECONDS)
