"""Search space of the Hopper kernel: its configs, and the one that pruning leaves for a launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import triton

from ..tuning.config_space import config_space
from .search_space import SHARED_MEMORY

__all__ = [
    "CAST_STAGES",
    "HOPPER_KEYS",
    "hopper_prune_rules",
    "hopper_space",
    "hopper_tile",
    "hopper_why_not",
]

HOPPER_KEYS = ("PAIRS", "HALVES", "CAST", "KV_HEADS", "GROUP", "HEAD", "PAGE", "WINDOW", "SOFTCAP")
"""The Hopper kernel's schedule balances any lengths, so only shapes and the kind of work count.

Pruning looks at some of these alone, so it is done once for each scenario.
"""

CAST_STAGES = 2
"""Tiles of a float8 cache, of keys and of values each, that are ready to be multiplied."""


def hopper_space() -> Sequence[triton.Config]:
    """Return the Hopper kernel's configs: keys in a tile, and tiles in shared memory.

    STAGES counts the tiles of keys that are loaded ahead, and as many of values. Pruning leaves one
    config for a head size, kind of work and kind of cache, so nothing is benchmarked.
    """
    return config_space({"TILE": (64, 128, 32), "STAGES": (4, 3, 2)})


def hopper_tile(pairs: int, halves: int, head_padded: int, casts: bool) -> int:
    """Return the keys of the Hopper kernel's tiles for a kind of work.

    Long prompts have large ones, which take fewer instructions per key; in all other work the rest
    of a sequence's last tile and the first tile's latency cost more. Heads of 256 leave room for
    small ones where two programs share a multiprocessor, or a float8 cache has tiles of its own.
    Beside prompts, decoding with such heads takes up to a third less time in small tiles, of which
    more are on their way at once.

    Args:
        pairs: as in `Schedule`.
        halves: likewise.
        head_padded: the head size of the tiles.
        casts: as in `Batch`.
    """
    if head_padded > 128:
        return 32 if halves == 1 or casts or pairs == 1 else 64
    return 128 if pairs == 2 else 64


def hopper_why_not(config: triton.Config, halves: int, head_padded: int, casts: bool) -> str | None:
    """Explain why a config of the Hopper kernel cannot run a shape; None if it can.

    Args:
        config: the config.
        halves: as in `Schedule`.
        head_padded: the head size of the kernel's tiles.
        casts: as in `Batch`.
    """
    tile, stages = config.kwargs["TILE"], config.kwargs["STAGES"]
    raw_stages, stages = (stages, CAST_STAGES) if casts else (0, stages)
    # Queries, the tiles of keys and of values of 2 bytes and of one, and the barriers.
    need = 2 * head_padded * (halves * 64 + 2 * stages * tile + raw_stages * tile) + 512
    # A multiprocessor has the memory of its programs, 2 / halves, and 1 KiB more for each.
    there = (SHARED_MEMORY[90] + 1024) * halves // 2 - 1024
    if need > there:
        return f"needs {need / 1024} KiB of shared memory, {there / 1024} are there"
    if casts and halves == 1 and tile > 64:
        return "a product of so many keys needs more registers than a thread of the program has"
    return None


def hopper_prune_rules() -> dict[str, Callable[..., list[triton.Config]]]:
    """Return `prune_configs_by` for the Hopper kernel: leave the deepest config that fits."""

    def prune(
        configs: Sequence[triton.Config], nargs: Mapping[str, Any], **kwargs: Any
    ) -> list[triton.Config]:
        arguments = {**nargs, **kwargs}
        shape = arguments["HALVES"], arguments["HEAD_PADDED"], arguments["CAST"]
        tile = hopper_tile(arguments["PAIRS"], *shape)
        able = [
            config
            for config in configs
            if config.kwargs["TILE"] == tile and hopper_why_not(config, *shape) is None
        ]
        return [max(able, key=lambda config: int(config.kwargs["STAGES"]))]

    return {"early_config_prune": prune}
