"""Results of the triton-dejavu package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..model.foreign_result import ForeignResult, ForeignTiming, alphanumeric
from .foreign_configs import finite_times, parse_config

__all__ = ["read_triton_dejavu"]


def read_triton_dejavu(path: Path, content: Mapping[str, Any]) -> Iterator[ForeignResult]:
    """Read `…/triton_3.3.1/…/gpu_NVIDIA_H100/KERNEL/…/cache.json`: the best config of each key."""
    versions = dict(part.split("_", 1) for part in path.parts if "_" in part)
    function = re.sub(r".*:|\)$", "", content["signature"])
    for key, config in content["cache"].items():
        times = finite_times(content.get("timings", {}).get(key, []))
        timing = ForeignTiming(
            config=parse_config(_parse_fields(config)), median=times[0] if times else None
        )
        values = tuple(map(str, ast.literal_eval(key)))
        names = content.get("keys") or ()
        # Its values are the arguments' in the order of `keys`; dtypes may follow them.
        yield ForeignResult(
            origin="triton-dejavu",
            function=function,
            named=dict(zip(names, values, strict=False)),
            key=values[len(names) :],
            device=alphanumeric(versions.get("gpu", "")),
            triton=versions.get("triton", ""),
            timings=(timing,),
        )


def _parse_fields(text: str) -> dict[str, Any]:
    """Parse a config as `str(triton.Config)` prints it: `BLOCK: 64, num_warps: 8`."""
    pairs = (field.partition(": ") for field in text.split(", "))
    return {name: _parse_value(value) for name, _, value in pairs}


def _parse_value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
