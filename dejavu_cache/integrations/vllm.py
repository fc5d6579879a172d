"""Tuned tables of vLLM and SGLang, which hold the best config of each batch size."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from ..model.foreign_result import ForeignResult, ForeignTiming
from .foreign_configs import parse_config
from .lora_tables import LORA_KERNELS, read_lora
from .table_names import TableEntry, parse_labels

__all__ = ["read_vllm"]


def read_vllm(folder: Path) -> Iterator[ForeignResult]:
    """Read a folder's tables of fused experts, block-scaled products, Mamba's state and LoRA."""
    for path in sorted(folder.rglob("*device_name=*.json")):
        labels = parse_labels(path.stem)
        content = json.loads(path.read_text(encoding="utf-8"))
        triton = content.pop("triton_version", None) or _version_of(path.parent.name)
        entry = TableEntry.of_labels(labels)
        for size, config in content.items():
            yield ForeignResult(
                origin="vllm",
                function=entry.function,
                named={**entry.named, entry.size_name: size},
                device=labels["device_name"],
                triton=triton,
                timings=(ForeignTiming(config=parse_config(config)),),
            )
    yield from _read_lora_tables(folder)


def _read_lora_tables(folder: Path) -> Iterator[ForeignResult]:
    for path in sorted([*folder.rglob("*_SHRINK.json"), *folder.rglob("*_EXPAND*.json")]):
        for line in read_lora(path.stem, json.loads(path.read_text(encoding="utf-8"))):
            yield ForeignResult(
                origin="vllm",
                function=LORA_KERNELS[line.operation],
                named=line.named,
                device=line.device,
                timings=(ForeignTiming(config=parse_config(line.config)),),
            )


def _version_of(folder: str) -> str:
    """Return the version in the name of a folder such as `triton_3_4_0`, or an empty string."""
    match = re.fullmatch(r"triton_(\d+)_(\d+)_(\d+)", folder)
    return ".".join(match.groups()) if match else ""
