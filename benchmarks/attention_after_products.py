"""GPU time of attention in a step of many layers: alone, and after a matrix product in each layer.

    python benchmarks/attention_after_products.py [FILE]     # on a Hopper GPU, 15 s; writes JSON

A product streams its weights through the L2 cache, as those of a model do. The launch after it
finds neither its code nor the schedule's lists in a cache, which attention alone does not show. To
compare two versions, run it in each checkout, in turns. Heads are 32/8 of 128, pages 16, bfloat16.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton

from dejavu_cache import attention

LAYERS, HEADS, KV_HEADS, HEAD, PAGE = 32, 32, 8, 128, 16
PAGES, MOST_PAGES = 8448, 1024
INNER, PRODUCTS = 28672, 8
"""Rows of a layer's weights, [INNER, HEADS * HEAD], and the number of different weights."""

DECODES = ((1, 500), (1, 2000), (1, 4000), (4, 1000), (8, 4000), (16, 600), (32, 2000), (64, 900))
"""Sequences and their lengths, each with one new token."""

PROMPTS = {
    "prefill 1 x 500": ([500], [500]),
    "prefill 1 x 2000": ([2000], [2000]),
    "prefill 1 x 8000": ([8000], [8000]),
    "prefill 8 x 1000": ([1000] * 8, [1000] * 8),
    "chunked 4 x 512 of 6000": ([512] * 4, [6000] * 4),
    "mixed 30 of 1500, 400, 900": ([1] * 30 + [400, 900], [1500] * 30 + [400, 900]),
    "speculative 8 x 4 of 3000": ([4] * 8, [3000] * 8),
}
"""New tokens and lengths of sequences."""


class Step:
    """One batch in every layer of a model; each layer has a cache of its own."""

    def __init__(self, new: list[int], lengths: list[int], caches: list[torch.Tensor]) -> None:
        rows = [torch.randperm(PAGES)[:MOST_PAGES] for _ in lengths]
        self.caches = caches
        self.q = torch.randn(sum(new), HEADS, HEAD, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty_like(self.q)
        self.arguments = {
            "cu_seqlens_q": torch.tensor([0, *new]).cumsum(0).int().cuda(),
            "seqused_k": torch.tensor(lengths).int().cuda(),
            "block_table": torch.stack(rows).int().cuda(),
            "max_seqlen_q": max(new),
            "max_seqlen_k": max(lengths),
        }

    def attend(self, between: Callable[[int], object] = lambda layer: None) -> None:
        """Compute all layers' attention, each after what comes between the layers."""
        keys, values = self.caches[0].unbind(1)
        planned = attention.plan(self.q, keys, values, **self.arguments)
        for layer, cache in enumerate(self.caches):
            between(layer)
            keys, values = cache.unbind(1)
            planned.run(self.q, keys, values, out=self.out)


def microseconds(run: Callable[[], None], replays: int = 30) -> float:
    """Return the median time of a captured graph's replays, per layer."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times: list[float] = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return 1e3 * statistics.median(times) / LAYERS


def time_after_products(step: Step, weights: list[torch.Tensor]) -> float:
    """Return the time of attention after products, beyond that of the products by themselves."""
    x = step.q.flatten(1)

    def multiply(layer: int) -> None:
        torch.nn.functional.linear(x, weights[layer % PRODUCTS])

    def multiply_all() -> None:
        for layer in range(LAYERS):
            multiply(layer)

    together = min(microseconds(lambda: step.attend(multiply)) for _ in range(4))
    return together - min(microseconds(multiply_all) for _ in range(4))


def measure() -> dict[str, dict[str, float]]:
    """Return microseconds per layer by batch."""
    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    caches = [torch.randn(PAGES, 2, PAGE, KV_HEADS, HEAD, **options) for _ in range(LAYERS)]
    weights = [torch.randn(INNER, HEADS * HEAD, **options) for _ in range(PRODUCTS)]
    times: dict[str, dict[str, float]] = {}
    for count, length in DECODES:
        step = Step([1] * count, [length] * count, caches)
        times[f"decode {count} x {length}"] = {
            "alone": min(microseconds(step.attend) for _ in range(2)),
            "after a product": time_after_products(step, weights),
        }
    for name, (new, lengths) in PROMPTS.items():
        step = Step(new, lengths, caches)
        times[name] = {"alone": min(microseconds(step.attend, 8) for _ in range(3))}
    return times


def main() -> None:
    """Print the result, or write it to a file."""
    result = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "unit": "microseconds per layer",
        "batches": measure(),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)


if __name__ == "__main__":
    main()
