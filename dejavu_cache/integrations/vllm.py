"""vLLM: its plug-in entry point, and its tuned configs of the fused mixture-of-experts kernel."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from ..model.foreign_result import ForeignResult, ForeignTiming, alphanumeric
from ..settings import current_settings
from .foreign_configs import parse_config

__all__ = ["read_vllm", "register"]


def register() -> None:
    """Replace `triton.autotune` in this vLLM process if `DEJAVU_CACHE_INSTALL=1`.

    vLLM calls this in every process of an engine, through the entry-point group
    `vllm.general_plugins`.
    """
    if current_settings().install:
        from ..installation.autotune_replacement import install  # needs Triton; the reader does not

        install()


def read_vllm(folder: Path) -> Iterator[ForeignResult]:
    """Read `E=8,N=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8.json`: the best config of each M."""
    for path in sorted(folder.rglob("E=*device_name=*.json")):
        name = re.sub(r",block_shape=\[.*\]", "", path.stem)
        labels = dict(part.split("=", 1) for part in name.split(",") if "=" in part)
        content = json.loads(path.read_text(encoding="utf-8"))
        for m, config in content.items():
            if not m.isdigit():  # newer files also hold "triton_version"
                continue
            yield ForeignResult(
                origin="vllm",
                function="fused_moe_kernel",
                named={"E": labels["E"], "N": labels["N"], "M": m},
                device=alphanumeric(labels["device_name"]),
                timings=(ForeignTiming(config=parse_config(config)),),
            )
