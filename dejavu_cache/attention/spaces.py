"""The configs that each kernel declares on each vendor's GPUs, and the rules that leave some out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import triton

from ..buckets import Bucket, Edges, Pow2

__all__ = ["BUCKETS", "HOPPER_BUCKETS", "HOPPER_KEYS", "KEYS", "PER_SM", "SEGMENTS", "hopper_pruned", "hopper_space", "hopper_why_not", "pruned", "row_space", "space", "vendor", "why_not"]

KEYS = (
    "num_seqs", "avg_query", "max_context", "decode_share", "KV_HEADS", "GROUP", "HEAD", "PAGE", "WINDOW", "SOFTCAP",
)  # fmt: skip
"""What drives a kernel's speed: the batch's composition, then the model's and the cache's shape."""

BUCKETS: dict[str, Bucket] = {
    "num_seqs": Pow2(max=256),
    "avg_query": Pow2(max=8192),
    "max_context": Pow2(min=128, max=131072),
    "decode_share": Edges((0, 50, 100)),
    "WINDOW": Pow2(),
}

# (rows, tile, warps, stages). On Hopper 4 warps a 64 rows: what one matrix instruction takes.
CUDA_TILES = [
    *product((16,), (32, 64, 128), (2, 4), (3, 4, 5)),
    *product((32,), (32, 64), (4,), (2, 3, 4)),
    *product((64,), (32, 64, 128), (4,), (2, 3, 4)),
    *product((128,), (32, 64, 128), (8,), (2, 3, 4, 5)),
    *product((128,), (64,), (4,), (3,)),
    *product((256,), (32, 64), (16,), (2, 3, 4)),
]
# (rows, tile, warps, stages, waves per EU): CDNA's matrix instruction takes 16 rows, and little is pipelined.
HIP_TILES = [
    *product((16, 32), (16, 32, 64), (2, 4), (1, 2), (0, 2)),
    *product((64, 128), (32, 64), (4, 8), (1, 2), (0, 2)),
]
SEGMENTS = (1, 2, 4, 8, 16, 32, 64, 128)
PER_SM = (1, 2, 3, 4)

HOPPER_KEYS = tuple(name for name in KEYS if name not in ("WINDOW", "SOFTCAP"))
HOPPER_BUCKETS = {name: bucket for name, bucket in BUCKETS.items() if name in HOPPER_KEYS}

SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes that a program may have, by compute capability; 64 KiB on AMD's GPUs."""


def vendor() -> str:
    """`cuda`, `hip`, or `interpreter`."""
    if triton.knobs.runtime.interpret:
        return "interpreter"
    try:
        return str(triton.runtime.driver.active.get_current_target().backend)
    except Exception:  # no GPU: nothing will be launched, but the module can be read
        return "cuda"


def space(of: str | None = None, **extra: Sequence[int]) -> list[triton.Config]:
    """The tiles of a vendor, crossed with a kernel's own parameters."""
    of = of or vendor()
    crossed = [dict(zip(extra, values, strict=True)) for values in product(*extra.values())]
    if of == "interpreter":
        few = [{name: values[min(1, len(values) - 1)] for name, values in extra.items()}]
        return [
            triton.Config({"BLOCK_M": m, "TILE": t, **own}, num_warps=4, num_stages=1)
            for (m, t), own in product(((16, 32), (64, 16)), few)
        ]
    if of == "hip":
        return [
            triton.Config(
                {"BLOCK_M": m, "TILE": t, "waves_per_eu": waves, "matrix_instr_nonkdim": 16, **own},
                num_warps=warps,
                num_stages=stages,
            )
            for (m, t, warps, stages, waves), own in product(HIP_TILES, crossed)
        ]
    return [
        triton.Config({"BLOCK_M": m, "TILE": t, **own}, num_warps=warps, num_stages=stages)
        for (m, t, warps, stages), own in product(CUDA_TILES, crossed)
    ]


def row_space() -> list[triton.Config]:
    """Tiles for a kernel whose program has one row, and no matrix instructions."""
    if vendor() == "interpreter":
        return [triton.Config({"TILE": 32}, num_warps=4)]
    return [triton.Config({"TILE": tile}, num_warps=warps) for tile in (16, 32, 64, 128) for warps in (1, 2, 4, 8)]


def why_not(config: triton.Config, head_padded: int, group: int, element_size: int, capability: int) -> str | None:
    """Why a config cannot run a shape at all; None if it can.

    Args:
        element_size: bytes of one query element. capability: CUDA's, as 90; 0 on AMD's GPUs.
    """
    rows, tile = config.kwargs["BLOCK_M"], config.kwargs["TILE"]
    if rows < group:
        return f"BLOCK_M={rows} holds no token of {group} query heads per KV head"
    if rows * head_padded > 16384 * config.num_warps // 4:
        return f"an output of {rows} x {head_padded} float32 leaves {config.num_warps} warps no registers"
    tiles = 2 * max(config.num_stages - 1, 1) * tile * head_padded * element_size  # keys and values in flight
    limit = SHARED_MEMORY.get(capability, 64 * 1024)
    need = tiles + rows * (head_padded + tile) * element_size
    return f"needs about {need // 1024} KiB of shared memory, {limit // 1024} are there" if need > limit else None


def pruned(
    keep: Callable[[triton.Config, Mapping[str, Any]], bool] | None = None,
) -> dict[str, Callable[..., list[triton.Config]]]:
    """Triton's `prune_configs_by`: leaves out what cannot run, and what cannot win.

    Args:
        keep: the kernel's own rule; from a config and the launch's arguments by name.
    """

    def prune(configs: Sequence[triton.Config], nargs: Mapping[str, Any], **kwargs: Any) -> list[triton.Config]:
        given = {**nargs, **kwargs}
        able = [each for each in configs if _runs(each, given)]
        likely = [each for each in able if _likely(each, given) and (keep is None or keep(each, given))]
        return likely or [each for each in able if keep is None or keep(each, given)] or able

    return {"early_config_prune": prune}


def hopper_space() -> list[triton.Config]:
    """Keys in a tile, and tiles of keys and of values in shared memory at once."""
    return [
        triton.Config({"TILE": tile, "STAGES": stages}, num_warps=4)
        for tile, stages in ((64, 2), (64, 3), (64, 4), (128, 2))
    ]


def hopper_why_not(config: triton.Config, head_padded: int) -> str | None:
    """Why a config of the Hopper kernel cannot run a head size; None if it can."""
    tile, stages = config.kwargs["TILE"], config.kwargs["STAGES"]
    need = 2 * head_padded * (2 * 64 + 2 * stages * tile) + 1024  # two Q blocks, the tiles, the barriers
    if need > SHARED_MEMORY[90]:
        return f"needs {need // 1024} KiB of shared memory, {SHARED_MEMORY[90] // 1024} are there"
    return None


def hopper_pruned() -> dict[str, Callable[..., list[triton.Config]]]:
    """Triton's `prune_configs_by` for the Hopper kernel."""

    def prune(configs: Sequence[triton.Config], nargs: Mapping[str, Any], **kwargs: Any) -> list[triton.Config]:
        padded = {**nargs, **kwargs}["HEAD_PADDED"]
        return [each for each in configs if hopper_why_not(each, padded) is None]

    return {"early_config_prune": prune}


def _runs(config: triton.Config, given: Mapping[str, Any]) -> bool:
    size = given["q"].element_size()
    return why_not(config, given["HEAD_PADDED"], given["GROUP"], size, _capability()) is None


def _likely(config: triton.Config, given: Mapping[str, Any]) -> bool:
    """Blocks of about as many rows as a sequence has, up to what a matrix instruction takes and above."""
    share, group = BUCKETS["decode_share"](given["decode_share"]), given["GROUP"]
    least = max(16, 1 << (group - 1).bit_length())
    if share == 100:
        return bool(config.kwargs["BLOCK_M"] == least)
    rows = BUCKETS["avg_query"](given["avg_query"]) * group
    return bool(max(least, min(64, rows)) <= config.kwargs["BLOCK_M"] <= max(4 * rows, 128))


def _capability() -> int:
    if vendor() != "cuda":
        return 0 if vendor() == "hip" else 90
    import torch

    major, minor = torch.cuda.get_device_capability()
    return major * 10 + minor
