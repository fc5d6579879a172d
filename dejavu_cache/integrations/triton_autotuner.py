"""Triton's own results on disk, written where `TRITON_CACHE_AUTOTUNING=1`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..model.foreign_result import ForeignResult, ForeignTiming
from .foreign_configs import finite_times, parse_config

__all__ = ["read_triton_autotuner"]


def read_triton_autotuner(path: Path, content: Mapping[str, Any]) -> Iterator[ForeignResult]:
    """Read `HASH/KERNEL.autotune.json` in Triton's cache folder: the timings of every config."""
    timings = []
    for config, raw_times in content["configs_timings"]:
        if times := finite_times(raw_times):
            quantiles = dict(zip(("median", "p20", "p80"), times, strict=False))
            timings.append(ForeignTiming(config=parse_config(config), **quantiles))
    if timings:
        yield ForeignResult(
            origin="triton",
            function=path.name.removesuffix(".autotune.json"),
            key=tuple(map(str, content["key"])),
            proof=path.parent.name,
            timings=tuple(sorted(timings, key=lambda timing: timing.median or 0.0)),
        )
