"""Search spaces of the attention kernels: configs, pruning rules and default configs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import triton

from ..model.buckets import Bucket, Edges, Pow2
from ..triton_internals.environment import current_target, is_interpreting
from ..tuning.search import config_space

KEYS = (
    "num_seqs", "avg_query", "max_context", "decode_share",
    "KV_HEADS", "GROUP", "HEAD", "PAGE", "WINDOW", "SOFTCAP",
)  # fmt: skip
"""Arguments that determine a kernel's speed: the batch's composition, the model and the cache."""

SHORT = 128
"""Longest context of the lowest bucket, in tokens."""

BUCKETS: dict[str, Bucket] = {
    "num_seqs": Pow2(max=256),
    "avg_query": Pow2(max=8192),
    "max_context": Pow2(min=SHORT, max=131072),
    "decode_share": Edges((0, 50, 100)),
    "WINDOW": Pow2(),
}

METHOD: Final = "cudagraph-warm"
"""Decoding takes a few microseconds; only a graph's replay separates it from the launch's cost."""

SHARED_MEMORY = {
    capability: 1024 * kib
    for kib, capabilities in {163: (80, 87), 99: (86, 89, 120, 121), 227: (90, 100, 103)}.items()
    for capability in capabilities
}
"""Bytes per program, by CUDA compute capability; 64 KiB for others and for AMD's GPUs."""

SMALL_TILE = 8192
"""Size in bytes below which a tile of keys is too small to load efficiently."""

Keep = Callable[[triton.Config, Mapping[str, Any]], bool]


def _balanced(BLOCK_M: int, num_warps: int) -> bool:
    """Keep the rows per warp moderate: few leave matrix units idle, many exceed the registers."""
    return num_warps in {16: (2, 4), 32: (2, 4), 64: (4, 8), 128: (4, 8), 256: (8, 16)}[BLOCK_M]


def space(stages: Sequence[int] = (2, 3, 4, 5), **extra: Sequence[int]) -> Sequence[triton.Config]:
    """Return all combinations of tiles, compiler options and a kernel's own parameters.

    Args:
        stages: values of num_stages on NVIDIA's GPUs.
        **extra: values of the kernel's own parameters, by name.
    """
    if is_interpreting():
        own = {name: values[min(1, len(values) - 1)] for name, values in extra.items()}
        return [
            triton.Config({"BLOCK_M": m, "TILE": t, **own}, num_warps=4)
            for m, t in ((16, 32), (64, 16))
        ]
    return config_space(
        {"BLOCK_M": (16, 32, 64, 128, 256), "TILE": (16, 32, 64, 128), **extra},
        num_warps=(2, 4, 8, 16),
        num_stages=stages,
        where=_balanced,
        # CDNA's matrix instructions take 16 or 32 rows; the compiler pipelines no deeper than two.
        hip={
            "BLOCK_M": (16, 32, 64, 128),
            "TILE": (16, 32, 64),
            "num_stages": (1, 2),
            "waves_per_eu": (0, 2),
            "matrix_instr_nonkdim": (16, 32),
        },
    )


def row_space() -> Sequence[triton.Config]:
    """Return the configs of a kernel whose programs compute one row, without matrix units."""
    if is_interpreting():
        return [triton.Config({"TILE": 32}, num_warps=4)]
    return config_space({"TILE": (32, 16, 64, 128)}, num_warps=(4, 1, 2, 8))


def why_not(
    config: triton.Config, head_padded: int, group: int, element_size: int, capability: int
) -> str | None:
    """Explain why a config cannot run a shape at all; None if it can.

    Args:
        config: the config.
        head_padded: the head size of the kernel's tiles.
        group: query heads per KV head.
        element_size: bytes of one query element.
        capability: CUDA's compute capability, such as 90; 0 on AMD's GPUs.
    """
    rows, tile = config.kwargs["BLOCK_M"], config.kwargs["TILE"]
    if rows < group:
        return f"BLOCK_M={rows} holds no token of {group} query heads per KV head"
    if is_interpreting():
        return None  # the interpreter has no limit of registers or shared memory
    if rows * head_padded > min(4096 * config.num_warps, 1 << 15):  # half of 65,536 registers
        return (
            f"an output of {rows} x {head_padded} float32 leaves {config.num_warps} warps "
            "no registers"
        )
    if capability >= 90 and element_size == 4 and (rows, tile, config.num_warps) == (64, 16, 8):
        return (
            "Triton's code for two groups of warps that share 16 float32 keys reads outside "
            "of memory"
        )
    if config.kwargs.get("matrix_instr_nonkdim", 16) > min(rows, tile):
        return "the matrix instruction is larger than the block"
    limit = SHARED_MEMORY.get(capability, 64 * 1024)
    # Tiles of keys and values in flight; one stage is spent on loading the block table.
    tiles = 2 * (max(config.num_stages - 1, 2) if capability else 1) * tile * head_padded
    copies = 2 if element_size == 4 and capability else 1  # float32 is split into two of tf32
    need = copies * (tiles + rows * head_padded) * element_size
    if need > limit:
        return f"needs about {need // 1024} KiB of shared memory, {limit // 1024} are there"
    return None


def prune_rules(
    keep: Keep = lambda config, arguments: True,
) -> dict[str, Callable[..., list[triton.Config]]]:
    """Return `prune_configs_by` for Triton that drops configs that cannot run or hardly win.

    The kernel's own rule says which config to keep, given a launch's arguments by name.
    """

    def prune(
        configs: Sequence[triton.Config], nargs: Mapping[str, Any], **kwargs: Any
    ) -> list[triton.Config]:
        arguments, capability = {**nargs, **kwargs}, _capability()
        reasons = [why_not_here(config, arguments, capability) for config in configs]
        runnable = [c for c, reason in zip(configs, reasons, strict=True) if reason is None]
        if not runnable:
            raise ValueError(
                f"q: no config can run a call of this shape; of the last one, {reasons[-1]}"
            )
        candidates = [config for config in runnable if keep(config, arguments)]
        likely = [c for c in candidates if _is_likely(c, arguments, capability)]
        return likely or candidates or runnable

    return {"early_config_prune": prune}


def default_rule(
    configs: Sequence[triton.Config], keep: Keep = lambda config, arguments: True, **own: int
) -> Callable[[Mapping[str, Any]], triton.Config]:
    """Return the function that chooses the config of a scenario that is not tuned.

    It chooses, of the configs that pruning leaves, the nearest to values that suit most shapes.

    Args:
        configs: the kernel's configs.
        keep: the kernel's own pruning rule.
        **own: suitable values of the kernel's own parameters, by name.
    """
    prune = prune_rules(keep)["early_config_prune"]

    def default(arguments: Mapping[str, Any]) -> triton.Config:
        decoding = arguments["decode_share"] == 100
        target = {
            "BLOCK_M": 16 if decoding else 64,
            "TILE": 64 if arguments["HEAD_PADDED"] <= 128 else 32,
            **own,
            "num_warps": 4,
            "num_stages": 4 if decoding else 2,
        }

        def distance(config: triton.Config) -> float:
            values = {
                **config.kwargs,
                "num_warps": config.num_warps,
                "num_stages": config.num_stages,
            }
            return sum(abs(values[name] / value - 1) for name, value in target.items())

        return min(prune(configs, arguments), key=distance)

    return default


def why_not_here(
    config: triton.Config, arguments: Mapping[str, Any], capability: int | None = None
) -> str | None:
    """Explain why a config cannot run a launch's shape on this GPU; None if it can.

    Args:
        config: the config.
        arguments: the launch's, by name.
        capability: that of the GPU, if it is known already.
    """
    element_size = arguments["q"].element_size()
    capability = _capability() if capability is None else capability
    return why_not(config, arguments["HEAD_PADDED"], arguments["GROUP"], element_size, capability)


def _is_likely(config: triton.Config, arguments: Mapping[str, Any], capability: int) -> bool:
    """Return whether a config has about as many rows per block as the sequences have.

    Small tiles and single stages count as likely only for sequences of a few tiles.
    """
    short = BUCKETS["max_context"](arguments["max_context"]) == SHORT
    tile_bytes = config.kwargs["TILE"] * arguments["HEAD_PADDED"] * arguments["q"].element_size()
    if not short and (tile_bytes < SMALL_TILE or (config.num_stages == 1 and capability)):
        return False
    share, group = BUCKETS["decode_share"](arguments["decode_share"]), arguments["GROUP"]
    least = max(16, 1 << (group - 1).bit_length())
    if share == 100:
        return bool(config.kwargs["BLOCK_M"] == least)
    rows = BUCKETS["avg_query"](arguments["avg_query"]) * group
    fewest = least if short else max(least, min(64, rows))
    return bool(fewest <= config.kwargs["BLOCK_M"] <= max(4 * rows, 128))


def _capability() -> int:
    """Return CUDA's compute capability, such as 90; 0 on AMD's GPUs.

    Asks Triton and not torch: a prewarm without a GPU gives Triton a target to compile for.
    """
    if is_interpreting():
        return 90
    target = current_target()
    return int(target.arch) if target.backend == "cuda" else 0
