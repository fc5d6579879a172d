"""Config files of flash-linear-attention (FLA)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..model.foreign_result import ForeignResult, ForeignTiming, alphanumeric
from .foreign_configs import parse_config

__all__ = ["read_flash_linear_attention"]


def read_flash_linear_attention(path: Path, content: Mapping[str, Any]) -> Iterator[ForeignResult]:
    """Read `GPU/KERNEL.json`: the best config of each key."""
    for entry in (content.get("autotune_entries") or {}).values():
        yield ForeignResult(
            origin="fla",
            function=content.get("kernel_name") or path.stem,
            key=tuple(map(str, entry["autotune_key"])),
            device=alphanumeric(path.parent.name),
            triton=content.get("triton_version") or "",
            timings=(ForeignTiming(config=parse_config(entry["config"])),),
        )
