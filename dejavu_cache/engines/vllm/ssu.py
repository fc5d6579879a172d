"""vLLM's selective state update (SSU) of Mamba 2 as an operation to tune, by the engine's own code.

A step of decoding advances the state of each sequence in each head. A table of vLLM's is for a
shape of the heads and a dtype of the states, and has a line for a number of sequences times heads:
models whose heads have one shape share it. What may win is the engine's own config and a grid,
small enough to be measured completely.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, product
from types import ModuleType
from typing import Any

import torch
import triton

from ...integrations.table_names import STATE_UPDATE
from ...runtime.cached_autotuner import CachedAutotuner
from ..operation import EngineOperation, replaced_global
from ..sized_kernel import distinct_configs, sized_kernel

__all__ = [
    "KEYS",
    "MambaLayer",
    "engine_config",
    "make_arguments",
    "run_update",
    "update_kernel",
]

KEYS = ("effective_batch", "dim", "dstate", "cache_dtype")
"""Key arguments; they have the names of an imported table's."""

OPERANDS = ("state", "x", "dt", "A", "B", "C", "D", "dt_bias")
"""Tensors by the engine's names, in the order in which it takes them."""

INPUTS = (*OPERANDS[1:], "blocks")
"""Tensors that the operation does not write."""

LOOKUP = "try_get_optimal_ssm_config"
"""The engine's function that looks a config up."""


@dataclass(frozen=True)
class MambaLayer:
    """Shape of a layer of Mamba 2 on one GPU.

    Attributes:
        heads: number of heads.
        headdim: features of a head.
        dstate: numbers of the state that each feature has.
        groups: number of groups of heads that share B and C.
        dtype: of the features, `bfloat16` or `float16`.
        cache_dtype: of the states, `float32`, `bfloat16` or `float16`.
    """

    heads: int
    headdim: int
    dstate: int
    groups: int = 1
    dtype: str = "bfloat16"
    cache_dtype: str = "float32"

    def __post_init__(self) -> None:
        """Check the shape.

        Raises:
            ValueError: a size is missing, the groups do not divide the heads, or a dtype is none
                of the engine's.
        """
        if min(self.heads, self.headdim, self.dstate, self.groups) < 1:
            raise ValueError("name a preset, or heads, headdim, dstate and groups above 0")
        if self.heads % self.groups:
            raise ValueError(f"groups={self.groups}: they do not divide {self.heads} heads")
        if self.dtype not in ("bfloat16", "float16"):
            raise ValueError(f"dtype={self.dtype}: choose bfloat16 or float16")
        if self.cache_dtype not in ("float32", "bfloat16", "float16"):
            raise ValueError(f"cache={self.cache_dtype}: choose float32, bfloat16 or float16")

    def __str__(self) -> str:
        """Return the layer's name in a sweep."""
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        shape = f"{self.heads} heads{groups} of {self.headdim} x {self.dstate}"
        return f"{shape}, {self.cache_dtype} states, {self.dtype}"

    def on_each_of(self, gpus: int) -> MambaLayer:
        """Return the share of one of several GPUs; a single group is on each of them.

        Raises:
            ValueError: the heads or several groups cannot be divided.
        """
        if gpus < 1 or self.heads % gpus or (self.groups > 1 and self.groups % gpus):
            raise ValueError(f"tp={gpus}: {self} cannot be divided")
        return replace(self, heads=self.heads // gpus, groups=max(self.groups // gpus, 1))

    def key(self, sequences: int) -> dict[str, Any]:
        """Return the key arguments for a batch; a table is for both 16-bit dtypes."""
        is_wide = self.cache_dtype == "float32"
        dtype = "float32" if is_wide else "float16"
        values = (sequences * self.heads, self.headdim, self.dstate, dtype)
        return dict(zip(KEYS, values, strict=True))


def _engine() -> ModuleType:
    """Return the engine's module.

    Raises:
        RuntimeError: the engine is of a version that reads no tables for this operation.
    """
    import vllm
    from vllm.model_executor.layers.mamba.ops import mamba_ssm

    if not hasattr(mamba_ssm, LOOKUP):
        raise RuntimeError(
            f"vLLM {vllm.__version__} reads no tuned tables of Mamba's state update: take 0.22 or "
            "a later version"
        )
    module: ModuleType = mamba_ssm
    return module


def engine_config(layer: MambaLayer, sequences: int) -> dict[str, int]:
    """Return the config that the engine takes for a batch: its table's or its default.

    Raises:
        RuntimeError: the engine reads no tables for this operation.
    """
    engine = _engine()
    block, warps = getattr(engine, LOOKUP)(
        layer.headdim,
        layer.dstate,
        sequences,
        layer.heads,
        layer.cache_dtype,
        engine.current_platform.is_device_capability_family(100),
    )
    return {"BLOCK_SIZE_M": block, "num_warps": warps}


def make_arguments(layer: MambaLayer, sequences: int, seed: int = 1) -> dict[str, Any]:
    """Return the operation's arguments for a batch of random sequences on the current device.

    The tensors are parts of others and repeat along dimensions as the engine's do; the states lie
    in blocks of a cache in any order.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(seed)

    def draw(*shape: int, dtype: str = layer.dtype) -> torch.Tensor:
        numbers = torch.randn(shape, device=device, generator=generator).div_(8)
        return numbers.to(getattr(torch, dtype))

    heads, headdim, dstate = layer.heads, layer.headdim, layer.dstate
    features, coefficients = heads * headdim, layer.groups * dstate
    parts = (features, features, coefficients, coefficients, heads)
    _gate, x, b, c, dt = draw(sequences, sum(parts)).split(parts, dim=1)
    decay, skip, bias = draw(heads, dtype="float32").exp().neg(), draw(heads), draw(heads)
    order = torch.randperm(sequences, device=device, generator=generator, dtype=torch.int32)
    return {
        "state": draw(sequences + 1, heads, headdim, dstate, dtype=layer.cache_dtype),
        "x": x.unflatten(1, (heads, headdim)),
        "dt": dt[:, :, None].expand(-1, -1, headdim),
        "A": decay[:, None, None].expand(-1, headdim, dstate),
        "B": b.unflatten(1, (layer.groups, dstate)),
        "C": c.unflatten(1, (layer.groups, dstate)),
        "D": skip[:, None].expand(-1, headdim),
        "dt_bias": bias[:, None].expand(-1, headdim),
        "blocks": order + 1,  # the engine's block 0 stands for sequences that pad a batch
        "out": draw(sequences, heads, headdim),
        **layer.key(sequences),
    }


def run_update(arguments: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Run the engine's update on arguments of `make_arguments` with a config.

    Raises:
        RuntimeError: the engine does not ask for a config.
    """
    engine = _engine()
    chosen = (config["BLOCK_SIZE_M"], config["num_warps"])
    is_asked = False

    def look_up(*_: Any) -> tuple[int, int]:
        nonlocal is_asked
        is_asked = True
        return chosen

    with replaced_global(engine, LOOKUP, look_up):
        engine.selective_state_update(
            *(arguments[name] for name in OPERANDS),
            dt_softplus=True,
            state_batch_indices=arguments["blocks"],
            dst_state_batch_indices=arguments["blocks"],
            out=arguments["out"],
        )
    if not is_asked:
        raise RuntimeError("vLLM takes no tuned config here: tune where it runs this Triton kernel")


@cache
def update_kernel(layer: MambaLayer, sizes: tuple[int, ...]) -> CachedAutotuner:
    """Return the operation as a kernel whose configs are those of a layer's batches.

    Args:
        layer: the layer.
        sizes: the batches' numbers of sequences.

    Raises:
        RuntimeError: the engine reads no tables for this operation.
    """
    names = (*OPERANDS, "blocks", "out", *KEYS, "BLOCK_SIZE_M")
    operation = EngineOperation(_engine(), STATE_UPDATE, names, run_update)
    by_size = {n * layer.heads: list(_candidates(layer, n)) for n in sizes}
    return sized_kernel(operation, KEYS, KEYS[0], by_size, INPUTS)


def _candidates(layer: MambaLayer, sequences: int) -> Iterator[Any]:
    """Yield the configs for a batch, the engine's own first, each once."""
    entries = chain([engine_config(layer, sequences)], _grid_configs(layer))
    yield from distinct_configs(entries)


def _grid_configs(layer: MambaLayer) -> Iterator[dict[str, int]]:
    """Yield a grid of configs; a larger block than a head has features would compute nothing."""
    largest = max(4, triton.next_power_of_2(layer.headdim))
    blocks = [size for size in (4, 8, 16, 32, 64, 128, 256) if size <= largest]
    for block, warps in product(blocks, (1, 2, 4, 8)):
        yield {"BLOCK_SIZE_M": block, "num_warps": warps}
