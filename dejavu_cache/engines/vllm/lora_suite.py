"""Sweep suite of vLLM's products of LoRA: batches of all linear layers of several models.

Run it on the GPU that serves, with the vLLM that serves, and write the tables:

    dejavu-cache sweep dejavu_cache.engines.vllm.lora_suite --preset llama3-8b --option rank=16
    dejavu-cache export --vllm FOLDER
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ...sweep.suite import Case, Suite
from ...sweep.suite_options import preset_of, read_names, read_numbers
from ..batch_cases import batch_cases
from .lora import OPERATIONS, LoraLayer, lora_kernel, make_arguments

__all__ = ["PRESETS", "SIZES", "suite"]

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Tokens of the batches; vLLM takes the nearest one of a table."""

PRESETS = {
    "llama3-8b": (
        LoraLayer(4096, (4096, 1024, 1024), "outputs"),
        LoraLayer(4096, (4096,), "inputs"),
        LoraLayer(4096, (14336, 14336), "outputs"),
        LoraLayer(14336, (4096,), "inputs"),
    ),
    "qwen3-8b": (
        LoraLayer(4096, (4096, 1024, 1024), "outputs"),
        LoraLayer(4096, (4096,), "inputs"),
        LoraLayer(4096, (12288, 12288), "outputs"),
        LoraLayer(12288, (4096,), "inputs"),
    ),
}
"""Linear layers of models; `tp` divides their outputs or inputs."""


def cases(
    preset: str = "",
    inputs: str = "0",
    outputs: str = "",
    divided: str = "",
    rank: str = "16",
    adapters: str = "1",
    dtype: str = "bfloat16",
    tp: str = "1",
    operations: str = "shrink+expand_true",
    sizes: str = "",
) -> Iterator[Case]:
    """Yield one case per batch size and operation of each layer.

    Args:
        preset: layers of `PRESETS`; else the following three describe one.
        inputs: features of a token, before tensor parallelism.
        outputs: features that each slice makes of a token, separated by +.
        divided: `outputs` or `inputs`, which the GPUs share.
        rank: of the adapters, the engine's `--max-lora-rank`.
        adapters: most adapters of a batch, the engine's `--max-loras`.
        dtype: `bfloat16` or `float16`, the engine's `--lora-dtype`.
        tp: number of GPUs that share the layers.
        operations: those of `OPERATIONS` to tune, separated by +.
        sizes: numbers of tokens, separated by +.
    """
    chosen = tuple(read_names("operations", operations, OPERATIONS))
    if preset:
        layers: tuple[LoraLayer, ...] = preset_of(preset, PRESETS)
    else:
        layers = (LoraLayer(int(inputs), read_numbers(outputs, ()), divided),)
    batches = read_numbers(sizes, SIZES)
    names = set()
    for layer in layers:
        adapted = replace(layer, rank=int(rank), adapters=int(adapters), dtype=dtype)
        for case in layer_cases(adapted.on_each_of(int(tp)), chosen, batches):
            if case.name not in names:
                names.add(case.name)
                yield case


def layer_cases(
    layer: LoraLayer, operations: tuple[str, ...], sizes: tuple[int, ...] = SIZES
) -> Iterator[Case]:
    """Yield the cases of a layer's operations."""
    for operation in operations:
        kernel = lora_kernel(layer, operation, sizes)
        yield from batch_cases(
            kernel,
            sizes,
            partial(_name_case, layer, operation),
            partial(make_arguments, layer, operation),
        )


def _name_case(layer: LoraLayer, operation: str, tokens: int) -> str:
    """Return what tells a case from those of other layers: layers of one shape share it."""
    return " ".join(f"{name}={value}" for name, value in layer.key(operation, tokens).items())


suite = Suite(cases=cases)
