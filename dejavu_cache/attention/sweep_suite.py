"""Sweep suite of the attention kernels: typical batches of a server for several models.

Run it with `dejavu-cache sweep dejavu_cache.attention --preset llama3-8b --store URL`. It tunes
what `auto` launches on the GPU that it runs on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from ..model.buckets import Exact
from ..model.scenario import Scenario
from ..sweep.suite import Case, Suite
from ..sweep.suite_options import preset_of, read_names
from ..triton_internals.triton_objects import dtype_name
from ..triton_internals.versions import GLUON_IS_COVERED
from . import dispatch
from .argument_checks import FLOAT8
from .batch import Batch
from .kernels import hopper, naive, qblock, segmented, static_grid
from .kernels.kernel_call import KernelCall
from .search_space import BUCKETS, KEYS
from .sweep_batches import (
    KINDS,
    MOST_TOKENS,
    PRESETS,
    Lengths,
    Model,
    Shape,
    batch_of,
    current_device,
    lengths,
    outline,
    ragged,
)

__all__ = ["LAUNCHES", "auto_choices", "case_of", "kernel_of", "scenario_arguments", "suite"]


def auto_choices(composition: Lengths, shape: Shape) -> set[str]:
    """Return the implementations to which `auto` gives a batch and others of its scenario here.

    A scenario reaches to twice the sequences, tokens and context. Each rule of `choose` has its
    boundary between few and many of them, so that some corner lies on either side.
    """
    return {
        dispatch.choose(outline(corner, shape, current_device()))
        for corner in _corners(composition)
    }


def _corners(composition: Lengths) -> Iterator[Lengths]:
    """Yield a batch, and ones with sequences, new tokens and context at the end of the buckets."""
    new, past, longest = composition.new, composition.past, composition.longest
    count = len(new)
    most_seqs = max(count, 2 * BUCKETS["num_seqs"](count) - 1)
    most_context = max(longest, 2 * BUCKETS["max_context"](longest) - 1)
    for sequences, factor, bound in product((count, most_seqs), (1, 2), (0, most_context)):
        yield Lengths(
            composition.name,
            [factor * (new[index % count] - 1) + 1 for index in range(sequences)],
            [past[index % count] for index in range(sequences)],
            bound,
        )


LAUNCHES: dict[str, Callable[[Batch], KernelCall]] = {
    "hopper": hopper.launch,
    "segmented": segmented.launch,
    "qblock": qblock.launch,
    "static_grid": static_grid.launch,
    "naive": naive.launch,
}
"""Functions that prepare a launch of each implementation that a sweep can run, by its use."""

TUNED = [name for name in LAUNCHES if name not in dispatch.UNTUNED]
"""Those of them with more than one config for a kind of work."""


def kernel_of(implementation: str) -> Any:
    """Return the kernel of an implementation, a key of `LAUNCHES`."""
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
    cache: str = "",
    tp: str = "1",
    only: str = "",
    batches: str = "",
) -> Iterator[Case]:
    """Yield one case per batch and implementation that `auto` launches for it.

    Args:
        preset: a model of `PRESETS`.
        page: tokens in a block of the cache.
        dtype: of the queries.
        cache: dtype of the caches; empty for that of the queries. One of its own has scales.
        tp: number of GPUs that share the model's heads.
        only: implementations to tune for all batches, separated by +; empty for those that `auto`
            launches on this GPU, for the batches of the scenarios in which it does.
        batches: decode, prefill, mixed or chunked, separated by +; empty for all.
    """
    model = preset_of(preset, PRESETS)
    implementations = read_names("only", only, LAUNCHES) if only else TUNED
    if "hopper" in implementations and not GLUON_IS_COVERED:
        raise ValueError(f"only={only}: hopper takes Triton 3.6 to 3.9")
    kinds = read_names("batches", batches, KINDS)
    float8 = [*map(dtype_name, FLOAT8)]
    if cache not in ("", dtype, *float8):
        raise ValueError(f"cache={cache}: choose {dtype} or one of {', '.join(float8)}")
    if cache not in ("", dtype):
        model = replace(model, cache=cache, has_scales=True)
    shape = (model, int(page), getattr(torch, dtype), int(tp))
    selected = [composition for composition in lengths() if composition.name.split()[0] in kinds]
    launched = [() if only else auto_choices(composition, shape) for composition in selected]
    for implementation in implementations:
        for composition, chosen in zip(selected, launched, strict=True):
            if only or implementation in chosen:
                yield case_of(implementation, composition, shape)


_current_call: list[KernelCall] = []
"""The call whose arguments were made last. Only this one is kept, so that memory can be freed."""


def case_of(implementation: str, composition: Lengths, shape: Shape) -> Case:
    """Return the case of an implementation and a batch.

    Args:
        implementation: a key of `LAUNCHES`.
        composition: the sequences' lengths.
        shape: what the batch's tensors are made for.
    """

    def arguments() -> Mapping[str, Any]:
        _current_call.clear()
        _current_call.append(LAUNCHES[implementation](batch_of(composition, *shape)))
        return _current_call[0].arguments

    def grid(meta: dict[str, Any]) -> Any:
        grid = _current_call[0].grid
        return grid(meta) if callable(grid) else grid

    return Case(
        name=f"{implementation} {composition.name}",
        kernel=kernel_of(implementation),
        grid=grid,
        arguments=arguments,
    )


def for_scenario(kernel: str, scenario: Scenario) -> Case | None:
    """Return a case for a missed scenario, or None if no batch of this suite has it."""
    implementation = kernel.split(".")[-2].removesuffix("_kernel")
    if implementation not in LAUNCHES or implementation == "hopper":
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
    shape = (model, page, getattr(torch, dtypes["q"]), 1)
    for composition in _compositions(str(scenario), *(int(args[name] or 0) for name in KEYS[:3])):
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
    everything={"only": "+".join(TUNED)},
    why_empty="auto gives these batches to hopper and few_sequences here, which have one config "
    "for each kind of work; --option only=... tunes others",
)
