"""Sweep suite of vLLM's fused mixture of experts, for several models and the engine's batch sizes.

Run it on the GPU that serves, with the vLLM that serves, and write the tables:

    dejavu-cache sweep dejavu_cache.engines.vllm.fused_moe_suite --option preset=qwen3-30b-a3b
    dejavu-cache export --vllm FOLDER

The engine's own code is the operation to tune. One config of the kernel serves both products of the
experts and decides how tokens are aligned between them, so that it is measured by the duration of
the whole. What may win is the engine's own config for a batch of that size, and a grid around the
number of tokens that an expert gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import chain, product
from typing import Any, NamedTuple

import torch
import triton

from ...runtime.autotuner import CachedAutotuner
from ...sweep.suite import Case, Suite, preset_of, read_numbers
from ...triton_internals.compilation import await_kernel, load_binary
from ...tuning.result_check import CheckOptions
from ..tuned_tables import KEYS


class ExpertsOperation:
    """Both products of the experts, in the place of a `triton.jit` function below an autotuner.

    The engine launches its kernel twice, and other code around it. A config is measured by the
    duration of the whole, and recorded under the kernel's name and source.

    Attributes:
        fn: the kernel, which the engine's module launches by a global name.
        arg_names: the operation's arguments, and those of the configs.
    """

    def __init__(self, module: Any, kernel: str, arg_names: Sequence[str]) -> None:
        """Set up the operation; nothing is launched."""
        self.fn = getattr(module, kernel)
        self.arg_names = list(arg_names)
        self._module = module
        self._kernel = kernel

    def launch(self, arguments: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        """Run the operation with a config, which has values by name, as the arguments have."""
        run_experts(arguments, config)

    def run(self, *args: Any, grid: Any = None, warmup: bool = False, **config: Any) -> Any:
        """Run the operation with a config, or only compile its launches.

        Args:
            *args: the operation's arguments, in the order of `arg_names`.
            grid: ignored; the operation knows its own.
            warmup: whether to compile without launching the kernel.
            **config: the config's values and options.

        Returns:
            The compiled launches where `warmup` is set, else None.
        """
        arguments = dict(zip(self.arg_names, args, strict=False))
        if not warmup:
            self.launch(arguments, config)
            return None
        kernels: list[Any] = []
        setattr(self._module, self._kernel, _CompilingKernel(self.fn, kernels))
        try:
            self.launch(arguments, config)
        finally:
            setattr(self._module, self._kernel, self.fn)
        return CompiledLaunches(kernels)


class _CompilingKernel:
    """A kernel whose launches are compiled and do not run."""

    def __init__(self, kernel: Any, kernels: list[Any]) -> None:
        self._kernel_to_compile = kernel
        self._kernels = kernels

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            compiled = self._kernel_to_compile.run(*args, grid=grid, warmup=True, **kwargs)
            self._kernels.append(compiled)

        return launch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel_to_compile, name)


class CompiledLaunches:
    """The compiled kernels of an operation's launches, like one compiled kernel or its future."""

    def __init__(self, kernels: Sequence[Any]) -> None:
        """Keep what `JITFunction.run` returned for each launch."""
        self._kernels = kernels

    @property
    def future(self) -> CompiledLaunches:
        """The future: this object itself."""
        return self

    def done(self) -> bool:
        """Return whether all compilations have ended."""
        futures = (getattr(kernel, "future", None) for kernel in self._kernels)
        return all(future is None or future.done() for future in futures)

    def result(self) -> CompiledLaunches:
        """Wait for all compilations.

        Raises:
            Exception: what Triton raises where a launch cannot be compiled.
        """
        for kernel in self._kernels:
            await_kernel(kernel)
        return self

    def _init_handles(self) -> None:
        """Load the binaries, as `CompiledKernel` does."""
        for kernel in self._kernels:
            load_binary(kernel)


TENSORS = ("hidden_states", "w1", "w2", "out", "routing")
PARAMS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "SPLIT_K")

BATCHES = 4
"""Batches that a small size is measured on, one after another.

Each chooses other experts. On one batch alone, the config would win whose programs happen to fill
the GPU for its number of experts.
"""

HOPPER_SHARED_MEMORY = 227 * 1024
"""Bytes of shared memory that a program of a Hopper GPU may have."""

FLOAT8_TOLERANCE = 0.5
"""Largest relative difference of results where the first product is rounded to 8 bits.

A sum in another order may round to the neighbour, an eighth away. On an H200, right configs of
wide and of narrow tiles differ by up to a third of the root mean square.
"""


@dataclass(frozen=True)
class ExpertLayer:
    """Shape of a layer of experts on one GPU.

    Attributes:
        experts: number of experts.
        intermediate: features between the products, those of one GPU.
        hidden: features of a token.
        top_k: experts of a token.
        is_float8: whether weights and activations are float8, else bfloat16.
        block: edge of the blocks of float8 weights that share a scale; 0 for one scale per expert.
    """

    experts: int
    intermediate: int
    hidden: int
    top_k: int
    is_float8: bool = False
    block: int = 0

    def __str__(self) -> str:
        """Return the layer's name in a sweep."""
        scales = f" by {self.block}" if self.block else ""
        dtype = self.table_dtype or "bfloat16"
        return f"E={self.experts} N={self.intermediate} K={self.hidden} {dtype}{scales}"

    @property
    def block_shape(self) -> list[int] | None:
        """The blocks as the engine names them."""
        return [self.block, self.block] if self.block else None

    @property
    def table_dtype(self) -> str | None:
        """The dtype in the name of the engine's table."""
        return "fp8_w8a8" if self.is_float8 else None

    def key(self, tokens: int) -> dict[str, Any]:
        """Return the key arguments for a batch."""
        sizes = (tokens, self.intermediate, self.hidden, self.experts, self.top_k)
        return dict(zip(KEYS, (*sizes, self.block, self.block, self.is_float8), strict=True))


def engine_config(layer: ExpertLayer, tokens: int) -> dict[str, Any]:
    """Return the config that the engine takes for a batch: its table's or its default."""
    from vllm.model_executor.layers.fused_moe.fused_moe import try_get_optimal_moe_config

    shapes = (
        (layer.experts, 2 * layer.intermediate, layer.hidden),
        (layer.experts, layer.hidden, layer.intermediate),
    )
    config = try_get_optimal_moe_config(
        *shapes, layer.top_k, layer.table_dtype, tokens, block_shape=layer.block_shape
    )
    return dict(config)


def make_arguments(layer: ExpertLayer, tokens: int, seed: int = 1) -> dict[str, Any]:
    """Return the operation's arguments for a batch of random tokens on the current device."""
    weights = make_weights(layer)
    generator = torch.Generator(_device()).manual_seed(seed)
    options: Any = {"device": _device(), "generator": generator}
    hidden = torch.randn(tokens, layer.hidden, **options).bfloat16() / 8
    chooses_all = tokens * layer.top_k >= 8 * layer.experts
    batches = 1 if chooses_all else BATCHES
    gates = torch.randn(batches, tokens, layer.experts, **options).softmax(dim=-1)
    chosen, experts = gates.topk(layer.top_k, dim=-1)
    return {
        "hidden_states": hidden,
        "w1": weights.w1,
        "w2": weights.w2,
        "out": torch.zeros(batches, *hidden.shape, dtype=hidden.dtype, device=_device()),
        "routing": (chosen.float(), experts.to(torch.int32), weights.quantization),
        **layer.key(tokens),
    }


class Weights(NamedTuple):
    """A layer's weights, and vLLM's description of their scales; None for bfloat16."""

    w1: torch.Tensor
    w2: torch.Tensor
    quantization: Any


@cache
def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@lru_cache(maxsize=1)  # only one layer's, so that memory can be freed
def make_weights(layer: ExpertLayer) -> Weights:
    """Return random weights of a layer on the current device."""
    from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config

    generator = torch.Generator(_device()).manual_seed(0)
    dtype = torch.float8_e4m3fn if layer.is_float8 else torch.bfloat16

    def draw(*shape: int) -> torch.Tensor:
        stack = torch.empty(layer.experts, *shape, dtype=dtype, device=_device())
        for expert in stack:  # one by one, since float32 takes four times the memory
            expert.copy_(torch.randn(*shape, device=_device(), generator=generator) / 8)
        return stack

    w1 = draw(2 * layer.intermediate, layer.hidden)
    w2 = draw(layer.hidden, layer.intermediate)
    if not layer.is_float8:
        return Weights(w1, w2, None)

    def scales(weight: torch.Tensor) -> torch.Tensor:
        blocks = [-(-size // layer.block) for size in weight.shape[1:]] if layer.block else []
        return torch.ones(layer.experts, *blocks, dtype=torch.float32, device=_device())

    scale = None if layer.block else torch.ones(1, dtype=torch.float32, device=_device())
    quantization = fp8_w8a8_moe_quant_config(
        w1_scale=scales(w1),
        w2_scale=scales(w2),
        a1_scale=scale,
        a2_scale=scale,
        block_shape=layer.block_shape,
    )
    return Weights(w1, w2, quantization)


def run_experts(arguments: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Run the engine's experts on arguments of `make_arguments` with a config, batch by batch."""
    from vllm.model_executor.layers.fused_moe import override_config
    from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

    chosen, experts, quantization = arguments["routing"]
    tensors = [arguments[name] for name in ("hidden_states", "w1", "w2")]
    # Results are compared after launches that are not captured; graphs are only timed.
    captured = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    failure = None
    with override_config(dict(config)):
        # vLLM's context does not restore its value after an exception.
        try:
            for batch, out in enumerate(arguments["out"]):
                routing = (chosen[batch], experts[batch])
                result = fused_experts(*tensors, *routing, quant_config=quantization)
                if not captured:
                    out.copy_(result)
        except Exception as error:
            failure = error
    if failure is not None:
        raise failure


def experts_kernel(layer: ExpertLayer, tokens: int) -> CachedAutotuner:
    """Return the operation as a kernel that tries the configs of a batch.

    It is measured by graphs with a cold L2 cache, since an engine runs other layers in between.
    """
    from vllm.model_executor.layers.fused_moe import fused_moe

    operation = ExpertsOperation(fused_moe, "fused_moe_kernel", (*TENSORS, *KEYS, *PARAMS))
    tolerance = FLOAT8_TOLERANCE if layer.is_float8 else None
    check = CheckOptions(tolerance, ignore=("w1", "w2", "hidden_states"))
    return CachedAutotuner(
        operation,
        operation.arg_names,
        candidates(layer, tokens),
        KEYS,
        None,
        None,
        options={"method": "cudagraph-cold", "check": check},
    )


def candidates(layer: ExpertLayer, tokens: int) -> list[triton.Config]:
    """Return the configs for a batch, the engine's own one first, each once."""
    configs = []
    for entry in chain([engine_config(layer, tokens)], _grid_configs(layer, tokens)):
        values = {name: value for name, value in entry.items() if name != "SPLIT_K"}
        if layer.block:  # the engine launches no deeper ones
            values["BLOCK_SIZE_K"] = min(values["BLOCK_SIZE_K"], layer.block)
        options = {name: values.pop(name) for name in ("num_warps", "num_stages") if name in values}
        configs.append(triton.Config(values, **options))
    return list(dict.fromkeys(configs))


def _grid_configs(layer: ExpertLayer, tokens: int) -> Iterator[dict[str, int]]:
    """Yield a grid of configs around the number of tokens that an expert gets."""
    share = tokens * layer.top_k / layer.experts
    rows = next(
        sizes
        for limit, sizes in (
            (4, (16,)),
            (16, (16, 32)),
            (32, (16, 32, 64)),
            (96, (32, 64, 128)),
            (float("inf"), (64, 128)),
        )
        if share <= limit
    )
    width = 1 if layer.is_float8 else 2
    depths = [layer.block] if layer.block else [64, 128, 256] if width == 2 else [128, 256]
    columns: tuple[int, ...] = (64, 128, 256)
    stages = (3, 4, 5) if share <= 4 else (2, 3, 4)
    groups = (1,) if share <= 4 else (1, 16)
    if share <= 1:  # few programs, each of which waits for its loads
        columns = (32, *columns)
        depths = depths if layer.block else [*depths, 2 * depths[-1]]
    for m, n, k, stage, group in product(rows, columns, depths, stages, groups):
        if (m + n) * k * width * stage > HOPPER_SHARED_MEMORY or (m * n > 128 * 128 * 2):
            continue
        for warps in _warps(m * n):
            yield {
                "BLOCK_SIZE_M": m,
                "BLOCK_SIZE_N": n,
                "BLOCK_SIZE_K": k,
                "GROUP_SIZE_M": group,
                "num_warps": warps,
                "num_stages": stage,
            }


def _warps(products: int) -> tuple[int, ...]:
    """Return the numbers of warps to try for a tile of so many products."""
    limits = {16 * 64: (2, 4), 64 * 64: (4,), 64 * 128: (4, 8)}
    return next((warps for limit, warps in limits.items() if products <= limit), (8,))


SIZES = (*(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256), *(512, 1024, 1536, 2048, 3072, 4096))
"""Tokens of the batches in the tables that ship with vLLM."""

PRESETS = {
    "mixtral-8x7b": ExpertLayer(8, 14336, 4096, 2),
    "qwen3-30b-a3b": ExpertLayer(128, 768, 2048, 8),
    "qwen3-30b-a3b-fp8": ExpertLayer(128, 768, 2048, 8, is_float8=True, block=128),
    "deepseek-v3": ExpertLayer(256, 2048, 7168, 8, is_float8=True, block=128),
    "experts-256x128-fp8": ExpertLayer(256, 128, 7168, 8, is_float8=True),
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
        dtype: `bfloat16`, or `fp8_w8a8` for float8 weights and activations.
        block: edge of the blocks of float8 weights that share a scale; 0 for one per expert.
        tp: number of GPUs that share the intermediate features.
        sizes: numbers of tokens, separated by +; empty for those of vLLM's tables.
    """
    if dtype not in ("bfloat16", "fp8_w8a8"):
        raise ValueError(f"dtype={dtype}: choose bfloat16 or fp8_w8a8")
    described = ExpertLayer(
        int(experts), int(intermediate), int(hidden), int(top_k), dtype == "fp8_w8a8", int(block)
    )
    layer = preset_of(preset, PRESETS) if preset else described
    if min(layer.experts, layer.intermediate, layer.hidden, layer.top_k) < 1:
        raise ValueError("name a preset, or experts, intermediate, hidden and top_k above 0")
    if layer.block and not layer.is_float8:
        raise ValueError("block: only the weights of fp8_w8a8 have scales")
    if int(tp) < 1 or layer.intermediate % int(tp):
        raise ValueError(f"tp={tp}: {layer.intermediate} features cannot be divided")
    layer = replace(layer, intermediate=layer.intermediate // int(tp))
    yield from layer_cases(layer, read_numbers(sizes, SIZES))


def layer_cases(layer: ExpertLayer, sizes: tuple[int, ...] = SIZES) -> Iterator[Case]:
    """Yield the cases of a layer, the largest batch first: it compiles what others need too."""
    for tokens in sorted(sizes, reverse=True):
        kernel, arguments = experts_kernel(layer, tokens), partial(make_arguments, layer, tokens)
        yield Case(f"{layer} x {tokens}", kernel, (1,), arguments)


suite = Suite(cases=cases)
