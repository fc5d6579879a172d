"""Sweep suite of the attention kernels: typical batches of a server for several models.

Run it with `dejavu-cache sweep dejavu_cache.attention --option preset=llama3-8b --store URL`. It
tunes what `auto` launches on the GPU that it runs on.

A preset is a model's shapes; its batches have sequences of drawn lengths, in tensors made up for
them.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..model.buckets import Exact
from ..model.scenario import Scenario
from ..sweep.suite import Case, Suite, preset_of, read_names
from ..triton_internals.identity import dtype_name
from . import api
from .batch import FLOAT8, Batch, make_batch
from .kernels import naive, qblock, segmented, static_grid
from .kernels.kernel_call import KernelCall
from .search_space import BUCKETS, KEYS


@dataclass(frozen=True)
class Model:
    """Shape of a model's attention layers on one GPU.

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

Shape = tuple[Model, int, torch.dtype]
"""The model, tokens in a page, and dtype of the queries."""

RAGGED = (1.0, 0.4, 0.5, 1.0, 0.2)
"""Lengths of a batch's sequences, as shares of the longest; the pattern repeats."""

MOST_TOKENS = 1 << 20
"""Limit of a batch's context; for llama3-8b it is 4 GiB of keys and values."""

MOST_NEW_TOKENS = 1 << 15

KINDS = ("decode", "prefill", "mixed", "chunked")
"""Kinds of batches; the first word of a composition's name."""


@dataclass(frozen=True)
class Lengths:
    """Composition of a batch: each sequence's number of new tokens and of earlier ones."""

    name: str
    new: Sequence[int]
    past: Sequence[int]

    @property
    def longest(self) -> int:
        """Return `max_seqlen_k` of the launch."""
        return max(map(sum, zip(self.new, self.past, strict=True)))


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


def batch_of(composition: Lengths, model: Model, page: int, dtype: torch.dtype) -> Batch:
    """Make a batch of random tensors on the current device, with its pages in random order.

    Args:
        composition: the sequences' lengths.
        model: the model's shape.
        page: tokens in a block of the cache.
        dtype: of queries and caches.
    """
    new_tokens, heads = composition.new, model.query_heads
    device = current_device()
    totals = [new + past for new, past in zip(new_tokens, composition.past, strict=True)]
    pages = [math.ceil(total / page) for total in totals]
    order = torch.randperm(sum(pages), device=device, dtype=torch.int32)
    columns = math.ceil(composition.longest / page)
    table = torch.zeros(len(pages), columns, dtype=torch.int32, device=device)
    for row, blocks in enumerate(order.split(pages)):
        table[row, : len(blocks)] = blocks
    sizes = (2, sum(pages), page, model.kv_heads, model.head_size)
    caches = torch.randn(sizes, device=device, dtype=dtype)
    if model.cache:
        caches = caches.to(getattr(torch, model.cache))
    begins = torch.tensor([0, *new_tokens]).cumsum(0)
    scale = torch.ones((), dtype=torch.float32, device=device) if model.has_scales else None

    def per_head(name: str) -> torch.Tensor | None:
        return torch.rand(heads, device=device).to(getattr(torch, name)) if name else None

    return make_batch(
        torch.randn(sum(new_tokens), heads, model.head_size, device=device, dtype=dtype),
        caches[0], caches[1], begins.to(device, torch.int32),
        torch.tensor(totals, dtype=torch.int32, device=device),
        table, max(new_tokens), composition.longest, None, (model.window, -1), model.softcap,
        per_head(model.alibi), per_head(model.sinks), scale, scale, None,
    )  # fmt: skip


def current_device() -> str:
    """Return the device that batches are made on: a GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def outline(composition: Lengths, shape: Shape, device: str) -> Batch:
    """Return a batch for what is decided before a launch: of its sizes, and with hardly any memory.

    On the device `meta`, its tensors have none at all.
    """
    model, page, dtype = shape
    sequences = len(composition.new)
    with torch.device(device):
        token = torch.empty(1, model.query_heads, model.head_size, dtype=dtype)
        q = token.expand(sum(composition.new), -1, -1)
        cache = torch.empty(
            1, page, model.kv_heads, model.head_size,
            dtype=getattr(torch, model.cache) if model.cache else dtype,
        )  # fmt: skip
        table = torch.empty(sequences, 1, dtype=torch.int32)
        scale = torch.empty((), dtype=torch.float32) if model.has_scales else None
        slopes, sinks = (
            torch.empty(model.query_heads, dtype=getattr(torch, name)) if name else None
            for name in (model.alibi, model.sinks)
        )
        return Batch(
            q, cache, cache, q, table[:, 0], table[:, 0], table, max(composition.new),
            composition.longest, 1.0, model.window, model.softcap, slopes, sinks, scale, scale,
        )  # fmt: skip


KERNELS = {
    "segmented": segmented.segment_kernel,
    "qblock": qblock.qblock_kernel,
    "static_grid": static_grid.static_grid_kernel,
    "naive": naive.naive_kernel,
}
"""The tuned implementations' kernels, by the implementations' use; others have one config."""

LAUNCHES: dict[str, Callable[[Batch], KernelCall]] = {
    "segmented": segmented.launch,
    "qblock": qblock.launch,
    "static_grid": static_grid.launch,
    "naive": naive.launch,
}
"""Functions that prepare their launches."""


def cases(
    preset: str = "llama3-8b",
    page: str = "16",
    dtype: str = "bfloat16",
    cache: str = "",
    only: str = "",
    batches: str = "",
) -> Iterator[Case]:
    """Yield one case per batch and implementation that `auto` launches for it.

    Args:
        preset: a model of `PRESETS`, or the query heads, KV heads and head size that one GPU has,
            such as `40/8/128`.
        page: tokens in a block of the cache.
        dtype: of the queries.
        cache: dtype of the caches; empty for that of the queries. One of its own has scales.
        only: implementations to tune for all batches, separated by +; empty for those that `auto`
            launches on this GPU, for its batches.
        batches: decode, prefill, mixed or chunked, separated by +; empty for all.
    """
    if re.fullmatch(r"\d+/\d+/\d+", preset):
        query_heads, kv_heads, head_size = map(int, preset.split("/"))
        model = Model(query_heads, kv_heads, head_size)
    else:
        model = preset_of(preset, PRESETS)
    implementations = read_names("only", only, KERNELS)
    kinds = read_names("batches", batches, KINDS)
    float8 = [*map(dtype_name, FLOAT8)]
    if cache not in ("", dtype, *float8):
        raise ValueError(f"cache={cache}: choose {dtype} or one of {', '.join(float8)}")
    if cache not in ("", dtype):
        model = replace(model, cache=cache, has_scales=True)
    shape = (model, int(page), getattr(torch, dtype))
    selected = [composition for composition in lengths() if composition.name.split()[0] in kinds]
    chosen = [api.choose(outline(one, shape, current_device())) for one in selected]
    for implementation in implementations:
        for composition, name in zip(selected, chosen, strict=True):
            if only or name == implementation:
                yield case_of(implementation, composition, shape)


_current_call: list[KernelCall] = []
"""The call whose arguments were made last. Only this one is kept, so that memory can be freed."""


def case_of(implementation: str, composition: Lengths, shape: Shape) -> Case:
    """Return the case of an implementation in `LAUNCHES` and a batch."""

    def arguments() -> Mapping[str, Any]:
        _current_call.clear()
        _current_call.append(LAUNCHES[implementation](batch_of(composition, *shape)))
        return _current_call[0].arguments

    def grid(meta: dict[str, Any]) -> Any:
        grid = _current_call[0].grid
        return grid(meta) if callable(grid) else grid

    return Case(
        name=f"{implementation} {composition.name}",
        kernel=KERNELS[implementation],
        grid=grid,
        arguments=arguments,
    )


def for_scenario(kernel: str, scenario: Scenario) -> Case | None:
    """Return a case for a missed scenario, or None if no batch of this suite has it."""
    implementation = kernel.split(".")[-2].removesuffix("_kernel")
    if implementation not in KERNELS:
        return None
    args = scenario.args
    dtypes = {name: kind for name, kind in scenario.dtypes.items() if not kind.startswith("=")}
    heads, group, head, page, window = (
        int(args.get(name, -1) or 0) for name in ("KV_HEADS", "GROUP", "HEAD", "PAGE", "WINDOW")
    )
    cache = dtypes.get("k_cache", dtypes["q"])
    model = Model(
        heads * group, heads, head, window,
        sinks=dtypes.get("sinks", ""),
        alibi=dtypes.get("alibi_slopes", ""),
        softcap=30.0 if args.get("SOFTCAP") else 0.0,  # any value takes the same time
        cache="" if cache == dtypes["q"] else cache,
        has_scales="k_scale" in dtypes,
    )  # fmt: skip
    shape = (model, page, getattr(torch, dtypes["q"]))
    sizes = (int(BUCKETS[name](args[name]) or 0) for name in KEYS[:3])  # a miss may ask for any
    for composition in _compositions(str(scenario), *sizes):
        if scenario_arguments(implementation, composition, shape, args) == args:
            return case_of(implementation, composition, shape)
    return None


def scenario_arguments(
    implementation: str, composition: Lengths, shape: Shape, names: Iterable[str] = KEYS
) -> dict[str, Any]:
    """Return the bucketed key arguments of a launch, by name."""
    actual = LAUNCHES[implementation](outline(composition, shape, "meta")).arguments
    return {name: BUCKETS.get(name, Exact())(actual[name]) for name in names}


def _compositions(name: str, num_seqs: int, new: int, longest: int) -> Iterator[Lengths]:
    """Yield batches whose sizes may fall into the given buckets, the most common kinds first."""
    for sequences in (num_seqs, 2 * num_seqs - 1):  # some decode shares need an odd number
        rest = sequences - 1
        limit = max(MOST_TOKENS // sequences, 1)
        totals = [longest, *(min(total, limit) for total in ragged(sequences, longest)[1:])]
        half_decoding = [1 if index % 2 else max(2 * new - 1, 2) for index in range(sequences)]
        for new_tokens in (
            [1] * sequences,  # decoding
            ragged(sequences, longest),  # prefill
            [new] * sequences,  # chunked prefill
            half_decoding,
            [sequences * (new - 1) + 1, *[1] * rest],  # all but one decoding
            [*[2] * rest, 1],  # speculative decoding with one drafted token
        ):
            past = [max(total - count, 0) for count, total in zip(new_tokens, totals, strict=True)]
            yield Lengths(name, new_tokens, past)


suite = Suite(
    cases=cases,
    for_scenario=for_scenario,
    why_empty="auto gives these batches to hopper and few_sequences here, which have one config "
    "for each kind of work; --option only=... tunes others",
)
