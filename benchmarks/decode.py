"""Seconds to a number of new tokens for one request to a decoder of Llama 3.1 8B's shape.

    FLASH_ATTENTION_3=path/to/library python benchmarks/decode.py [FOLDER]

The weights are random. A whole step is one CUDA graph, captured once for the longest context and
replayed for every token; attention is `auto`, `static_grid`, or FlashAttention 3. Everything else
is the same PyTorch.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flash_attention
import torch
from reports import RESULTS, describe_run, write_report
from torch.nn import functional

from dejavu_cache.attention.api import IMPLEMENTATIONS
from dejavu_cache.attention.batch import Batch, make_batch

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD, VOCABULARY = 32, 4096, 14336, 32, 8, 128, 128256
PROMPT, NEW, PAGE = 500, 12800, 16
OURS = ("auto", "static_grid")
MARKS = (100, 200, 400, 800, 1600, 3200, 6400, 12800)
TURN = 100
"""New tokens at a time; divides the marks."""


class Decoder:
    """Decoder whose step goes from the last token, on the GPU, to the next one."""

    def __init__(self, attention: Callable[[Batch], torch.Tensor]) -> None:
        torch.manual_seed(0)
        options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        self.attention = attention

        def weight(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, **options) * columns**-0.5

        self.embedding = weight(VOCABULARY, HIDDEN)
        self.head = weight(VOCABULARY, HIDDEN)
        self.layers = [
            (
                weight((HEADS + 2 * KV_HEADS) * HEAD, HIDDEN),
                weight(HIDDEN, HEADS * HEAD),
                weight(2 * INNER, HIDDEN),
                weight(HIDDEN, INNER),
            )
            for _ in range(LAYERS)
        ]
        pages = math.ceil((PROMPT + NEW) / PAGE)
        self.caches = torch.randn(LAYERS, 2, pages, PAGE, KV_HEADS, HEAD, **options)
        self.table = torch.randperm(pages, device="cuda", dtype=torch.int32)[None]
        self.begins = torch.tensor([0, 1], device="cuda", dtype=torch.int32)
        self.length = torch.tensor([PROMPT], device="cuda", dtype=torch.int32)
        self.token = torch.zeros(1, device="cuda", dtype=torch.int64)
        self.frequencies = 500000.0 ** (-torch.arange(0, HEAD, 2, device="cuda") / HEAD)

    def step(self) -> None:
        """Write the token's keys and values, attend, and store the next token."""
        self.length += 1
        position = (self.length - 1).long()
        angle = position[:, None] * self.frequencies
        rotation = torch.polar(torch.ones_like(angle), angle)[:, None]
        page = self.table[0].long()[position // PAGE]
        x = self.embedding[self.token]
        for (qkv, output, up, down), (keys, values) in zip(self.layers, self.caches, strict=True):
            heads = functional.linear(norm(x), qkv).view(1, HEADS + 2 * KV_HEADS, HEAD)
            q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), 1)
            keys[page, position % PAGE] = rotate(k, rotation)
            values[page, position % PAGE] = v
            batch = make_batch(
                rotate(q, rotation), keys, values, self.begins, self.length, self.table,
                1, PROMPT + NEW,
                None, (-1, -1), 0.0, None, None, None, None, None,
            )  # fmt: skip
            x = x + functional.linear(self.attention(batch).view(1, -1), output)
            gate, value = functional.linear(norm(x), up).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * value, down)
        self.token.copy_(functional.linear(norm(x), self.head).argmax(-1))


def norm(x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (HIDDEN,))


def rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotation).flatten(-2).to(x.dtype)


class ReplayedDecoder:
    """Decoder as one CUDA graph, and the time that its steps have taken."""

    def __init__(self, attention: Callable[[Batch], torch.Tensor]) -> None:
        self.decoder = Decoder(attention)
        self.decoder.step()
        self.decoder.step()  # the steps before a capture compile, tune and warm up
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.decoder.step()
        self.decoder.length.fill_(PROMPT)
        self.seconds = 0.0

    def generate(self, tokens: int) -> None:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(tokens):
            self.graph.replay()
        torch.cuda.synchronize()
        self.seconds += time.perf_counter() - start


def seconds(attentions: dict[str, Callable[[Batch], torch.Tensor]]) -> dict[str, dict[str, float]]:
    """Return seconds from the first new token to each mark.

    The decoders take turns, so that a drifting clock favours none.
    """
    decoders = {name: ReplayedDecoder(attention) for name, attention in attentions.items()}
    times: dict[str, dict[str, float]] = {name: {} for name in decoders}
    for tokens in range(TURN, NEW + 1, TURN):
        for name, decoder in decoders.items():
            decoder.generate(TURN)
            if tokens in MARKS:
                times[name][str(tokens)] = round(decoder.seconds, 4)
    return times


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    attentions = {name: IMPLEMENTATIONS[name] for name in OURS}
    if flash_attention.available():
        attentions["fa3"] = flash_attention.run
    times = seconds(attentions)
    print(times)
    result = {
        **describe_run(),
        "seconds_to_new_tokens": times,
    }
    if "fa3" in times:
        shares = {
            name: {
                mark: round(times["fa3"][mark] / time_to_mark, 4)
                for mark, time_to_mark in times[name].items()
            }
            for name in OURS
        }
        result["share_of_fa3"] = shares
        print("share of FlashAttention 3", shares)
    write_report(folder, "decode.json", result)


if __name__ == "__main__":
    main()
