"""Batches that attention is tuned for: models' shapes, sequences' lengths, and their tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from .batch import Batch, make_batch

__all__ = [
    "KINDS", "MOST_TOKENS", "PRESETS", "Lengths", "Model", "Shape", "batch_of", "current_device",
    "lengths", "outline", "ragged",
]  # fmt: skip


@dataclass(frozen=True)
class Model:
    """Shape of a model's attention layers; numbers of heads are those before tensor parallelism.

    Attributes:
        window: earlier keys that a query sees; -1 for all.
        sinks: dtype of the sinks; empty for none.
        alibi: dtype of the ALiBi slopes; empty for none.
        cache: dtype of the caches; empty for that of the queries.
        has_scales: whether keys and values have scales.
    """

    query_heads: int
    kv_heads: int
    head_size: int
    window: int = -1
    sinks: str = ""
    alibi: str = ""
    softcap: float = 0.0
    cache: str = ""
    has_scales: bool = False


PRESETS = {
    "llama3-8b": Model(32, 8, 128),
    "llama3-70b": Model(64, 8, 128),
    "qwen2-7b": Model(28, 4, 128),
    "gemma-2b": Model(8, 1, 256),
    "opt-1.3b": Model(16, 16, 64),
    "gpt-oss": Model(64, 8, 64, sinks="float32"),
    "gpt-oss-window": Model(64, 8, 64, window=127, sinks="float32"),
}

Shape = tuple[Model, int, torch.dtype, int]
"""The model, tokens in a page, dtype of the queries, and GPUs that share the heads."""

RAGGED = (1.0, 0.4, 0.5, 1.0, 0.2)
"""Lengths of a batch's sequences, as shares of the longest; the pattern repeats."""

MOST_TOKENS = 1 << 20
"""Limit of a batch's context; for llama3-8b it is 4 GiB of keys and values."""

MOST_NEW_TOKENS = 1 << 15

KINDS = ("decode", "prefill", "mixed", "chunked")
"""Kinds of batches; the first word of a composition's name."""


@dataclass(frozen=True)
class Lengths:
    """Composition of a batch: each sequence's number of new tokens and of earlier ones.

    Attributes:
        bound: `max_seqlen_k` of the launch if it is more than the longest sequence, as in a
            captured graph.
    """

    name: str
    new: Sequence[int]
    past: Sequence[int]
    bound: int = 0

    @property
    def longest(self) -> int:
        """Return `max_seqlen_k` of the launch."""
        return max(self.bound, *map(sum, zip(self.new, self.past, strict=True)))


def ragged(sequences: int, longest: int) -> list[int]:
    """Return unequal lengths for a number of sequences, up to the longest."""
    return [max(1, int(longest * RAGGED[index % len(RAGGED)])) for index in range(sequences)]


def lengths() -> Iterator[Lengths]:
    """Yield the batches of a server: decoding, prefill, both mixed, and chunked prefill."""
    for sequences in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        for longest in (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768):
            if sequences * longest <= MOST_TOKENS:
                yield Lengths(
                    f"decode {sequences} x {longest}", [1] * sequences, ragged(sequences, longest)
                )
    for sequences in (1, 2, 4, 8, 16, 32):
        for longest in (16, 128, 512, 1024, 2048, 4096, 8192, 16384):
            if sequences * longest <= MOST_NEW_TOKENS:
                yield Lengths(
                    f"prefill {sequences} x {longest}", ragged(sequences, longest), [0] * sequences
                )
    for sequences in (2, 8, 32, 64):
        for longest in (512, 1024, 2048, 8192):
            prompts = [1 if index % 2 else max(1, longest // 4) for index in range(sequences)]
            if sum(prompts) <= MOST_NEW_TOKENS:
                yield Lengths(f"mixed {sequences} x {longest}", prompts, ragged(sequences, longest))
    for sequences in (1, 4):
        for chunk in (512, 2048):
            for past in (2048, 8192, 32768):
                yield Lengths(
                    f"chunked {sequences} x {chunk} after {past}",
                    [chunk] * sequences,
                    [past] * sequences,
                )


def batch_of(
    composition: Lengths, model: Model, page: int, dtype: torch.dtype, tensor_parallel: int = 1
) -> Batch:
    """Make a batch of random tensors on the current device, with its pages in random order.

    Args:
        composition: the sequences' lengths.
        model: the model's shape.
        page: tokens in a block of the cache.
        dtype: of queries and caches.
        tensor_parallel: number of GPUs that share the model's heads.

    Raises:
        ValueError: the heads cannot be divided among the GPUs.
    """
    new_tokens = composition.new
    query_heads, kv_heads = _heads(model, tensor_parallel)
    device = current_device()
    totals = [new + past for new, past in zip(new_tokens, composition.past, strict=True)]
    pages = [math.ceil(total / page) for total in totals]
    order = torch.randperm(sum(pages), device=device, dtype=torch.int32)
    columns = math.ceil(composition.longest / page)
    table = torch.zeros(len(pages), columns, dtype=torch.int32, device=device)
    for row, blocks in enumerate(order.split(pages)):
        table[row, : len(blocks)] = blocks
    caches = torch.randn(2, sum(pages), page, kv_heads, model.head_size, device=device, dtype=dtype)
    if model.cache:
        caches = caches.to(getattr(torch, model.cache))
    begins = torch.tensor([0, *new_tokens]).cumsum(0)
    scale = torch.ones((), dtype=torch.float32, device=device) if model.has_scales else None

    def per_head(name: str) -> torch.Tensor | None:
        return torch.rand(query_heads, device=device).to(getattr(torch, name)) if name else None

    return make_batch(
        torch.randn(sum(new_tokens), query_heads, model.head_size, device=device, dtype=dtype),
        caches[0], caches[1], begins.to(device, torch.int32),
        torch.tensor(totals, dtype=torch.int32, device=device),
        table, max(new_tokens), composition.longest, None, (model.window, -1), model.softcap,
        per_head(model.alibi), per_head(model.sinks), scale, scale, None,
    )  # fmt: skip


def _heads(model: Model, tensor_parallel: int) -> tuple[int, int]:
    """Return the query heads and KV heads of one of the GPUs that share a model.

    Raises:
        ValueError: the heads cannot be divided among the GPUs.
    """
    tp, kv_heads = tensor_parallel, model.kv_heads
    if tp < 1 or model.query_heads % tp or (kv_heads % tp and tp % kv_heads):
        raise ValueError(
            f"tp={tensor_parallel}: {model.query_heads}/{model.kv_heads} heads cannot be shared out"
        )
    return model.query_heads // tensor_parallel, max(model.kv_heads // tensor_parallel, 1)


def current_device() -> str:
    """Return the device that batches are made on: a GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def outline(composition: Lengths, shape: Shape, device: str) -> Batch:
    """Return a batch for what is decided before a launch: of its sizes, and with hardly any memory.

    Args:
        composition: the sequences' lengths.
        shape: what the batch's tensors are made for.
        device: of the tensors; `meta` for none at all.
    """
    model, page, dtype, tensor_parallel = shape
    query_heads, kv_heads = _heads(model, tensor_parallel)
    sequences = len(composition.new)
    with torch.device(device):
        token = torch.empty(1, query_heads, model.head_size, dtype=dtype)
        q = token.expand(sum(composition.new), -1, -1)
        cache = torch.empty(
            1, page, kv_heads, model.head_size,
            dtype=getattr(torch, model.cache) if model.cache else dtype,
        )  # fmt: skip
        table = torch.empty(sequences, 1, dtype=torch.int32)
        scale = torch.empty((), dtype=torch.float32) if model.has_scales else None
        slopes, sinks = (
            torch.empty(query_heads, dtype=getattr(torch, name)) if name else None
            for name in (model.alibi, model.sinks)
        )
        return Batch(
            q, cache, cache, q, table[:, 0], table[:, 0], table, max(composition.new),
            composition.longest, 1.0, model.window, model.softcap, slopes, sinks, scale, scale,
        )  # fmt: skip
