"""Start a worker with vLLM's order of calls on a pretended GPU; print what each call benchmarks.

The worker is a stand-in with the methods of vLLM's, called as its engine calls them; the plug-in is
the real one. Arguments: a folder for the stand-in's package, and `--memory-is-given` if the memory
is not measured.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import support.pretended_gpu
import torch
import triton
import triton.language as tl

from dejavu_cache.engines.vllm.plugin import register, warm_up_when_loaded
from dejavu_cache.stores import FileStore

BENCHMARKED: list[str] = []
MISSED: list[int] = []

WORKER = """
class Worker:
    def __init__(self, launch, load):
        self.launch = launch
        self.load = load

    def load_model(self):
        self.load()

    def determine_available_memory(self):
        self.launch(32)

    def initialize_from_config(self):
        pass

    def compile_or_warm_up_model(self):
        self.launch(48)

    def execute_model(self):
        self.launch(48)
        self.launch(64)
        self.launch(64)
"""


def bench(kernel_call: Any, quantiles: Any) -> list[float]:
    BENCHMARKED.append("")
    kernel_call()
    return [1.0, 1.0, 1.0]


def body(x, n, B: tl.constexpr):
    tl.store(x, n)


FileStore.miss = lambda store, _, scenario, launches: MISSED.append(scenario.args["n"])  # type: ignore
folder = Path(sys.argv[1], "vllm", "v1", "worker")
folder.mkdir(parents=True)
for package in (folder, *list(folder.parents)[:2]):
    (package / "__init__.py").touch()  # it comes before an installed vLLM
(folder / "gpu_worker.py").write_text(WORKER)
sys.path.insert(0, sys.argv[1])
register()
worker_module = import_module("vllm.v1.worker.gpu_worker")

kernel = triton.autotune(
    configs=[triton.Config({"B": block}) for block in (16, 32, 64)], key=["n"], do_bench=bench
)(triton.jit(body))


def launch(engine, n):
    return kernel[(1,)](torch.empty(64), 1000 * engine + n)


calls = ["load_model", "determine_available_memory", "initialize_from_config"]
calls += ["compile_or_warm_up_model", "execute_model"]
if "--memory-is-given" in sys.argv:
    calls.remove("determine_available_memory")
reports: list[Any] = [type(kernel).__module__.startswith("dejavu_cache.")]
for engine in range(2):
    layer = SimpleNamespace(warm_up=partial(launch, engine, 16))
    worker = worker_module.Worker(partial(launch, engine), partial(warm_up_when_loaded, layer))
    reports.append({})
    for call in calls:
        del BENCHMARKED[:], MISSED[:]
        getattr(worker, call)()
        reports[-1][call] = len(BENCHMARKED), [size % 1000 for size in MISSED]
assert support.pretended_gpu.LAUNCHED
print(json.dumps(reports))
