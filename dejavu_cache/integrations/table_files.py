"""Files of tuned tables, named and written as each engine reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..model.foreign_result import version_order
from ..system.safe_files import open_replacement
from .lora_tables import fill_slices, lora_file_name, nest_lines
from .table_names import format_labels
from .tuned_tables import TableValue, TunedTable

__all__ = ["ANY_VERSION", "TABLE_FILES", "TableFile", "write_tables"]

ANY_VERSION = "any"
"""Stands for a choice of the newest version of Triton that has a table."""

_FOR_SGLANG = {"SPLIT_K", "SWAP_AB"}
"""Fields of block-scaled products that vLLM's kernel does not have: its launch would fail."""

_FIELDS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "SPLIT_K")


class TableFile(NamedTuple):
    """A file to write: its path within an engine's folder, and its content."""

    path: str
    content: Mapping[str, Any]


def vllm_files(tables: Iterable[TunedTable], version: str) -> Iterator[TableFile]:
    """Yield files for the folder that `VLLM_TUNED_CONFIG_FOLDER` names.

    vLLM reads tables of block-scaled products from its package alone, and those only without a
    stamp. Up to 0.27 it looks for those of int8 by a name with a space, unlike its own files'.
    """
    ordered = sorted(tables, key=lambda table: table.device == _vllm_device(table))
    renamed = [table._replace(device=_vllm_device(table)) for table in ordered]
    lora: dict[str, dict[str, Any]] = {}
    for table in _of_version(renamed, version):
        if "lora" in table.labels:
            content = lora.setdefault(lora_file_name(table.labels, table.device), {})
            nest_lines(content, table.labels, _lines(table).items())
            continue
        is_product = "K" in table.labels
        lines = _lines(table)
        if is_product:
            lines = {size: line for size, line in lines.items() if not _FOR_SGLANG & line.keys()}
        stamp = {"triton_version": table.triton} if table.triton and not is_product else {}
        is_int8 = is_product and table.labels["dtype"] == "int8_w8a8"
        name = _name(_with_space(table) if is_int8 else table)
        if lines:
            yield TableFile(f"{name}.json", {**stamp, **lines})
    for name, content in lora.items():
        fill_slices(name, content)
        yield TableFile(name, content)


def sglang_files(tables: Iterable[TunedTable], version: str) -> Iterator[TableFile]:
    """Yield files for the folder that `SGLANG_MOE_CONFIG_DIR` names, of all versions of Triton.

    SGLang looks in the folder of its own version first, then in all others, and writes blocks with
    a space. It stops at a folder whose name has more than numbers, so that tables of 3.4.0+git are
    in that of 3.4.0, unless there is one of 3.4.0 itself. Tables of an unknown version have no
    folder. Those of block-scaled products are read from SGLang's package alone; its tables of LoRA
    have another form, and it has none of Mamba's states.
    """
    files: dict[str, TableFile] = {}
    for table in sorted(tables, key=lambda table: _release(table.triton) == table.triton):
        labels = table.labels
        if "lora" in labels or "headdim" in labels:
            continue
        name = _name(_with_space(table))
        release = _release(table.triton)
        if "E" not in labels:
            path = f"quantization/{name}.json"
        elif release and version in ("", ANY_VERSION, table.triton):
            path = f"configs/triton_{release.replace('.', '_')}/{name}.json"
        else:
            continue
        files[path] = TableFile(path, _lines(table))
    yield from files.values()


def hugging_face_files(tables: Iterable[TunedTable], version: str) -> Iterator[TableFile]:
    """Yield files for the folder `configs` of Hugging Face's kernel `kernels-community/moe`.

    It has vLLM's names, and its loader takes batch sizes only.
    """
    for table in _of_version(tables, version):
        if "E" in table.labels:
            yield TableFile(f"{_name(table)}.json", _lines(table))


TABLE_FILES = {"vllm": vllm_files, "sglang": sglang_files, "hf": hugging_face_files}
"""The files of each engine's tables: `(tables, version of Triton)`."""


def write_tables(files: Iterable[TableFile], folder: Path) -> list[Path]:
    """Write files into a folder, each as a whole; other files in the folder stay.

    No link below the folder is followed.

    Returns:
        The paths of the files.

    Raises:
        OSError: a file cannot be written.
    """
    paths = []
    for file in files:
        path = folder / file.path
        with open_replacement(path, folder) as out:
            out.write((json.dumps(file.content, indent=4) + "\n").encode())
        paths.append(path)
    return paths


def _of_version(tables: Iterable[TunedTable], version: str) -> list[TunedTable]:
    """Return one table for each name: of a version of Triton, or else without one.

    `ANY_VERSION` takes the newest one; of two of one version, the later one counts.
    """
    chosen: dict[str, TunedTable] = {}
    for table in sorted(tables, key=lambda table: version_order(table.triton)):
        if version == ANY_VERSION or table.triton in ("", version):
            chosen[_name(table)] = table
    return list(chosen.values())


def _with_space(table: TunedTable) -> TunedTable:
    """Return a table whose name has its blocks as `[128, 128]`."""
    blocks = table.labels.get("block_shape")
    if blocks is None:
        return table
    return table._replace(labels={**table.labels, "block_shape": blocks.replace(",", ", ")})


def _release(version: str) -> str:
    """Return the numbers that a version begins with, `3.4.0` of `3.4.0+git1a2b`; may be empty."""
    match = re.match(r"\d+(?:\.\d+)*", version, re.ASCII)
    return match[0] if match else ""


def _name(table: TunedTable) -> str:
    if "lora" in table.labels:
        return f"{table.device} {sorted(table.labels.items())}"
    return format_labels({**table.labels, "device_name": table.device})


def _vllm_device(table: TunedTable) -> str:
    """Return a device's name in a table of vLLM's.

    For fused experts, all kinds of H200 have one, and the tables of the kind that has this name
    itself go before those of another kind. For LoRA, underscores stand for hyphens too.
    """
    if "lora" in table.labels:
        return table.device.replace("-", "_")
    is_h200 = "E" in table.labels and "H200" in table.device.split("_")
    return "NVIDIA_H200" if is_h200 else table.device


def _lines(table: TunedTable) -> dict[str, dict[str, TableValue]]:
    return {str(size): _sort_fields(config) for size, config in table.configs.items()}


def _sort_fields(config: Mapping[str, TableValue]) -> dict[str, TableValue]:
    first = [name for name in _FIELDS if name in config]
    return {name: config[name] for name in [*first, *sorted(config.keys() - set(first))]}
