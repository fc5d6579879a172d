"""Tuned tables of vLLM: fused mixture-of-experts, block-scaled float8, and Mamba's state update."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from ..model.foreign_result import ForeignResult, ForeignTiming, alphanumeric
from .foreign_configs import parse_config

__all__ = ["read_vllm"]

_FUSED_MOE_DTYPES = ("fp8_w8a8", "int8_w8a8", "int8_w8a16")
"""Quantizations that vLLM's kernel is told by arguments `use_…`."""

_UNDERSTOOD = ("E", "N", "device_name", "dtype", "block_shape")


def read_vllm(folder: Path) -> Iterator[ForeignResult]:
    """Read the tables in a folder: the best config of each batch size.

    Their names have the form `E=8,N=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8.json`.
    """
    for path in sorted(folder.rglob("*device_name=*.json")):
        labels = _parse_labels(path.stem)
        content = json.loads(path.read_text(encoding="utf-8"))
        triton = content.pop("triton_version", None) or _version_of(path.parent.name)
        function, size, named = _kernel_and_arguments(labels)
        for count, config in content.items():
            yield ForeignResult(
                origin="vllm",
                function=function,
                named={**named, size: count},
                device=alphanumeric(labels["device_name"]),
                triton=triton,
                timings=(ForeignTiming(config=parse_config(config)),),
            )


def _parse_labels(name: str) -> dict[str, str]:
    """Parse `E=8,N=7168,block_shape=[128,128]`, at whose end `_down` may be."""
    stem = name.removesuffix("_down")
    pairs = re.findall(r"(\w+)=(\[[^\]]*\]|[^,]*)", stem)
    labels = {label: value.replace(" ", "") for label, value in pairs}
    return labels if stem == name else {**labels, "down": "True"}


def _version_of(folder: str) -> str:
    """Return the version in the name of a folder such as `triton_3_4_0`, or an empty string."""
    match = re.fullmatch(r"triton_(\d+)_(\d+)_(\d+)", folder)
    return ".".join(match.groups()) if match else ""


def _kernel_and_arguments(labels: dict[str, str]) -> tuple[str, str, dict[str, str]]:
    """Return the kernel of a table, its argument for the batch size, and the other arguments.

    A table without a quantization holds for launches without one.

    Raises:
        ValueError: the labels are of no known table.
    """
    if {"E", "N"} <= labels.keys():
        named = {"E": labels["E"], "N": labels["N"], **_block(labels)}
        dtype = labels.get("dtype", "")
        named |= {label: value for label, value in labels.items() if label not in _UNDERSTOOD}
        for quantized in {*_FUSED_MOE_DTYPES, *([dtype] if dtype else [])}:
            named[f"use_{quantized}"] = str(quantized == dtype)
        return "fused_moe_kernel", "M", named
    if {"N", "K", "block_shape"} <= labels.keys():
        named = {"N": labels["N"], "K": labels["K"], **_block(labels)}
        return "_w8a8_triton_block_scaled_mm", "M", named
    if {"headdim", "dstate"} <= labels.keys():
        named = {"dim": labels["headdim"], "dstate": labels["dstate"]}
        named["cache_dtype"] = labels.get("cache_dtype", "")
        return "_selective_scan_update_kernel", "effective_batch", named
    raise ValueError(f"a table for {', '.join(labels)} is not known")


def _block(labels: dict[str, str]) -> dict[str, str]:
    sizes = labels.get("block_shape", "[0,0]").strip("[]").split(",")
    return {"group_n": sizes[0], "group_k": sizes[-1]}
