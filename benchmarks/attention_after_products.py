"""GPU time of attention on drawn batches, after a matrix product in each layer.

    python benchmarks/attention_after_products.py FILE [PAGES] [SEEDS] [SECONDS]

A product streams its weights through the L2 cache, as those of a model do. The launch after it
finds neither its code nor the schedule's lists in a cache, which attention alone does not show. A
step of 32 layers is one CUDA graph, in which each layer has a cache of its own; what layers share
is prepared once, inside. The products' own time is taken off. Implementations take turns, and are
checked against attention in float32; `flash_attention` says which others there may be. Batches are
drawn for each of SEEDS, such as `1+2`, and measured for each of PAGES, such as `16+128`. Heads are
32/8 of 128, bfloat16. After SECONDS, no batch begins.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import flash_attention
import torch
from reports import describe_run

from dejavu_cache import attention
from dejavu_cache.attention.api import run_reference
from dejavu_cache.attention.batch import Batch
from dejavu_cache.attention.sweep_suite import PRESETS, Lengths, batch_of

LAYERS, PRODUCTS, ROUNDS = 32, 8, 5
CACHE_BYTES = 24 << 30
"""Memory of all layers' caches; where that is not enough, fewer caches are used in turns."""

LONGEST = 32768
"""Most tokens that a sequence is drawn with."""

MOST_SCORES = 1 << 30
"""Scores of a batch up to which it is compared with the reference, which keeps them in memory."""

Prepare = Callable[[Batch], Callable[[Batch], Any]]
"""Prepares what the layers of a step share, and returns what computes one layer."""


def draw_batches(seed: int) -> list[Lengths]:
    """Return batches as in traffic, whose lengths are lognormal."""
    rng = random.Random(seed)

    def lengths(count: int, mean: float, most: int = LONGEST) -> list[int]:
        drawn = [int(rng.lognormvariate(math.log(mean) - 0.4, 0.9)) for _ in range(count)]
        return [max(1, min(most, length)) for length in drawn]

    def near(mean: int) -> int:
        return int(mean * rng.uniform(0.6, 1.6))

    found: list[Lengths] = []
    for count, mean in (
        (1, 700), (1, 4000), (1, 20000), (2, 1500), (4, 5000), (8, 800), (16, 2500), (24, 300),
        (40, 1500), (64, 4000), (96, 800), (128, 2500), (200, 500), (256, 1200),
    ):  # fmt: skip
        past = lengths(count, near(mean))
        found.append(Lengths(f"decode {count} ~{mean}", [1] * count, past))
    for count, mean in (
        (1, 60), (1, 900), (1, 3500), (1, 8000), (5, 500), (16, 700), (40, 150),
    ):  # fmt: skip
        new = lengths(count, near(mean), 8192)
        found.append(Lengths(f"prefill {count} ~{mean}", new, [0] * count))
    for count, mean, prompts, prompt in (
        (6, 4000, 1, 400), (30, 1500, 2, 900), (60, 800, 4, 300), (100, 1200, 1, 2048),
        (200, 600, 3, 1000),
    ):  # fmt: skip
        new = lengths(prompts, near(prompt), 4096)
        past = [*lengths(count, near(mean)), *[0] * prompts]
        name = f"mixed {count} ~{mean} + {prompts} x ~{prompt}"
        found.append(Lengths(name, [*[1] * count, *new], past))
    for kind, count, tokens, mean in (
        ("chunked", 1, 2048, 9000), ("chunked", 1, 512, 28000), ("chunked", 3, 700, 1500),
        ("chunked", 8, 256, 3000), ("speculative", 2, 8, 9000), ("speculative", 16, 4, 2000),
        ("speculative", 64, 3, 900),
    ):  # fmt: skip
        past = lengths(count, near(mean))
        found.append(Lengths(f"{kind} {count} x {tokens} ~{mean}", [tokens] * count, past))
    return found


def ours(batch: Batch) -> Callable[[Batch], Any]:
    """Plan a step."""
    b = batch
    planned = attention.plan(
        b.q, b.k_cache, b.v_cache, cu_seqlens_q=b.cu_seqlens_q, seqused_k=b.seqused_k,
        block_table=b.block_table, max_seqlen_q=b.max_seqlen_q, max_seqlen_k=b.max_seqlen_k,
    )  # fmt: skip
    return lambda layer: planned.run(layer.q, layer.k_cache, layer.v_cache, out=layer.out)


def implementations() -> dict[str, Prepare]:
    """Return what is here to be compared, by name."""
    found: dict[str, Prepare] = {"ours": ours}
    if flash_attention.available():

        def prepare(batch: Batch) -> Callable[[Batch], Any]:
            planned = flash_attention.plan(batch)
            return lambda layer: flash_attention.run(layer, planned)

        found["fa3"] = prepare
    if flash_attention.has_version_4():
        compute = flash_attention.version_4()
        found["fa4"] = lambda batch: compute
    return found


class Step:
    """Products, and attention after each, in one captured graph.

    Args:
        layers: one batch in layers that have caches of their own.
        product: multiplies in a layer.
        prepare: attention; None for products alone.
    """

    def __init__(
        self, layers: list[Batch], product: Callable[[int], object], prepare: Prepare | None
    ) -> None:
        def step() -> None:
            compute = prepare(layers[0]) if prepare else None
            for layer in range(LAYERS):
                product(layer)
                if compute:
                    compute(layers[layer % len(layers)])

        step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            step()
        self.graph.replay()
        self.times: list[float] = []

    def take_turn(self) -> None:
        """Replay the graph once."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        self.times.append(begin.elapsed_time(end) * 1e3 / LAYERS)

    @property
    def microseconds(self) -> float:
        """Median time of a layer."""
        return statistics.median(self.times)


def make_layers(lengths: Lengths, page: int) -> list[Batch]:
    """Return a batch in layers that have caches of their own."""
    first = batch_of(lengths, PRESETS["llama3-8b"], page, torch.bfloat16)
    each = 2 * first.k_cache.numel() * first.k_cache.element_size()
    count = max(2, min(LAYERS, CACHE_BYTES // each))
    others = (
        replace(
            first, k_cache=torch.randn_like(first.k_cache), v_cache=torch.randn_like(first.v_cache)
        )
        for _ in range(count - 1)
    )
    return [first, *others]


def error_of(batch: Batch, prepare: Prepare, expected: torch.Tensor | None) -> float | None:
    """Return the relative error of an implementation, or None without a reference."""
    batch.out.fill_(float("nan"))
    prepare(batch)(batch)
    torch.cuda.synchronize()
    if expected is None:
        return None
    return float(f"{float((batch.out.float() - expected).norm() / expected.norm()):.1e}")


def time_batch(
    layers: list[Batch], names: dict[str, Prepare], weights: torch.Tensor
) -> dict[str, Any]:
    """Return microseconds per layer and relative errors by implementation."""
    batch = layers[0]
    expected = None
    if batch.max_seqlen_q * batch.max_seqlen_k * batch.q.shape[1] <= MOST_SCORES:
        expected = run_reference(batch).float().clone()
    x = batch.q.flatten(1)
    y = torch.empty(len(x), weights.shape[2], device="cuda", dtype=x.dtype)

    def product(layer: int) -> object:
        return torch.mm(x, weights[layer % PRODUCTS], out=y)

    errors = {name: error_of(batch, prepare, expected) for name, prepare in names.items()}
    products = Step(layers, product, None)
    steps = {name: Step(layers, product, prepare) for name, prepare in names.items()}
    for _ in range(ROUNDS):
        for step in random.sample([products, *steps.values()], len(steps) + 1):
            step.take_turn()
    alone = products.microseconds
    times = {name: round(step.microseconds - alone, 2) for name, step in steps.items()}
    return {"products": round(alone, 2), "microseconds": times, "errors": errors}


def summarize(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return shares of the better of the others' speed by kind: geometric mean and least."""
    shares: dict[str, list[float]] = {}
    for name, row in rows.items():
        times = dict(row["microseconds"])
        mine = times.pop("ours")
        for kind in (name.split()[0], "all"):
            shares.setdefault(kind, []).append(min(times.values()) / mine)
    return {
        kind: {"mean": round(statistics.geometric_mean(values), 3), "least": round(min(values), 3)}
        for kind, values in shares.items()
    }


def main() -> None:
    pages = [int(page) for page in (sys.argv[2] if len(sys.argv) > 2 else "16+128").split("+")]
    seeds = [int(seed) for seed in (sys.argv[3] if len(sys.argv) > 3 else "1").split("+")]
    seconds = float(sys.argv[4]) if len(sys.argv) > 4 else math.inf
    start = time.monotonic()
    names = implementations()
    weights = torch.randn(PRODUCTS, 4096, 4096, device="cuda", dtype=torch.bfloat16)
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    result = {
        **describe_run(),
        "heads": "32/8 of 128, bfloat16",
        "unit": "microseconds per layer",
        "batches": tables,
    }
    for seed in seeds:
        for page in pages:
            rows = tables.setdefault(f"seed {seed}, pages of {page}", {})
            for lengths in draw_batches(seed):
                if time.monotonic() - start > seconds:
                    break
                rows[lengths.name] = row = time_batch(make_layers(lengths, page), names, weights)
                torch.cuda.empty_cache()
                print(seed, page, lengths.name, row["microseconds"], row["errors"], flush=True)
            if len(names) > 1 and rows:
                print(seed, page, summarize(rows), flush=True)
            Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
