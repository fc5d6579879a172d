"""Sweep suite of vLLM's fused experts: the batch sizes of its tables, for several models.

Run it on the GPU that serves, with the vLLM that serves, and write the tables:

    dejavu-cache sweep dejavu_cache.engines.vllm.fused_moe_suite --preset qwen3-30b-a3b
    dejavu-cache export --vllm FOLDER
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ...sweep.suite import Case, Suite
from ...sweep.suite_options import preset_of, read_numbers
from .fused_moe import ExpertLayer, experts_kernel, make_arguments

__all__ = ["PRESETS", "SIZES", "suite"]

SIZES = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256),
    *(512, 1024, 1536, 2048, 3072, 4096),
)
"""Tokens of the batches in the tables that ship with vLLM."""

PRESETS = {
    "mixtral-8x7b": ExpertLayer(8, 14336, 4096, 2),
    "qwen3-30b-a3b": ExpertLayer(128, 768, 2048, 8),
    "qwen3-30b-a3b-fp8": ExpertLayer(128, 768, 2048, 8, "fp8_w8a8", 128),
    "deepseek-v3": ExpertLayer(256, 2048, 7168, 8, "fp8_w8a8", 128),
    "experts-256x128-fp8": ExpertLayer(256, 128, 7168, 8, "fp8_w8a8"),
}
"""Layers of models on one GPU; `tp` divides their intermediate features."""


def cases(
    preset: str = "",
    experts: str = "0",
    intermediate: str = "0",
    hidden: str = "0",
    top_k: str = "8",
    dtype: str = "bfloat16",
    block: str = "0",
    tp: str = "1",
    sizes: str = "",
) -> Iterator[Case]:
    """Yield one case per batch size of a layer.

    Args:
        preset: a layer of `PRESETS`; else the following describe it.
        experts: number of experts.
        intermediate: features between the two products, before tensor parallelism.
        hidden: features of a token.
        top_k: experts of a token.
        dtype: `bfloat16`, `float16` or `fp8_w8a8`.
        block: edge of the blocks that share a scale; 0 for one scale per expert.
        tp: number of GPUs that share the intermediate features.
        sizes: numbers of tokens, separated by +; empty for those of vLLM's tables.
    """
    described = (int(experts), int(intermediate), int(hidden), int(top_k), dtype, int(block))
    layer = preset_of(preset, PRESETS) if preset else ExpertLayer(*described)
    yield from layer_cases(layer.on_each_of(int(tp)), read_numbers(sizes, SIZES))


def layer_cases(layer: ExpertLayer, sizes: tuple[int, ...] = SIZES) -> Iterator[Case]:
    """Yield the cases of a layer, the largest batch first: it compiles what others need too."""
    kernel = experts_kernel(layer, sizes)
    for tokens in sorted(sizes, reverse=True):
        yield Case(f"{layer} x {tokens}", kernel, (1,), partial(make_arguments, layer, tokens))


suite = Suite(cases=cases)
