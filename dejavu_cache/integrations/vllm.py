"""Tuned tables of vLLM and SGLang, which hold the best config of each batch size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..model.foreign_result import ForeignResult, ForeignTiming
from ..system.notices import warn_once
from .foreign_configs import parse_config
from .lora_tables import LORA_KERNELS, read_lora
from .table_names import TableEntry, parse_labels

__all__ = ["read_lora_table", "read_table"]


def read_table(path: Path, content: Mapping[str, Any]) -> Iterator[ForeignResult]:
    """Read a table of fused experts, block-scaled products or Mamba's state.

    A table of another operation, which an engine's folder may have too, is left out with a warning.

    Raises:
        ValueError: the file has another form.
    """
    labels = parse_labels(path.stem)
    entry = TableEntry.of_labels(labels)
    if entry is None:
        about = ", ".join(labels)
        warn_once(str(path), f"{path} is left out: its table, of {about}, is of no known operation")
        return
    triton = content.get("triton_version") or _version_of(path.parent.name)
    for size, config in content.items():
        if size == "triton_version":
            continue
        if not size.isdecimal():
            raise ValueError(f"{size!r} is no batch size")
        yield ForeignResult(
            origin="vllm",
            function=entry.function,
            named={**entry.named, entry.size_name: size},
            device=labels["device_name"],
            triton=triton,
            timings=(ForeignTiming(config=parse_config(config)),),
        )


def read_lora_table(path: Path, content: Mapping[str, Any]) -> Iterator[ForeignResult]:
    """Read a table of LoRA; nothing if the file's name is not one of a table.

    Raises:
        ValueError: the file has another form.
    """
    for line in read_lora(path.stem, content):
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
