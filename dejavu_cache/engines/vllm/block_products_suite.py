"""Sweep suite of vLLM's block-scaled float8 products: its tables' batches, for several models.

Run it on the GPU that serves, with the vLLM that serves, and write the tables:

    dejavu-cache sweep dejavu_cache.engines.vllm.block_products_suite --preset qwen3-8b-fp8
    dejavu-cache export --vllm FOLDER

vLLM reads these tables from its own package alone, from the folder `configs` beside `fp8_utils.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ...sweep.suite import Case, Suite
from ...sweep.suite_options import preset_of, read_numbers
from ..batch_cases import batch_cases
from .block_products import BlockProduct, make_arguments, product_kernel
from .fused_moe_suite import SIZES

__all__ = ["PRESETS", "suite"]

PRESETS = {
    "qwen3-8b-fp8": (
        BlockProduct(6144, 4096, "outputs"),
        BlockProduct(4096, 4096, "inputs"),
        BlockProduct(24576, 4096, "outputs"),
        BlockProduct(4096, 12288, "inputs"),
    ),
    "qwen3-30b-a3b-fp8": (
        BlockProduct(5120, 2048, "outputs"),
        BlockProduct(2048, 4096, "inputs"),
    ),
    "deepseek-v3": (
        BlockProduct(2112, 7168),
        BlockProduct(24576, 1536, "outputs"),
        BlockProduct(32768, 512, "outputs"),
        BlockProduct(7168, 16384, "inputs"),
        BlockProduct(36864, 7168, "outputs"),
        BlockProduct(7168, 18432, "inputs"),
        BlockProduct(4096, 7168, "outputs"),
        BlockProduct(7168, 2048, "inputs"),
    ),
}
"""Linear layers of models; `tp` divides their outputs or inputs."""


def cases(
    preset: str = "",
    outputs: str = "0",
    inputs: str = "0",
    divided: str = "",
    block: str = "128",
    tp: str = "1",
    sizes: str = "",
) -> Iterator[Case]:
    """Yield one case per batch size of each layer.

    Args:
        preset: layers of `PRESETS`; else the following describe one.
        outputs: features that it makes of a token, before tensor parallelism.
        inputs: features of a token, before tensor parallelism.
        divided: `outputs` or `inputs`, which the GPUs share.
        block: edge of the blocks that share a scale.
        tp: number of GPUs that share the layers.
        sizes: numbers of tokens, separated by +; empty for those of vLLM's tables.
    """
    if preset:
        layers: tuple[BlockProduct, ...] = preset_of(preset, PRESETS)
    else:
        layers = (BlockProduct(int(outputs), int(inputs), divided, int(block)),)
    batches = read_numbers(sizes, SIZES)
    for layer in dict.fromkeys(layer.on_each_of(int(tp)) for layer in layers):
        yield from layer_cases(layer, batches)


def layer_cases(layer: BlockProduct, sizes: tuple[int, ...] = SIZES) -> Iterator[Case]:
    """Yield the cases of a layer."""
    kernel = product_kernel(layer, sizes)
    yield from batch_cases(
        kernel, sizes, lambda tokens: f"{layer} x {tokens}", partial(make_arguments, layer)
    )


suite = Suite(cases=cases)
