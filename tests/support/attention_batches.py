"""Batches for the attention tests: random, ragged, and with NaN wherever no kernel may look."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import triton

from dejavu_cache.attention import NewTokens, paged_attention
from dejavu_cache.attention.sweep_suite import KERNELS

TOLERANCE = {torch.bfloat16: 5e-3, torch.float16: 1e-3, torch.float32: 1e-5}
"""Relative error, by dtype of the queries."""

REFUSED_MASK = pytest.mark.skipif(
    triton.__version__.startswith("3.9.") and not torch.cuda.is_available(),
    reason="the interpreter of Triton 3.9 refuses a mask of the kernel that merges segments",
)


@dataclass(frozen=True)
class Case:
    """A batch to draw: new and past tokens of each sequence, the model's shape, and features."""

    new: Sequence[int]
    past: Sequence[int]
    heads: tuple[int, int] = (8, 2)
    head_size: int = 64
    page: int = 16
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None
    window: int = -1
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    padding: int = 0
    """Sequences without tokens at the end, as in a padded graph."""
    seed: int = 0


COMPOSITIONS = {
    "decode": ([1] * 7, [300, 1, 64, 1000, 0, 33, 2049]),
    "prefill": ([200, 1, 77, 130], [0, 0, 0, 0]),
    "mixed": ([1, 130, 1, 40, 1], [700, 0, 5, 260, 1500]),
    "chunked": ([128, 128], [1024, 77]),
    "one token": ([1], [0]),
    "draft": ([4, 3, 4], [500, 2000, 31]),
}
"""New and past tokens of batches, by what they are."""

LONG_PROMPTS = {"long prompts": ([300, 150, 400], [4200, 9000, 100])}
"""Those that are long for heads of any size: `pairs_of` is 2."""

FEW_SEQUENCES = {
    "one": ([1], [700]),
    "long": ([1], [9000]),
    "two": ([1, 1], [3000, 40]),
    "no past": ([1, 1], [0, 0]),
    "draft": ([3], [500]),
    "drafts": ([2, 3], [0, 2000]),
}
"""Few new tokens of one or two sequences; `auto` gives those of one to `few_sequences`."""


def drawn_case(seed: int, implementation: str) -> Case:
    """Return a random case that a GPU's kernel supports."""
    pick = random.Random(f"{implementation} {seed}")
    few = implementation == "few_sequences"
    hopper = implementation in ("few_sequences", "hopper")
    many = {**COMPOSITIONS, **LONG_PROMPTS} if hopper else COMPOSITIONS
    new, past = pick.choice(list((FEW_SEQUENCES if few else many).values()))
    dtype = pick.choice([torch.bfloat16, torch.float16] if hopper else list(TOLERANCE))
    return Case(
        new=new,
        past=past,
        heads=pick.choice(
            [(32, 8), (4, 4), (8, 2), (5, 1)]
            if few
            else [(1, 1), (4, 4), (8, 2), (7, 1), (10, 2), (16, 1), (12, 4)]
        ),
        head_size=pick.choice([64, 80, 96, 128, 192, 256]),
        page=pick.choice([8, 16, 24, 64, 528] if hopper else [1, 7, 16, 24, 32, 64, 128, 544]),
        dtype=dtype,
        cache_dtype=pick.choice([None, None, torch.float8_e4m3fn, torch.float8_e5m2]),
        window=pick.choice([-1, -1, 0, 40, 128, 5000]),
        softcap=pick.choice([0.0, 0.0, 20.0]),
        alibi=not hopper and pick.random() < 0.3,
        sinks=pick.random() < 0.3,
        padding=0 if few else pick.choice([0, 0, 3]),
        seed=seed,
    )


@dataclass
class Drawn:
    """A batch's arguments, and the reference's answer."""

    arguments: dict[str, Any]
    expected: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.expected = self.run("reference").clone()

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values, which a plan takes of each layer."""
        return self.arguments["q"], self.arguments["k_cache"], self.arguments["v_cache"]

    def error_of_layer(self, planned: Any, **options: Any) -> float:
        """Return the relative error of a plan's layer, whose output was filled with NaN."""
        out = torch.full_like(self.arguments["q"], float("nan"))
        assert planned.run(*self.tensors, out=out, **options) is out
        return relative_error(out, self.expected)

    def run(self, implementation: str) -> torch.Tensor:
        """Compute attention by an implementation into an output that was filled with NaN."""
        out = torch.full_like(self.arguments["q"], float("nan"))
        return paged_attention(**self.arguments, out=out, implementation=implementation)


def draw(case: Case, device: str | None = None) -> Drawn:
    """Return a new random batch of a case."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator().manual_seed(case.seed)
    shuffled = random.Random(case.seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    query_heads, kv_heads = case.heads
    lengths = [new + past for new, past in zip(case.new, case.past, strict=True)]
    pages = [math.ceil(length / case.page) for length in lengths]
    blocks = list(range(sum(pages) + 3))
    shuffled.shuffle(blocks)
    caches = torch.full((2, len(blocks), case.page, kv_heads, case.head_size), float("nan"))
    table = torch.full((len(lengths) + case.padding, max(pages) + 1), 2**30, dtype=torch.int32)
    for row, (length, count) in enumerate(zip(lengths, pages, strict=True)):
        mine, blocks = blocks[:count], blocks[count:]
        table[row, :count] = torch.tensor(mine)
        filled = torch.full((2, count * case.page, kv_heads, case.head_size), float("nan"))
        filled[:, :length] = normal(2, length, kv_heads, case.head_size)
        caches[:, mine] = filled.unflatten(1, (count, case.page))
    caches = caches.to(case.cache_dtype or case.dtype).to(device)
    begins = [0]
    for new in [*case.new, *[0] * case.padding]:
        begins.append(begins[-1] + new)
    scaled = case.cache_dtype is not None
    return Drawn(
        {
            "q": normal(sum(case.new), query_heads, case.head_size).to(case.dtype).to(device),
            "k_cache": caches[0],
            "v_cache": caches[1],
            "cu_seqlens_q": torch.tensor(begins, dtype=torch.int32, device=device),
            "seqused_k": torch.tensor(
                [*lengths, *[0] * case.padding], dtype=torch.int32, device=device
            ),
            "block_table": table.to(device),
            "max_seqlen_q": max(case.new),
            "max_seqlen_k": max(lengths),
            "window_size": (case.window, -1),
            "softcap": case.softcap,
            "alibi_slopes": torch.rand(query_heads, generator=generator).mul(0.2).to(device)
            if case.alibi
            else None,
            "sinks": normal(query_heads).to(device) if case.sinks else None,
            "k_scale": 0.7 if scaled else None,
            "v_scale": 1.3 if scaled else None,
        }
    )


def draw_layers(case: Case, *factors: float) -> list[Drawn]:
    """Return a batch, and further layers whose queries, keys and values are multiples of its."""
    layers = [draw(case) for _ in (1.0, *factors)]
    for layer, factor in zip(layers[1:], factors, strict=True):
        for name in ("q", "k_cache", "v_cache"):
            layer.arguments[name] = layers[0].arguments[name] * factor
        layer.expected = layer.run("reference")
    return layers


def take_new_tokens(arguments: dict[str, Any]) -> NewTokens:
    """Take a batch's new keys and values out of its cache, and leave NaN there.

    They lie beside each other in memory, as an engine's do.
    """
    caches = [arguments[name].flatten(0, 1) for name in ("k_cache", "v_cache")]
    page, begins = arguments["k_cache"].shape[1], arguments["cu_seqlens_q"].tolist()
    slots = [
        int(arguments["block_table"][row, position // page]) * page + position % page
        for row, length in enumerate(arguments["seqused_k"].tolist())
        for position in range(length - (begins[row + 1] - begins[row]), length)
    ]
    kv_heads = caches[0].shape[1]
    keys, values = torch.cat([cache[slots] for cache in caches], 1).split(kv_heads, 1)
    for cache in caches:
        cache[slots] = float("nan")
    return NewTokens(keys, values, torch.tensor(slots, device=keys.device))


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """|found - expected| / |expected|; infinite if anything was not written."""
    if not torch.isfinite(actual).all():
        return float("inf")
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def check(case: Case, implementation: str, device: str | None = None) -> None:
    """Check an implementation against the reference on a new batch."""
    drawn = draw(case, device)
    error = relative_error(drawn.run(implementation), drawn.expected)
    assert error < TOLERANCE[case.dtype], f"{implementation}: relative error {error:.1e} for {case}"


DECODES = Case(new=[1] * 8, past=[4000] * 8, heads=(32, 8), head_size=128, dtype=torch.bfloat16)
PROMPTS = replace(DECODES, new=[100] * 8, past=[3900] * 8)
"""Batches of which tests change what they are about."""


def has_hopper() -> bool:
    """Return whether this machine's GPU has the Hopper kernel."""
    return torch.cuda.is_available() and bool(torch.cuda.get_device_capability()[0] == 9)


def runnable(implementation: str, case: Case) -> list[Any]:
    """Return the configs of a kernel that can run a case on this machine."""
    from dejavu_cache.attention.kernels.static_grid import most_rows
    from dejavu_cache.attention.search_space import why_not_here

    configs = list(KERNELS[implementation].configs)
    if implementation == "naive":
        return configs
    group = case.heads[0] // case.heads[1]
    padded = max(16, 1 << (case.head_size - 1).bit_length())
    shape = {"q": torch.empty(0, dtype=case.dtype), "HEAD_PADDED": padded, "GROUP": group}
    most = most_rows(max(case.new), group) if implementation == "static_grid" else math.inf
    return [
        config
        for config in configs
        if why_not_here(config, shape) is None and config.kwargs["BLOCK_M"] <= most
    ]
