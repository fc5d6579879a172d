"""The configs that each kernel declares, the rules that leave some out, and what stands in for a tuned one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import triton

from ..model.buckets import Bucket, Edges, Pow2
from ..triton_internals.environment import current_target, is_interpreting
from ..tuning.config_space import config_space

__all__ = [
    "BUCKETS",
    "HOPPER_BUCKETS",
    "HOPPER_KEYS",
    "KEYS",
    "METHOD",
    "hopper_pruned",
    "hopper_space",
    "hopper_why_not",
    "pruned",
    "row_space",
    "space",
    "usual",
    "why_not",
]

KEYS = (
    "num_seqs", "avg_query", "max_context", "decode_share", "KV_HEADS", "GROUP", "HEAD", "PAGE", "WINDOW", "SOFTCAP",
)  # fmt: skip
"""What drives a kernel's speed: the batch's composition, then the model's and the cache's shape."""

SHORT = 128
"""Contexts up to here count as one."""

BUCKETS: dict[str, Bucket] = {
    "num_seqs": Pow2(max=256),
    "avg_query": Pow2(max=8192),
    "max_context": Pow2(min=SHORT, max=131072),
    "decode_share": Edges((0, 50, 100)),
    "WINDOW": Pow2(),
}

HOPPER_KEYS = tuple(name for name in KEYS if name not in ("WINDOW", "SOFTCAP"))
HOPPER_BUCKETS = {name: bucket for name, bucket in BUCKETS.items() if name in HOPPER_KEYS}

METHOD: Final = "cudagraph-warm"
"""A decode takes a few microseconds: only a graph's replay tells it from its launch."""

SHARED_MEMORY = {
    capability: 1024 * kib
    for kib, capabilities in {163: (80, 87), 99: (86, 89, 120, 121), 227: (90, 100, 103)}.items()
    for capability in capabilities
}
"""Bytes that a program may have, by compute capability; elsewhere, and on AMD's GPUs, it is 64 KiB."""

SMALL = 8192
"""Bytes of a tile of keys below which its loads are too short to be worth it."""

Keep = Callable[[triton.Config, Mapping[str, Any]], bool]


def _balanced(BLOCK_M: int, num_warps: int) -> bool:
    """16 to 64 rows a warp: less leaves the matrix units idle, more does not fit the registers."""
    return {16: (2, 4), 32: (2, 4), 64: (4, 8), 128: (4, 8), 256: (8, 16)}[BLOCK_M].__contains__(
        num_warps
    )


def space(stages: Sequence[int] = (2, 3, 4, 5), **extra: Sequence[int]) -> Sequence[triton.Config]:
    """Tiles and compiler options, crossed with a kernel's own parameters.

    Args:
        stages: tiles in flight, as Triton counts them, on NVIDIA's GPUs.
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
    """Tiles for a kernel whose program has one row, and no matrix instructions."""
    if is_interpreting():
        return [triton.Config({"TILE": 32}, num_warps=4)]
    return config_space({"TILE": (32, 16, 64, 128)}, num_warps=(4, 1, 2, 8))


def hopper_space() -> Sequence[triton.Config]:
    """Keys in a tile, tiles of keys and of values in shared memory at once, and whether programs go on."""
    return config_space(
        {"TILE": (64, 128), "STAGES": (2, 3, 4), "PERSISTENT": (0, 1)},
        where=lambda TILE, STAGES: TILE * STAGES <= 256,
    )


def why_not(
    config: triton.Config, head_padded: int, group: int, element_size: int, capability: int
) -> str | None:
    """Why a config cannot run a shape at all; None if it can.

    Args:
        element_size: bytes of one query element. capability: CUDA's, as 90; 0 on AMD's GPUs.
    """
    rows, tile = config.kwargs["BLOCK_M"], config.kwargs["TILE"]
    if rows < group:
        return f"BLOCK_M={rows} holds no token of {group} query heads per KV head"
    if is_interpreting():
        return None  # it has neither registers nor shared memory
    if rows * head_padded > min(4096 * config.num_warps, 1 << 15):  # of 65,536 registers, half
        return f"an output of {rows} x {head_padded} float32 leaves {config.num_warps} warps no registers"
    if capability >= 90 and element_size == 4 and (rows, tile, config.num_warps) == (64, 16, 8):
        return "Triton's code for two groups of warps that share 16 float32 keys reads outside of memory"
    if config.kwargs.get("matrix_instr_nonkdim", 16) > min(rows, tile):
        return "the matrix instruction is larger than the block"
    limit = SHARED_MEMORY.get(capability, 64 * 1024)
    # Keys and values in flight; a stage goes to the block table. Queries stay, weights pass through.
    tiles = 2 * (max(config.num_stages - 1, 2) if capability else 1) * tile * head_padded
    copies = 2 if element_size == 4 and capability else 1  # float32 is split into two of tf32
    need = copies * (tiles + rows * head_padded) * element_size
    return (
        f"needs about {need // 1024} KiB of shared memory, {limit // 1024} are there"
        if need > limit
        else None
    )


def hopper_why_not(config: triton.Config, head_padded: int) -> str | None:
    """Why a config of the Hopper kernel cannot run a head size; None if it can."""
    tile, stages = config.kwargs["TILE"], config.kwargs["STAGES"]
    need = (
        2 * head_padded * (2 * 64 + 2 * stages * tile) + 1024
    )  # two Q blocks, the tiles, the barriers
    if need > SHARED_MEMORY[90]:
        return f"needs {need // 1024} KiB of shared memory, {SHARED_MEMORY[90] // 1024} are there"
    return None


def pruned(
    keep: Keep = lambda config, given: True,
) -> dict[str, Callable[..., list[triton.Config]]]:
    """Triton's `prune_configs_by`: leaves out what cannot run, and what cannot win.

    Args:
        keep: the kernel's own rule; from a config and the launch's arguments by name.
    """

    def prune(
        configs: Sequence[triton.Config], nargs: Mapping[str, Any], **kwargs: Any
    ) -> list[triton.Config]:
        given, capability = {**nargs, **kwargs}, _capability()
        reasons = [_cannot(each, given, capability) for each in configs]
        able = [each for each, reason in zip(configs, reasons, strict=True) if reason is None]
        if not able:
            raise ValueError(
                f"q: no config can run a call of this shape; of the last one, {reasons[-1]}"
            )
        kept = [each for each in able if keep(each, given)]
        return [each for each in kept if _likely(each, given, capability)] or kept or able

    return {"early_config_prune": prune}


def hopper_pruned() -> dict[str, Callable[..., list[triton.Config]]]:
    """Triton's `prune_configs_by` for the Hopper kernel."""

    def prune(
        configs: Sequence[triton.Config], nargs: Mapping[str, Any], **kwargs: Any
    ) -> list[triton.Config]:
        padded = {**nargs, **kwargs}["HEAD_PADDED"]
        return [each for each in configs if hopper_why_not(each, padded) is None]

    return {"early_config_prune": prune}


def usual(
    configs: Sequence[triton.Config], keep: Keep = lambda config, given: True, **own: int
) -> Any:
    """What runs where nothing is tuned: of the configs that are likely, the nearest to what is mostly good.

    Args:
        own: mostly good values of the kernel's own parameters.
    """
    prune = pruned(keep)["early_config_prune"]

    def default(given: Mapping[str, Any]) -> triton.Config:
        decoding = given["decode_share"] == 100
        wanted = {
            "BLOCK_M": 16 if decoding else 64,
            "TILE": 64 if given["HEAD_PADDED"] <= 128 else 32,
            **own,
        }
        options = {"num_warps": 4, "num_stages": 4 if decoding else 2}

        def distance(config: triton.Config) -> float:
            values = {
                **config.kwargs,
                "num_warps": config.num_warps,
                "num_stages": config.num_stages,
            }
            return sum(
                abs(values[name] / value - 1) for name, value in {**wanted, **options}.items()
            )

        return min(prune(configs, given), key=distance)

    return default


def _cannot(config: triton.Config, given: Mapping[str, Any], capability: int) -> str | None:
    return why_not(
        config, given["HEAD_PADDED"], given["GROUP"], given["q"].element_size(), capability
    )


def _likely(config: triton.Config, given: Mapping[str, Any], capability: int) -> bool:
    """Blocks of about as many rows as a sequence has, up to what a matrix instruction takes and above.

    Small tiles and single stages are for shapes that leave no room for others, and for sequences of a few tiles.
    """
    short = BUCKETS["max_context"](given["max_context"]) == SHORT
    small = config.kwargs["TILE"] * given["HEAD_PADDED"] * given["q"].element_size() < SMALL
    if not short and (small or (config.num_stages == 1 and capability)):
        return False
    share, group = BUCKETS["decode_share"](given["decode_share"]), given["GROUP"]
    least = max(16, 1 << (group - 1).bit_length())
    if share == 100:
        return bool(config.kwargs["BLOCK_M"] == least)
    rows = BUCKETS["avg_query"](given["avg_query"]) * group
    fewest = least if short else max(least, min(64, rows))
    return bool(fewest <= config.kwargs["BLOCK_M"] <= max(4 * rows, 128))


def _capability() -> int:
    """CUDA's, as 90; 0 on AMD's GPUs. Triton is asked, since a builder without a GPU pretends to have one to it."""
    if is_interpreting():
        return 90
    target = current_target()
    return int(target.arch) if target.backend == "cuda" else 0
