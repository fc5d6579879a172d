"""vLLM's block-scaled float8 product as an operation to tune, with the engine's own code.

The weights of a linear layer have one scale for each block, and a token's features one for each
group. What may win is what any of the engine's own tables of the same blocks and GPU family has for
a batch of that size, and a small grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, product
from pathlib import Path
from typing import Any

import torch

from ...integrations.table_names import format_labels
from ...runtime.cached_autotuner import CachedAutotuner
from ..operation import EngineOperation, replaced_global
from ..sized_kernel import HOPPER_SHARED_MEMORY, distinct_configs, sized_kernel
from .shipped_tables import shipped_configs

__all__ = [
    "KEYS",
    "BlockProduct",
    "engine_config",
    "make_arguments",
    "product_kernel",
    "run_product",
]

KEYS = ("M", "N", "K", "group_n", "group_k")
"""Key arguments; they have the names of an imported table's."""

INPUTS = ("A", "B", "As", "Bs")
PARAMS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")

KERNEL = "_w8a8_triton_block_scaled_mm"
LOADER = "get_w8a8_block_fp8_configs"
"""The engine's function that reads a table."""


@dataclass(frozen=True)
class BlockProduct:
    """Shape of a linear layer on one GPU.

    Attributes:
        outputs: features that it makes of a token.
        inputs: features of a token.
        divided: `outputs` or `inputs`, which several GPUs would share, or empty for neither.
        block: edge of the blocks that share a scale.
    """

    outputs: int
    inputs: int
    divided: str = ""
    block: int = 128

    def __post_init__(self) -> None:
        """Check the shape.

        Raises:
            ValueError: a size is missing, or `divided` is not a size.
        """
        if min(self.outputs, self.inputs, self.block) < 1:
            raise ValueError("name a preset, or outputs, inputs and block above 0")
        if self.divided not in ("", "outputs", "inputs"):
            raise ValueError(f"divided={self.divided}: choose outputs or inputs")

    def __str__(self) -> str:
        """Return the layer's name in a sweep."""
        return f"N={self.outputs} K={self.inputs} fp8_w8a8 by {self.block}"

    def on_each_of(self, gpus: int) -> BlockProduct:
        """Return the share of one of several GPUs.

        Raises:
            ValueError: the features cannot be divided.
        """
        if gpus < 1:
            raise ValueError(f"tp={gpus}: give a number of GPUs")
        if not self.divided:
            return self
        features = getattr(self, self.divided)
        if features % gpus:
            raise ValueError(f"tp={gpus}: {features} {self.divided} cannot be divided")
        return replace(self, **{self.divided: features // gpus, "divided": ""})

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the engine's table, without the device."""
        blocks = f"[{self.block},{self.block}]"
        sizes = {"N": str(self.outputs), "K": str(self.inputs)}
        return {**sizes, "dtype": "fp8_w8a8", "block_shape": blocks}

    def key(self, tokens: int) -> dict[str, int]:
        """Return the key arguments for a batch."""
        values = (tokens, self.outputs, self.inputs, self.block, self.block)
        return dict(zip(KEYS, values, strict=True))


def engine_config(layer: BlockProduct, tokens: int) -> dict[str, int]:
    """Return the config that the engine takes for a batch: its table's or its default.

    The engine's own launch is followed up to the kernel, with tensors that have no memory.
    """
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    kernel = _ConfigListener()
    with replaced_global(fp8_utils, KERNEL, kernel):
        _launch(_tensors(layer, tokens, _empty_on_meta), layer.block)
    return kernel.config


class _ConfigListener:
    """A kernel that notes the config of a launch and does not run."""

    def __init__(self) -> None:
        self.config: dict[str, int] = {}

    def __getitem__(self, grid: object) -> Any:
        def launch(*_: Any, **config: int) -> None:
            self.config = config

        return launch


def _empty_on_meta(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def make_arguments(layer: BlockProduct, tokens: int, seed: int = 1) -> dict[str, Any]:
    """Return the operation's arguments for a batch of random tokens on the current device."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(seed)

    def draw(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if dtype == torch.float32:  # scales
            return torch.rand(shape, device=device, generator=generator) + 0.5
        return (torch.randn(shape, device=device, generator=generator) / 8).to(dtype)

    tensors = _tensors(layer, tokens, draw)
    out = torch.zeros(tokens, layer.outputs, dtype=torch.bfloat16, device=device)
    return {**tensors, "out": out, **layer.key(tokens)}


def _tensors(layer: BlockProduct, tokens: int, make: Any) -> dict[str, torch.Tensor]:
    rows, columns = (-(-size // layer.block) for size in (layer.outputs, layer.inputs))
    return {
        "A": make((tokens, layer.inputs), torch.float8_e4m3fn),
        "B": make((layer.outputs, layer.inputs), torch.float8_e4m3fn),
        "As": make((tokens, columns), torch.float32),
        "Bs": make((rows, columns), torch.float32),
    }


def run_product(arguments: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Run the engine's product on arguments of `make_arguments` with a config.

    Raises:
        RuntimeError: the engine does not ask for a config.
    """
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    is_asked = False

    def load(*_: int) -> dict[int, dict[str, Any]]:
        nonlocal is_asked
        is_asked = True
        return {arguments["M"]: dict(config)}

    with replaced_global(fp8_utils, LOADER, load):
        result = _launch(arguments, arguments["group_n"])
    if not is_asked:
        raise RuntimeError("vLLM takes no tuned config here: unset VLLM_BATCH_INVARIANT")
    if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        arguments["out"].copy_(result)  # where results are compared; graphs are only timed


def _launch(tensors: Mapping[str, Any], block: int) -> torch.Tensor:
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    operands = [tensors[name] for name in INPUTS]
    result: torch.Tensor = fp8_utils.w8a8_triton_block_scaled_mm(
        *operands, [block, block], torch.bfloat16
    )
    return result


@cache
def product_kernel(layer: BlockProduct, sizes: tuple[int, ...]) -> CachedAutotuner:
    """Return the operation as a kernel whose configs are those of a layer's batches.

    Args:
        layer: the layer.
        sizes: the batches' numbers of tokens.
    """
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    names = (*INPUTS, "out", *KEYS, *PARAMS)
    operation = EngineOperation(fp8_utils, KERNEL, names, run_product)
    by_size = {tokens: list(_candidates(layer, tokens)) for tokens in sizes}
    return sized_kernel(operation, KEYS, "M", by_size, INPUTS)


def _candidates(layer: BlockProduct, tokens: int) -> Iterator[Any]:
    """Yield the configs for a batch, the most promising ones first, each once.

    One step of the kernel has one scale, so that its depth must divide the block.
    """
    entries = chain(
        [engine_config(layer, tokens)],
        _table_configs(layer, tokens),
        _grid_configs(layer, tokens),
    )
    yield from distinct_configs(
        entry for entry in entries if layer.block % entry["BLOCK_SIZE_K"] == 0
    )


def _table_configs(layer: BlockProduct, tokens: int) -> Iterator[dict[str, int]]:
    """Yield what the engine's tables for such blocks on such GPUs have for a batch."""
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    device = fp8_utils.current_platform.get_device_name().replace(" ", "_")
    own = format_labels({**layer.labels, "device_name": device})
    yield from shipped_configs(Path(fp8_utils.__file__).with_name("configs"), own, tokens)


def _grid_configs(layer: BlockProduct, tokens: int) -> Iterator[dict[str, int]]:
    """Yield a grid of configs around the number of tokens; float8 has one byte."""
    rows = (16,) if tokens <= 16 else (16, 32, 64) if tokens <= 64 else (64, 128)
    stages = (4, 5) if tokens <= 64 else (3, 4)
    groups = (1,) if tokens <= 64 else (1, 16)
    for m, n, stage, group in product(rows, (32, 64, 128), stages, groups):
        if (m + n) * layer.block * stage <= HOPPER_SHARED_MEMORY:
            yield {
                "BLOCK_SIZE_M": m,
                "BLOCK_SIZE_N": n,
                "BLOCK_SIZE_K": layer.block,
                "GROUP_SIZE_M": group,
                "num_warps": 8 if m * n >= 128 * 128 else 4,
                "num_stages": stage,
            }
