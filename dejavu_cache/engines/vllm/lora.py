"""vLLM's products of LoRA as operations to tune, with the engine's own code.

A layer with adapters shrinks a token's features to the adapter's rank, and expands those to the
outputs of each of its slices. What may win is the engine's own config and a grid: vLLM ships no
tables for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import chain, product
from types import ModuleType
from typing import Any

import torch
import triton

from ...integrations.lora_tables import LORA_KERNELS
from ...runtime.cached_autotuner import CachedAutotuner
from ..operation import EngineOperation, replaced_global
from ..sized_kernel import distinct_configs, sized_kernel

__all__ = [
    "KEYS",
    "OPERATIONS",
    "LoraLayer",
    "engine_config",
    "lora_kernel",
    "make_arguments",
    "run_lora",
]

OPERATIONS = ("shrink", "expand_true", "expand_false")
"""Operations of a layer; `expand` says whether it adds to what the layer made."""

KEYS = ("operation", "max_loras", "num_slices", "m", "k", "n")
"""Key arguments; they have the names of an imported table's."""

TENSORS = ("inputs", "out", "weights", "tokens")
PARAMS = ("block_m", "block_n", "block_k", "split_k", "group_size_m")

LOADER = "get_lora_op_configs"
"""The engine's function that looks a config up."""


@dataclass(frozen=True)
class LoraLayer:
    """Shape of a linear layer with adapters on one GPU.

    Attributes:
        inputs: features of a token.
        outputs: features that each slice makes of a token, such as those of Q, K and V.
        divided: `outputs` or `inputs`, which several GPUs would share, or empty for neither.
        rank: of the adapters.
        adapters: most adapters of a batch, the engine's `--max-loras`.
        dtype: `bfloat16` or `float16`, which tables do not tell apart.
    """

    inputs: int
    outputs: tuple[int, ...]
    divided: str = ""
    rank: int = 16
    adapters: int = 1
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        """Check the shape.

        Raises:
            ValueError: a size is missing, or `divided` or `dtype` has another value.
        """
        if min(self.inputs, self.rank, self.adapters, *self.outputs, len(self.outputs)) < 1:
            raise ValueError("name a preset, or inputs and outputs; rank and adapters are above 0")
        if self.divided not in ("", "outputs", "inputs"):
            raise ValueError(f"divided={self.divided}: choose outputs or inputs")
        if self.dtype not in ("bfloat16", "float16"):
            raise ValueError(f"dtype={self.dtype}: choose bfloat16 or float16")

    def on_each_of(self, gpus: int) -> LoraLayer:
        """Return the share of one of several GPUs.

        Raises:
            ValueError: the features cannot be divided.
        """
        features = {"inputs": (self.inputs,), "outputs": self.outputs}.get(self.divided, ())
        if gpus < 1 or any(size % gpus for size in features):
            raise ValueError(f"tp={gpus}: {self.divided or 'features'} cannot be divided")
        shares = tuple(size // gpus for size in features)
        if self.divided == "inputs":
            return replace(self, inputs=shares[0], divided="")
        return replace(self, outputs=shares or self.outputs, divided="")

    def key(self, operation: str, tokens: int) -> dict[str, Any]:
        """Return the key arguments of an operation; the engine counts one adapter more."""
        sizes = (
            (self.inputs, self.rank) if operation == "shrink" else (self.rank, max(self.outputs))
        )
        values = (operation, self.adapters + 1, len(self.outputs), tokens, *sizes)
        return dict(zip(KEYS, values, strict=True))


def engine_config(layer: LoraLayer, operation: str, tokens: int) -> dict[str, Any]:
    """Return the config that the engine takes for a batch: its table's or its default."""
    from vllm.lora.ops.triton_ops.utils import get_lora_op_configs

    return dict(
        get_lora_op_configs(
            operation.partition("_")[0],
            max_loras=layer.adapters + 1,
            batch=tokens,
            hidden_size=layer.inputs if operation == "shrink" else max(layer.outputs),
            rank=layer.rank,
            num_slices=len(layer.outputs),
            add_inputs={"expand_true": True, "expand_false": False}.get(operation),
        )
    )


def make_arguments(layer: LoraLayer, operation: str, tokens: int, seed: int = 1) -> dict[str, Any]:
    """Return an operation's arguments for a batch of random tokens on the current device.

    Any adapter may be a token's.
    """
    from vllm.lora.ops.triton_ops import utils
    from vllm.lora.ops.triton_ops.lora_kernel_metadata import LoRAKernelMeta

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(seed)

    def draw(*shape: int, dtype: str = layer.dtype) -> torch.Tensor:
        numbers = torch.randn(shape, device=device, generator=generator) / 8
        return numbers.to(getattr(torch, dtype))

    is_shrink = operation == "shrink"
    count, rank = len(layer.outputs), layer.rank
    shapes = [(rank, layer.inputs)] * count if is_shrink else [(n, rank) for n in layer.outputs]
    weights = tuple(draw(layer.adapters, 1, *shape) for shape in shapes)
    small = draw(count, tokens, rank, dtype="float32")
    large = draw(tokens, layer.inputs if is_shrink else sum(layer.outputs))
    adapters = torch.randint(layer.adapters, (tokens,), device=device, generator=generator)
    meta = LoRAKernelMeta.make(layer.adapters, tokens, device)
    meta.prepare_tensors(adapters.to(torch.int32))
    for addresses in (utils._LORA_A_PTR_DICT, utils._LORA_B_PTR_DICT):
        addresses.clear()  # weights of another shape may have had the addresses of these
    return {
        "inputs": large if is_shrink else small,
        "out": small if is_shrink else large,
        "weights": weights,
        "tokens": meta.meta_args(tokens, specialize_active_lora=False),
        **layer.key(operation, tokens),
    }


def run_lora(arguments: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Run an operation of the engine on arguments of `make_arguments` with a config.

    Raises:
        RuntimeError: the engine would not take a tuned config.
    """
    from vllm.lora.ops.triton_ops.utils import is_batch_invariant

    if is_batch_invariant:
        raise RuntimeError("vLLM takes no tuned config here: unset VLLM_BATCH_INVARIANT")
    operation = arguments["operation"]
    module = _module(operation)
    tensors = (arguments["inputs"], list(arguments["weights"]), arguments["out"])
    with replaced_global(module, LOADER, lambda *_, **__: dict(config)):
        if operation == "shrink":
            module._lora_shrink(*tensors, *arguments["tokens"], 1.0)
        else:
            adds = operation == "expand_true"
            module._lora_expand(*tensors, *arguments["tokens"], add_inputs=adds)


def _module(operation: str) -> ModuleType:
    step = operation.partition("_")[0]
    return import_module(f"vllm.lora.ops.triton_ops.lora_{step}_op")


@cache
def lora_kernel(layer: LoraLayer, operation: str, sizes: tuple[int, ...]) -> CachedAutotuner:
    """Return an operation as a kernel whose configs are those of a layer's batches.

    Args:
        layer: the layer.
        operation: one of `OPERATIONS`.
        sizes: the batches' numbers of tokens.
    """
    names = (*TENSORS, *KEYS, *PARAMS)
    launches = EngineOperation(_module(operation), LORA_KERNELS[operation], names, run_lora)
    by_size = {tokens: list(_candidates(layer, operation, tokens)) for tokens in sizes}
    return sized_kernel(launches, KEYS, "m", by_size, ("inputs",), repeatable=False)


def _candidates(layer: LoraLayer, operation: str, tokens: int) -> Iterator[Any]:
    """Yield the configs for a batch, the most promising ones first, each once."""
    grid = _shrink_configs if operation == "shrink" else _expand_configs
    entries = chain([engine_config(layer, operation, tokens)], grid(layer, tokens))
    yield from distinct_configs(entries, left_out=("num_ctas", "max_nreg"))


def _shrink_configs(layer: LoraLayer, tokens: int) -> Iterator[dict[str, int]]:
    """Yield a grid of configs; small batches split the features among more programs."""
    rows = (16, 32) if tokens <= 64 else (32, 64)
    splits = (8, 16, 32, 64) if tokens <= 64 else (1, 4, 8)
    widths = {16, min(64, max(16, triton.next_power_of_2(layer.rank)))}
    for m, n, k, split, stages in product(rows, sorted(widths), (64, 128, 256), splits, (2, 3)):
        yield {
            "block_m": m,
            "block_n": n,
            "block_k": k,
            "split_k": split,
            "group_size_m": 8,
            "num_warps": 4,
            "num_stages": stages,
        }


def _expand_configs(layer: LoraLayer, tokens: int) -> Iterator[dict[str, int]]:
    """Yield a grid of configs; the rank is mostly done in one step."""
    rows = (16, 32) if tokens <= 64 else (32, 64, 128)
    depth = min(64, max(16, triton.next_power_of_2(layer.rank)))
    for m, n, warps, stages in product(rows, (64, 128, 256), (4, 8), (1, 2)):
        yield {
            "block_m": m,
            "block_n": n,
            "block_k": depth,
            "num_warps": warps,
            "num_stages": stages,
        }
