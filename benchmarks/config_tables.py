"""Measure every config of 80 drawn scenarios of four kernels, as tables for `prediction.py`.

    python benchmarks/config_tables.py FOLDER     # on a GPU; writes FOLDER/configs-GPU.json

The kernels are the two of attention that are tuned most, a matrix product, and the grouped product
of fused experts; 150 to 260 configs of each, drawn once, of which those are measured that can run.
A row has the median in microseconds, the programs of the grid, and what the compiler reports:
registers, spills, bytes of shared memory. It takes three minutes.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from exhaustive import SPAWN, can_run
from reports import describe_run

from dejavu_cache.attention.search_space import KEYS
from dejavu_cache.attention.sweep_suite import LAUNCHES, Lengths, Model, batch_of
from dejavu_cache.triton_internals.identity import jit_function

SEED, SCENARIOS, WORKERS = 20261126, 20, 16
MODELS = {
    "llama3-8b": Model(32, 8, 128),
    "gemma-2b": Model(8, 1, 256),
    "opt-1.3b": Model(16, 16, 64),
}
EXPERTS = [(128, 768, 2048, 8), (8, 3584, 4096, 2), (64, 1408, 2048, 6), (32, 1536, 2880, 4)]
"""Experts, output and input features, and experts of a token, of four models' layers."""
SHARED_MEMORY, CLOSE, ROUNDS = 225 * 1024, 1.25, 11
"""Bytes that a product's tiles may take; and how far from the fastest, in how many rounds, configs
are measured again in turns."""
ROW = ["median us", "programs", "registers", "spills", "shared bytes"]


@triton.jit
def matmul(
    a, b, c, M, N, K, stride_a, stride_b, stride_c,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    width = GROUP * columns
    first = (pid // width) * GROUP
    size = min(rows - first, GROUP)
    row, column = first + (pid % width) % size, (pid % width) // size
    at_m = (row * BM + tl.arange(0, BM)) % M
    at_n = (column * BN + tl.arange(0, BN)) % N
    at_k = tl.arange(0, BK)
    left = a + at_m[:, None] * stride_a + at_k[None, :]
    right = b + at_k[:, None] * stride_b + at_n[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        x = tl.load(left, mask=at_k[None, :] < K - k * BK, other=0.0)
        y = tl.load(right, mask=at_k[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(x, y, acc)
        left += BK
        right += BK * stride_b
    at_m = row * BM + tl.arange(0, BM)
    at_n = column * BN + tl.arange(0, BN)
    mask = (at_m[:, None] < M) & (at_n[None, :] < N)
    tl.store(c + at_m[:, None] * stride_c + at_n[None, :], acc.to(tl.bfloat16), mask=mask)


@triton.jit
def experts(
    a, b, c, tokens, of_block, count, N, K, top_k, slots, stride_a, stride_e, stride_k, stride_c,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    total = tl.load(count)
    rows, columns = tl.cdiv(total, BM), tl.cdiv(N, BN)
    width = GROUP * columns
    first = (pid // width) * GROUP
    size = min(rows - first, GROUP)
    if size <= 0:
        return
    row, column = first + (pid % width) % size, (pid % width) // size
    slot = tl.load(tokens + row * BM + tl.arange(0, BM))
    valid = slot < slots
    expert = tl.load(of_block + row).to(tl.int64)
    at_n = (column * BN + tl.arange(0, BN)) % N
    at_k = tl.arange(0, BK)
    left = a + (slot // top_k)[:, None] * stride_a + at_k[None, :]
    right = b + expert * stride_e + at_k[:, None] + at_n[None, :] * stride_k
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        x = tl.load(left, mask=valid[:, None] & (at_k[None, :] < K - k * BK), other=0.0)
        y = tl.load(right, mask=at_k[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(x, y, acc)
        left += BK
        right += BK
    at_n = column * BN + tl.arange(0, BN)
    out = c + slot[:, None].to(tl.int64) * stride_c + at_n[None, :]
    tl.store(out, acc.to(tl.bfloat16), mask=valid[:, None] & (at_n[None, :] < N))


def product_space(blocks_m: tuple[int, ...]) -> list[dict[str, int]]:
    """Return 150 configs of a product, drawn from all that fit."""
    space = [
        {"BM": m, "BN": n, "BK": k, "GROUP": g, "num_warps": w, "num_stages": s}
        for m in blocks_m
        for n in (32, 64, 128, 256)
        for k in (32, 64, 128)
        for g in (1, 8)
        for w in (4, 8)
        for s in (2, 3, 4, 5)
        if (m + n) * k * 2 * s <= SHARED_MEMORY
        and m * n <= 256 * 128
        and not (w == 8 and m * n < 64 * 64)
        and not (w == 4 and m * n > 128 * 128)
    ]
    random.Random(7).shuffle(space)
    return space[:150]


def between(rng: random.Random, low: int, high: int) -> int:
    return int(2 ** rng.uniform(math.log2(low), math.log2(high)))


def draw() -> list[tuple[str, dict[str, Any]]]:
    """Return the kernels' names and scenarios, the same at each call."""
    rng = random.Random(SEED)
    launches: list[tuple[str, dict[str, Any]]] = []
    for _ in range(SCENARIOS):
        m, n = max(16, between(rng, 16, 8192) // 16 * 16), between(rng, 720, 14000) // 64 * 64
        launches.append(("matmul", {"M": m, "N": n, "K": between(rng, 512, 8192) // 64 * 64}))
    for _ in range(SCENARIOS):
        count, n, k, top = rng.choice(EXPERTS)
        layer = {"experts": count, "N": n, "K": k, "top_k": top}
        launches.append(("experts", {"tokens": between(rng, 1, 8192), **layer}))
    for kernel in ("qblock", "segmented"):
        launches += [(kernel, draw_batch(rng, kernel)) for _ in range(SCENARIOS)]
    return launches


def draw_batch(rng: random.Random, kernel: str) -> dict[str, Any]:
    """Return a model, and each sequence's number of new tokens and of earlier ones."""
    model = rng.choice(list(MODELS))
    decodes = kernel == "segmented" and rng.random() < 0.75
    while True:
        count = between(rng, 1, 129 if decodes else 33)
        longest = between(rng, 128, 32769 if decodes else 16385)
        if decodes:
            new = [1] * count
            past = [max(1, int(longest * rng.uniform(0.2, 1))) for _ in range(count)]
        else:
            share = rng.choice([0.0, 0.0, 0.5, 0.9]) if kernel == "qblock" else 0.0
            chunk = between(rng, 16, longest + 1)
            new = [
                1 if rng.random() < share else max(1, int(chunk * rng.uniform(0.3, 1)))
                for _ in range(count)
            ]
            past = [
                0
                if rng.random() < 0.5 and one > 1
                else max(1, int((longest - one) * rng.uniform(0.2, 1)))
                for one in new
            ]
        if sum(past) + sum(new) <= 1 << 18 and sum(new) <= 1 << 14:
            return {"model": model, "new": new, "past": past}


class Launch:
    """A scenario's launch: its configs, and for each its grid, arguments and options."""

    def __init__(self, kernel: str, scenario: dict[str, Any]) -> None:
        self.name, self.features = kernel, dict(scenario)
        torch.manual_seed(0)
        options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        if kernel == "matmul":
            m, n, k = (scenario[name] for name in "MNK")
            self.a, self.b, self.c = (torch.randn(*s, **options) for s in ((m, k), (k, n), (m, n)))
            self.jit, self.configs = matmul, product_space((16, 32, 64, 128, 256))
        elif kernel == "experts":
            tokens, count, n, k, top = (
                scenario[name] for name in ("tokens", "experts", "N", "K", "top_k")
            )
            self.a = torch.randn(tokens, k, **options)
            self.b = torch.empty(count, n, k, **options).normal_()
            self.c = torch.empty(tokens * top, n, **options)
            self.chosen = (
                torch.rand(tokens, count, device="cuda").topk(top, dim=1).indices.flatten()
            )
            self.jit, self.configs = experts, product_space((16, 32, 64, 128))
            self.by_block: dict[int, list[torch.Tensor]] = {}
        else:
            self._prepare_attention(kernel, scenario)

    def _prepare_attention(self, kernel: str, scenario: dict[str, Any]) -> None:
        new, past = scenario["new"], scenario["past"]
        batch = batch_of(Lengths("drawn", new, past), MODELS[scenario["model"]], 16, torch.bfloat16)
        self.call = LAUNCHES[kernel](batch)
        self.jit = jit_function(self.call.kernel)
        arguments = self.call.arguments
        self.features = {key: int(arguments[key]) for key in KEYS if key != "SOFTCAP"}
        self.features |= {"tokens": sum(new), "keys": sum(new) + sum(past)}
        space = list(self.call.kernel.configs)
        random.Random(7).shuffle(space)
        self.configs = [
            {**one.kwargs, "num_warps": one.num_warps, "num_stages": one.num_stages}
            for one in space[:260]
            if can_run(self.call, one)
        ]

    def of(self, config: dict[str, int]) -> tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]:
        """Return the grid, arguments and options of a launch with a config."""
        if self.name == "matmul":
            (m, k), n = self.a.shape, self.b.shape[1]
            grid = (triton.cdiv(m, config["BM"]) * triton.cdiv(n, config["BN"]),)
            return grid, (self.a, self.b, self.c, m, n, k, k, n, n), config
        if self.name == "experts":
            tokens, of_block, count = self.aligned(config["BM"])
            _, n, k = self.b.shape
            slots = len(self.chosen)
            rows = min(len(tokens), slots * config["BM"])
            grid = (triton.cdiv(rows, config["BM"]) * triton.cdiv(n, config["BN"]),)
            sizes = (n, k, slots // self.a.shape[0], slots, k, n * k, k, n)
            return grid, (self.a, self.b, self.c, tokens, of_block, count, *sizes), config
        arguments = {**self.call.arguments, **config}
        grid = self.call.grid(arguments) if callable(self.call.grid) else self.call.grid
        return grid, self.call.args, {**self.call.kwargs, **config}

    def aligned(self, block: int) -> list[torch.Tensor]:
        """Return tokens sorted by expert and padded to blocks, the blocks' experts, and a count."""
        if block not in self.by_block:
            counts = torch.bincount(self.chosen, minlength=self.b.shape[0]).tolist()
            order = self.chosen.argsort(stable=True).tolist()
            tokens: list[int] = []
            of_block: list[int] = []
            at = 0
            for expert, count in enumerate(counts):
                blocks = -(-count // block)
                tokens += order[at : at + count] + [len(order)] * (blocks * block - count)
                of_block += [expert] * blocks
                at += count
            self.by_block[block] = [
                torch.tensor(values, dtype=torch.int32, device="cuda")
                for values in (tokens, of_block, [len(tokens)])
            ]
        return self.by_block[block]


def compile_share(share: int) -> None:
    """Compile one worker's share of all configs into Triton's cache."""
    done = set()
    for kernel, scenario in draw():
        sizes = [value for value in scenario.values() if isinstance(value, int)]
        form = kernel, scenario.get("model"), *((size % 16 == 0, size == 1) for size in sizes)
        if form in done:
            continue
        done.add(form)
        launch = Launch(kernel, scenario)
        binaries: dict[tuple[int, ...], dict[str, int]] = {}
        for config in launch.configs:  # `per_sm` is no constant of the kernel
            key = tuple(value for name, value in config.items() if name != "per_sm")
            binaries.setdefault(key, config)
        for config in [*binaries.values()][share::WORKERS]:
            _, args, kwargs = launch.of(config)
            try:
                launch.jit.warmup(*args, grid=(1,), **kwargs)
            except Exception as error:
                print("not compiled", kernel, config, str(error)[:100], flush=True)


class Timer:
    """Graphs of a launch's configs, captured on one stream into one pool of memory."""

    def __init__(self, launch: Launch) -> None:
        self._launch, self._stream, self._pool = launch, torch.cuda.Stream(), None
        self._graphs: dict[int, tuple[Any, int]] = {}

    def capture(self, index: int, count: int) -> None:
        grid, args, kwargs = self._launch.of(self._launch.configs[index])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, stream=self._stream, pool=self._pool, capture_error_mode="thread_local"
        ):
            for _ in range(count):
                self._launch.jit[grid](*args, **kwargs)
        self._pool = graph.pool()
        self._graphs[index] = graph, count
        self.replay(index)

    def replay(self, index: int) -> float:
        """Return the time of one launch in a replay, in microseconds."""
        graph, count = self._graphs[index]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3 / count


def measure(launch: Launch) -> dict[int, list[float]]:
    """Return the rows of the configs that run, by index; those close to the best take turns."""
    timer, rows, times = Timer(launch), {}, {}
    for index, config in enumerate(launch.configs):
        grid, args, kwargs = launch.of(config)
        try:
            kernel = launch.jit[grid](*args, **kwargs)
            torch.cuda.synchronize()
        except Exception as error:
            print("does not run", launch.name, config, str(error)[:100], flush=True)
            continue
        reported = kernel.n_regs, kernel.n_spills, kernel.metadata.shared
        rows[index] = [0.0, math.prod(grid), *reported]
        timer.capture(index, 4)
        times[index] = [timer.replay(index)]
        if times[index][0] < 2000:
            times[index] += [timer.replay(index) for _ in range(4)]
    best = min(map(statistics.median, times.values()))
    close = [index for index in times if statistics.median(times[index]) < CLOSE * best]
    for index in close:
        timer.capture(index, max(4, min(40, int(400 / best))))
        times[index] = []
    for _ in range(ROUNDS):
        for index in close:
            times[index].append(timer.replay(index))
    for index, taken in times.items():
        rows[index][0] = round(statistics.median(taken), 3)
    return rows


def main(folder: Path) -> None:
    start = time.time()
    with ProcessPoolExecutor(WORKERS, SPAWN) as pool:
        list(pool.map(compile_share, range(WORKERS)))
    print(f"compiled in {time.time() - start:.0f} s", flush=True)
    kernels: dict[str, dict[str, list[Any]]] = {}
    for kernel, scenario in draw():
        launch = Launch(kernel, scenario)
        rows = measure(launch)
        table = kernels.setdefault(kernel, {"configs": [], "scenarios": []})
        configs = table["configs"]
        configs += [config for config in launch.configs if config not in configs]
        numbered = {configs.index(launch.configs[index]): row for index, row in rows.items()}
        table["scenarios"].append({"args": launch.features, "rows": numbered})
        print(
            kernel, launch.features, f"{len(rows)} configs [{time.time() - start:.0f}]", flush=True
        )
        del launch
        torch.cuda.empty_cache()
    device, name = torch.cuda.get_device_properties(0), torch.cuda.get_device_name()
    report = {
        **describe_run(name),
        "gpu": {
            "multiprocessors": device.multi_processor_count,
            "memory": device.total_memory,
            "l2": device.L2_cache_size,
        },
        "seconds": round(time.time() - start),
        "row": ROW,
        "kernels": kernels,
    }
    short = name.split()[1]
    (folder / f"configs-{short}.json").write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
