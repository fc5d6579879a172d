"""The attention kernels' sweep: the batches of a server, for the shapes of known models.

dejavu-cache sweep dejavu_cache.attention --preset llama3-8b --store URL
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..model.buckets import Exact
from ..model.scenario import Scenario
from ..sweep.suite import Case, Suite
from .batch import Batch, checked_batch
from .kernels import hopper, naive, qblock, segmented, static_grid
from .kernels.kernel_call import KernelCall
from .search_space import BUCKETS, KEYS

__all__ = ["LAUNCHES", "PRESETS", "Lengths", "Model", "batch_of", "kernel_of", "lengths", "suite"]


@dataclass(frozen=True)
class Model:
    """What a model's attention layers look like; heads as on one GPU without tensor parallelism."""

    query_heads: int
    kv_heads: int
    head_size: int
    window: int = -1
    sinks: bool = False


PRESETS = {
    "llama3-8b": Model(32, 8, 128),
    "llama3-70b": Model(64, 8, 128),
    "qwen2-7b": Model(28, 4, 128),
    "gemma-2b": Model(8, 1, 256),
    "opt-1.3b": Model(16, 16, 64),
    "gpt-oss": Model(64, 8, 64, sinks=True),
    "gpt-oss-window": Model(64, 8, 64, window=127, sinks=True),
}

RAGGED = (1.0, 0.4, 0.5, 1.0, 0.2)
"""Of the longest, how long a batch's sequences are: the pattern repeats."""

MOST_TOKENS = 1 << 20
"""Of context in a batch: 4 GiB of keys and values for llama3-8b."""

MOST_NEW_TOKENS = 1 << 15


@dataclass(frozen=True)
class Lengths:
    """A batch's composition: each sequence's new tokens, and those before them."""

    name: str
    new: Sequence[int]
    past: Sequence[int]


def ragged(sequences: int, longest: int) -> list[int]:
    """As many lengths, in no order, up to the longest."""
    return [max(1, int(longest * RAGGED[each % len(RAGGED)])) for each in range(sequences)]


def lengths() -> Iterator[Lengths]:
    """Batches as a server meets them: decoding, prompts, both at once, and prompts that come in chunks."""
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
            prompts = [1 if each % 2 else max(1, longest // 4) for each in range(sequences)]
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
    each: Lengths, model: Model, page: int, dtype: torch.dtype, tensor_parallel: int = 1
) -> Batch:
    """A batch with random contents, its pages scattered, on the current device.

    Raises:
        ValueError: the heads cannot be shared out.
    """
    if model.query_heads % tensor_parallel or model.kv_heads % min(tensor_parallel, model.kv_heads):
        raise ValueError(
            f"tp={tensor_parallel}: {model.query_heads}/{model.kv_heads} heads cannot be shared out"
        )
    query_heads, kv_heads = (
        model.query_heads // tensor_parallel,
        max(model.kv_heads // tensor_parallel, 1),
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    totals = [new + past for new, past in zip(each.new, each.past, strict=True)]
    pages = [math.ceil(total / page) for total in totals]
    order = torch.randperm(sum(pages), device=device, dtype=torch.int32)
    table = torch.zeros(len(pages), max(pages), dtype=torch.int32, device=device)
    for row, blocks in enumerate(order.split(pages)):
        table[row, : len(blocks)] = blocks
    caches = torch.randn(2, sum(pages), page, kv_heads, model.head_size, device=device, dtype=dtype)
    begins = torch.tensor([0, *each.new]).cumsum(0)
    return checked_batch(
        torch.randn(sum(each.new), query_heads, model.head_size, device=device, dtype=dtype),
        caches[0], caches[1], begins.to(device, torch.int32), torch.tensor(totals, dtype=torch.int32, device=device),
        table, max(each.new), max(totals), None, (model.window, -1), 0.0, None,
        torch.randn(query_heads, device=device) if model.sinks else None, None, None, None,
    )  # fmt: skip


def _wanted(implementation: str, each: Lengths, model: Model) -> bool:
    """Whether an implementation is worth tuning for a batch: what it is made for, and what may compete there."""
    decoding = max(each.new) == 1
    if implementation in ("segmented", "static_grid"):
        return decoding or max(each.past) >= 2048
    if implementation == "hopper":
        return not decoding and model.window < 0 and hopper.available(torch.device("cuda"))
    return implementation != "naive"


LAUNCHES: dict[str, Callable[[Batch], KernelCall]] = {
    "hopper": hopper.launch,
    "segmented": segmented.launch,
    "qblock": qblock.launch,
    "static_grid": static_grid.launch,
    "naive": naive.launch,
}
"""The implementations that are tuned, the ones that `auto` takes most first."""


def kernel_of(implementation: str) -> Any:
    """The tuned kernel of an implementation."""
    if implementation == "hopper":
        from .kernels.hopper_kernel import hopper_kernel

        return hopper_kernel
    return {
        "qblock": qblock.qblock_kernel,
        "segmented": segmented.segment_kernel,
        "static_grid": static_grid.static_grid_kernel,
        "naive": naive.naive_kernel,
    }[implementation]


def cases(
    preset: str = "llama3-8b",
    page: str = "16",
    dtype: str = "bfloat16",
    tp: str = "1",
    only: str = "",
    batches: str = "",
) -> Iterator[Case]:
    """One case per batch and implementation.

    Args:
        preset: a model of `PRESETS`. page: tokens in a block of the cache. dtype: of queries and caches.
        tp: on how many GPUs the model is. only: implementations, with + between them, if not all.
        batches: decode, prefill, mixed or chunked, with + between them, if not all.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset={preset}: choose one of {', '.join(PRESETS)}")
    if only and not set(only.split("+")) <= set(LAUNCHES):
        raise ValueError(f"only={only}: choose from {', '.join(LAUNCHES)}, with + between them")
    model = PRESETS[preset]
    shape = (model, int(page), getattr(torch, dtype), int(tp))
    for implementation in only.split("+") if only else LAUNCHES:
        for each in lengths():
            asked = not batches or each.name.split()[0] in batches.split("+")
            if asked and (only or _wanted(implementation, each, model)):
                yield _case(implementation, each, shape)


_made: list[KernelCall] = []
"""The launch whose arguments were made last: its grid belongs to them, and the one before may be forgotten."""


def _case(implementation: str, each: Lengths, shape: tuple[Model, int, torch.dtype, int]) -> Case:
    def arguments() -> Mapping[str, Any]:
        _made.clear()
        _made.append(LAUNCHES[implementation](batch_of(each, *shape)))
        return _made[0].arguments

    def grid(meta: dict[str, Any]) -> Any:
        made = _made[0].grid
        return made(meta) if callable(made) else made

    return Case(
        name=f"{implementation} {each.name}",
        kernel=kernel_of(implementation),
        grid=grid,
        arguments=arguments,
    )


def for_scenario(kernel: str, scenario: Scenario) -> Case | None:
    """The case of a scenario that programs met; None with a softcap, ALiBi or scales, which no batch here has."""
    implementation = kernel.split(".")[-2].removesuffix("_kernel")
    given, dtypes = scenario.args, scenario.dtypes
    asked = given.get("SOFTCAP") or {"alibi_slopes", "k_scale", "v_scale"} & set(dtypes)
    if implementation not in LAUNCHES or asked or dtypes["q"] != dtypes.get("k_cache", dtypes["q"]):
        return None
    heads, group, head, page, window = (
        int(given.get(name, -1) or 0) for name in ("KV_HEADS", "GROUP", "HEAD", "PAGE", "WINDOW")
    )
    model = Model(heads * group, heads, head, window, "sinks" in dtypes)
    shape = (model, page, getattr(torch, dtypes["q"]), 1)
    for each in _compositions(str(scenario), *(int(given[name] or 0) for name in KEYS[:3])):
        counted = _counted(implementation, each, shape)
        if all(value == BUCKETS.get(name, Exact())(counted[name]) for name, value in given.items()):
            return _case(implementation, each, shape)
    return None


def _compositions(name: str, num_seqs: int, new: int, longest: int) -> Iterator[Lengths]:
    """Batches that may have these sizes in buckets; what a server meets most comes first."""
    for sequences in (num_seqs, 2 * num_seqs - 1):  # some shares need an odd number
        rest = sequences - 1
        past = [
            longest,
            *(
                min(each, max(MOST_TOKENS // sequences, 1))
                for each in ragged(sequences, longest)[1:]
            ),
        ]
        for told in (
            [1] * sequences,  # decoding
            ragged(sequences, longest),  # prompts
            [new] * sequences,  # parts of prompts
            [
                1 if each % 2 else max(2 * new - 1, 2) for each in range(sequences)
            ],  # half of them decoding
            [sequences * (new - 1) + 1, *[1] * rest],  # all but one decoding
            [*[2] * rest, 1],  # one drafted token
        ):
            yield Lengths(
                name, told, [max(total - one, 0) for one, total in zip(told, past, strict=True)]
            )


def _counted(
    implementation: str, each: Lengths, shape: tuple[Model, int, torch.dtype, int]
) -> Mapping[str, Any]:
    """The arguments of a launch whose tensors have no memory."""
    model, page, dtype, _ = shape
    with torch.device("meta"):
        q = torch.empty(sum(each.new), model.query_heads, model.head_size, dtype=dtype)
        cache = torch.empty(1, page, model.kv_heads, model.head_size, dtype=dtype)
        table = torch.empty(len(each.new), 1, dtype=torch.int32)
        longest = max(map(sum, zip(each.new, each.past, strict=True)))
        batch = Batch(
            q, cache, cache, q, table[:, 0], table[:, 0], table, max(each.new), longest,
            1.0, model.window, 0.0, None, None, None, None,
        )  # fmt: skip
        return LAUNCHES["qblock" if implementation == "hopper" else implementation](batch).arguments


suite = Suite(cases=cases, for_scenario=for_scenario)
