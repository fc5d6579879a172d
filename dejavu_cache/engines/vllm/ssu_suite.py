"""Sweep suite of vLLM's selective state update (SSU) of Mamba 2: batches of several models.

Run it on the GPU that serves, with the vLLM that serves, and write the tables:

    dejavu-cache sweep dejavu_cache.engines.vllm.ssu_suite --preset nemotron-h-8b
    dejavu-cache export --vllm FOLDER
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ...sweep.suite import Case, Suite
from ...sweep.suite_options import preset_of, read_numbers
from ..batch_cases import batch_cases
from .ssu import MambaLayer, make_arguments, update_kernel

__all__ = ["PRESETS", "SIZES", "suite"]

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Sequences of the batches; vLLM takes the nearest one of a table."""

PRESETS = {
    "mamba2-2.7b": MambaLayer(80, 64, 128),
    "codestral-mamba-7b": MambaLayer(128, 64, 128, 8),
    "nemotron-h-8b": MambaLayer(128, 64, 128, 8),
    "nemotron-3-nano": MambaLayer(64, 64, 128, 8),
    "zamba2-2.7b": MambaLayer(80, 64, 64),
    "falcon-h1-1.5b": MambaLayer(48, 64, 256),
}
"""Layers of models; `tp` divides their heads and groups."""


def cases(
    preset: str = "",
    heads: str = "0",
    headdim: str = "0",
    dstate: str = "0",
    groups: str = "1",
    dtype: str = "bfloat16",
    cache: str = "float32",
    tp: str = "1",
    sizes: str = "",
) -> Iterator[Case]:
    """Yield one case per batch size of a layer.

    Args:
        preset: a layer of `PRESETS`; else the following four describe it.
        heads: number of heads, before tensor parallelism.
        headdim: features of a head.
        dstate: numbers of the state that each feature has.
        groups: number of groups of heads that share B and C, before tensor parallelism.
        dtype: of the features, `bfloat16` or `float16`.
        cache: dtype of the states, the engine's `--mamba-ssm-cache-dtype`.
        tp: number of GPUs that share the layer.
        sizes: numbers of sequences, separated by +.
    """
    described = (int(heads), int(headdim), int(dstate), int(groups))
    layer = preset_of(preset, PRESETS) if preset else MambaLayer(*described)
    cached = replace(layer, dtype=dtype, cache_dtype=cache)
    yield from layer_cases(cached.on_each_of(int(tp)), read_numbers(sizes, SIZES))


def layer_cases(layer: MambaLayer, sizes: tuple[int, ...] = SIZES) -> Iterator[Case]:
    """Yield the cases of a layer."""
    kernel = update_kernel(layer, sizes)
    yield from batch_cases(
        kernel, sizes, lambda sequences: f"{layer} x {sequences}", partial(make_arguments, layer)
    )


suite = Suite(cases=cases)
