"""Tuned tables of engines: their names, their making from a store, and their files.

A name such as `E=8,N=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8.json` has labels; a table has a
config for each of several batch sizes. The labels of fused experts, which are tuned here, and of
block-scaled products stand for the values of a kernel's arguments. Tables of other operations pass
through with their labels.

vLLM has one file for each operation of LoRA, such as `NVIDIA_H200_EXPAND_TRUE.json`, nested by the
number of adapters, of slices, and by m, k and n. Here it is one table for each choice of all but m,
the batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from ..model.foreign_result import version_order
from ..model.record import Record
from ..model.scenario import Config
from ..model.selection import winner
from ..stores import Store
from ..system.safe_files import open_replacement

__all__ = [
    "ANY_VERSION",
    "SIZE",
    "TABLE_FILES",
    "LoraLine",
    "TableFile",
    "TableValue",
    "TunedTable",
    "collect_tables",
    "fill_slices",
    "format_labels",
    "labels_of",
    "launches_of",
    "parse_labels",
    "read_lora",
    "write_tables",
]

SIZE = "M"
"""The argument that counts the batch, in whatever a line of a table is for."""

FUSED_MOE = "fused_moe_kernel"
STATE_UPDATE = "_selective_scan_update_kernel"
BLOCK_PRODUCTS = {
    "fp8_w8a8": "_w8a8_triton_block_scaled_mm",
    "int8_w8a8": "_w8a8_block_int8_matmul",
}
"""Kernels that multiply block-scaled matrices, by the dtype in their tables' names."""

_DTYPES = {function: dtype for dtype, function in BLOCK_PRODUCTS.items()}
_LAUNCHED = {FUSED_MOE, *_DTYPES}
"""Kernels whose tables are told by arguments: launches of them look for their results."""

_FUSED = tuple(
    f"fused_moe_lora_{product}_{step}" for product in ("w13", "w2") for step in ("shrink", "expand")
)
LORA_KERNELS = {
    "shrink": "_lora_shrink_kernel",
    "expand_true": "_lora_expand_kernel",
    "expand_false": "_lora_expand_kernel",
    **dict.fromkeys(_FUSED, "_fused_moe_lora_kernel"),
}
"""Kernels of LoRA by operation, as files name it; `expand` says whether it adds to its inputs."""

FUNCTIONS = {FUSED_MOE, STATE_UPDATE, *BLOCK_PRODUCTS.values(), *LORA_KERNELS.values()}
"""Kernels that have tables."""

_LORA_SIZES = ("max_loras", "num_slices", "m", "k", "n")
_EXPERTS = "moe_intermediate_size"
"""The last level of a LoRA file, which only fused experts have."""

_MOST_SLICES = 8
"""Slices of a layer that a LoRA file serves at least; those of Q, K and V are three."""

_LORA_FILE = re.compile(rf"(.+?)_({'|'.join(sorted(map(str.upper, LORA_KERNELS), key=len)[::-1])})")

_QUANTIZATIONS = ("fp8_w8a8", "int8_w8a8", "int8_w8a16")
"""Quantizations that the fused kernel is told by arguments `use_…`."""

_UNLABELLED = frozenset({"E", "N", "K", SIZE, "top_k", "group_n", "group_k"})
_FURTHER = ("backend", "per_channel_quant", "down")
"""Labels of fused experts that stand for themselves."""

_UNDERSTOOD = ("E", "N", "device_name", "dtype", "block_shape")
_ORDER = (
    *("E", "headdim", "N", "K", "dstate", "device_name"),
    *("dtype", "block_shape", "per_channel_quant", "backend", "cache_dtype"),
)
_DOWN = "_down"
"""End of the names of SGLang's tables for the second product."""


def parse_labels(stem: str) -> dict[str, str]:
    """Parse a table's name without its suffix, `E=8,N=7168,block_shape=[128, 128]`."""
    base = stem.removesuffix(_DOWN)
    pairs = re.findall(r"(\w+)=(\[[^\]]*\]|[^,]*)", base)
    labels = {label: value.replace(" ", "") for label, value in pairs}
    return labels if base == stem else {**labels, "down": "True"}


def format_labels(labels: Mapping[str, str]) -> str:
    """Return a table's name without its suffix; the inverse of `parse_labels`."""
    ordered = [label for label in _ORDER if label in labels]
    text = ",".join(f"{label}={labels[label]}" for label in ordered)
    return text + (_DOWN if labels.get("down") == "True" else "")


def launches_of(labels: Mapping[str, str]) -> tuple[str, dict[str, str]] | None:
    """Return the kernel that a table is for, and what is equal in its launches, as text.

    Args:
        labels: those of the table, without the device's.

    Returns:
        None for a table of another operation.
    """
    function = _kernel_of(labels)
    if function is None:
        return None
    if function not in _LAUNCHED:
        return function, dict(labels)
    sizes = labels.get("block_shape", "[0,0]").strip("[]").split(",")
    blocks = {"group_n": sizes[0], "group_k": sizes[-1]}
    if function != FUSED_MOE:
        return function, {"N": labels["N"], "K": labels["K"], **blocks}
    named = {"E": labels["E"], "N": labels["N"], **blocks}
    named |= {label: value for label, value in labels.items() if label not in _UNDERSTOOD}
    dtype = labels.get("dtype", "")  # a table without a quantization is for launches without one
    for quantized in {*_QUANTIZATIONS, *([dtype] if dtype else [])}:
        named[f"use_{quantized}"] = str(quantized == dtype)
    return function, named


def labels_of(function: str, named: Mapping[str, str]) -> dict[str, str] | None:
    """Return the labels of the table for launches; the inverse of `launches_of`.

    Arguments that tell an expert layer's features and experts per token, which its table does not
    depend on, are left out. Any other argument that no label names could change what is best.

    Args:
        function: the kernel's name.
        named: values of its arguments or labels, as text, with `SIZE` or without.

    Returns:
        None if there is no such table.
    """
    if function not in _LAUNCHED:
        labels = {label: value for label, value in named.items() if label != SIZE}
        return labels if _kernel_of(labels) == function else None
    sizes = [named.get("group_n", "0"), named.get("group_k", "0")]
    blocks = {} if "0" in sizes else {"block_shape": f"[{','.join(sizes)}]"}
    if function in _DTYPES:
        if not blocks or not {"N", "K"} <= named.keys():
            return None
        return {"N": named["N"], "K": named["K"], "dtype": _DTYPES[function], **blocks}
    if not {"E", "N"} <= named.keys():
        return None
    labels = {"E": named["E"], "N": named["N"]}
    for name, value in sorted(named.items()):
        if value == "False" or name in _UNLABELLED:
            continue
        if name.startswith("use_") and value == "True" and "dtype" not in labels:
            labels["dtype"] = name.removeprefix("use_")
        elif name in _FURTHER:
            labels[name] = value
        else:
            return None
    return {**labels, **blocks}


def _kernel_of(labels: Mapping[str, str]) -> str | None:
    """Return the kernel of a table by its labels."""
    names = labels.keys()
    if "lora" in names:
        sizes = names - {"lora"}
        wanted = {name for name in _LORA_SIZES if name != "m"}
        allowed = wanted | ({_EXPERTS} if labels["lora"] in _FUSED else set())
        is_whole = wanted <= sizes <= allowed and all(labels[name].isdecimal() for name in sizes)
        return LORA_KERNELS.get(labels["lora"]) if is_whole else None
    if {"E", "N"} <= names:
        return FUSED_MOE
    if {"N", "K", "block_shape"} <= names:
        return BLOCK_PRODUCTS.get(labels.get("dtype", "fp8_w8a8"))
    return STATE_UPDATE if {"headdim", "dstate"} <= names else None


class LoraLine(NamedTuple):
    """A config of a LoRA file.

    Attributes:
        labels: of its table.
        device: the GPU's name, with underscores for spaces and hyphens.
        size: the batch, as text.
        config: the fields of the config.
    """

    labels: dict[str, str]
    device: str
    size: str
    config: Mapping[str, Any]


def read_lora(stem: str, content: Mapping[str, Any]) -> Iterator[LoraLine]:
    """Yield the configs of a LoRA file; nothing if a file's name is not one of them.

    Raises:
        ValueError: the file has another form.
    """
    match = _LORA_FILE.fullmatch(stem)
    if match is None:
        return
    device, operation = match[1], match[2].lower()
    names = (*_LORA_SIZES, _EXPERTS) if operation in _FUSED else _LORA_SIZES
    for sizes, config in _walk(content, (), len(names)):
        labels = {"lora": operation, **dict(zip(names, sizes, strict=False))}
        yield LoraLine(labels, device, labels.pop("m"), config)


def _walk(
    content: Any, sizes: tuple[str, ...], most: int
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield the configs at the leaves, with the sizes that lead to them."""
    if not isinstance(content, dict) or not content:
        raise ValueError("a table of LoRA has a config for each of its sizes")
    if all(key.isdecimal() for key in content) and len(sizes) < most:
        for key, inner in content.items():
            yield from _walk(inner, (*sizes, key), most)
    elif len(sizes) >= len(_LORA_SIZES):
        yield sizes, content
    else:
        raise ValueError(f"a table of LoRA has sizes at {len(_LORA_SIZES)} levels")


TableValue = int | str | None
"""Value of a parameter in a table."""

_REGISTER_MODES = ("128", "256", "auto", "default")
"""Values of `grf_mode`, which is an option of Intel's compiler."""

_LARGEST = 1 << 16
"""Largest value of a parameter in a table."""

_NAMES = frozenset(
    {"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "SPLIT_K"}
    | {"USE_TMA", "SWAP_AB"}  # SGLang's
    | {"block_m", "block_n", "block_k", "group_size_m", "split_k", "max_nreg"}  # LoRA's
    | {"num_warps", "num_stages", "num_ctas"}
    | {"waves_per_eu", "matrix_instr_nonkdim", "kpack"}
)
"""Parameters that a table may set.

An engine launches its kernel with whatever its table says, while a cached kernel takes from a store
only what its author has declared.
"""

_FLAGS = frozenset({"USE_TMA", "SWAP_AB"})
"""Those whose values are flags; `True` is no number of warps."""

_IN_FILE_NAMES = re.compile(r"[\w .,+()\[\]-]*", re.ASCII)
"""What a store may make part of a file's name: nothing that leads to another folder."""

_LONGEST_NAME = 160
"""Characters of the values in a table's name: a file system takes 255, labels and suffix included;
and one that is too long must not keep the other tables from being written."""

_SIZES = re.compile(r"[0-9]{1,18}")

_NEVER = datetime.min.replace(tzinfo=timezone.utc)


class TunedTable(NamedTuple):
    """The best configs of one kernel for launches that differ in their batch size.

    Attributes:
        labels: the labels of its name, without the device.
        device: the GPU's name, with underscores for spaces.
        triton: the version of Triton; empty where it is not known.
        configs: the configs by batch size.
        uncompared: the number of those whose results nobody has compared.
    """

    labels: Mapping[str, str]
    device: str
    triton: str
    configs: Mapping[int, Mapping[str, TableValue]]
    uncompared: int = 0


class _Line(NamedTuple):
    """A config for one line of a table; a record's counts more than an imported one."""

    function: str
    named: Mapping[str, str]
    device: str
    triton: str
    config: Mapping[str, TableValue]
    at: datetime = _NEVER
    is_compared: bool = True


def collect_tables(store: Store) -> list[TunedTable]:
    """Return all tables that a store's records and imported results make, sorted by their names.

    A line of a table is a record that was tuned to its end, or pinned; of several, such as those of
    two versions of the engine, the latest. Imported results make the lines that no record makes.
    """
    lines: dict[tuple[tuple[tuple[str, str], ...], str, str], dict[int, _Line]] = {}
    for line in (*_imported_lines(store), *_recorded_lines(store)):
        labels = labels_of(line.function, line.named)
        size = line.named.get(SIZE, "")
        if labels is None or not _SIZES.fullmatch(size):
            continue
        device = re.sub(r"[ /]+", "_", line.device)  # as vLLM has it in a file's name
        name = "".join((*labels.values(), device, line.triton))
        if not _IN_FILE_NAMES.fullmatch(name) or len(name) > _LONGEST_NAME:
            continue
        table = lines.setdefault((tuple(labels.items()), device, line.triton), {})
        earlier = table.get(int(size))
        if earlier is None or earlier.at < line.at:
            table[int(size)] = line
    return [
        TunedTable(
            dict(labels),
            device,
            triton,
            {size: table[size].config for size in sorted(table)},
            sum(not line.is_compared for line in table.values()),
        )
        for (labels, device, triton), table in sorted(lines.items())
    ]


def _imported_lines(store: Store) -> Iterator[_Line]:
    for function in sorted(FUNCTIONS):
        for result in store.imported(function):
            config = _table_config(result.timings[0].config)
            if config:
                yield _Line(function, result.named, result.device, result.triton, config)


def _recorded_lines(store: Store) -> Iterator[_Line]:
    for context in store.contexts():
        if context.kernel.name.rpartition(".")[2] != FUSED_MOE:
            continue
        device, triton = context.environment.device.name, context.environment.triton
        for record in store.records(context):
            named = {name: str(value) for name, value in record.scenario.args.items()}
            chosen = _chosen(record)
            config = chosen and _table_config(chosen[0], leave_out=("num_ctas", 1))
            if chosen and config:
                yield _Line(FUSED_MOE, named, device, triton, config, *chosen[1:])


def _chosen(record: Record) -> tuple[Config, datetime, bool] | None:
    """Return the config of a record that was tuned to its end, or pinned; when; and if compared."""
    if record.pin is not None and record.pin.config is not None:
        return record.pin.config, record.pin.at, True
    if record.winner is None:
        return None
    best = winner(record, record.by_config)
    is_compared = record.winner.is_compared and best == record.winner.config
    return None if best is None else (best, record.winner.at, is_compared)


def _table_config(
    config: Config, leave_out: tuple[str, int] | None = None
) -> dict[str, TableValue] | None:
    """Return a config as tables have it, or None if a table must not set one of its values.

    Args:
        config: the config.
        leave_out: an option that `triton.Config` always sets, and tables only where it differs.
    """
    allowed: dict[str, TableValue] = {}
    for name, value in {**config.params, **config.options}.items():
        if isinstance(value, float) or not _is_allowed(name, value):
            return None
        if (name, value) != leave_out:
            allowed[name] = value
    return allowed or None


def _is_allowed(name: str, value: TableValue) -> bool:
    if name in _NAMES and isinstance(value, int) and 0 <= value <= _LARGEST:
        return name in _FLAGS or not isinstance(value, bool)
    return (name == "grf_mode" and value in _REGISTER_MODES) or (name, value) == ("max_nreg", None)


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
            name = f"{table.device}_{table.labels['lora'].upper()}.json"
            _nest_lines(lora.setdefault(name, {}), table.labels, _lines(table))
            continue
        is_product = "K" in table.labels
        lines = _lines(table)
        if is_product:
            lines = {size: line for size, line in lines.items() if not _FOR_SGLANG & line.keys()}
        stamp = {"triton_version": table.triton} if table.triton and not is_product else {}
        is_int8 = is_product and table.labels.get("dtype") == "int8_w8a8"
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


def _nest_lines(
    content: dict[str, Any], labels: Mapping[str, str], lines: Mapping[str, Any]
) -> None:
    """Add the lines of a table to the content of a LoRA file.

    A table of fused experts may end before its last level, which vLLM reads as well. Where another
    one has that level, the more exact one counts.
    """
    for size, config in lines.items():
        sizes = {**labels, "m": size}
        path = [sizes[name] for name in (*_LORA_SIZES, _EXPERTS) if name in sizes]
        inner = content
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
            if not all(map(str.isdecimal, inner)):  # a config that holds for all sizes below
                inner.clear()
        if not inner.get(path[-1]):
            inner[path[-1]] = config


def fill_slices(name: str, content: Mapping[str, Any]) -> None:
    """Have a file of linear layers serve those of any number of slices, by the nearest number.

    vLLM takes the nearest one of all other sizes, and fails where the number of slices is missing.
    """
    if "_FUSED_" in name:
        return
    for by_slices in content.values():
        numbers = sorted(by_slices, key=int)
        for number in map(str, range(1, _MOST_SLICES + 1)):
            if number not in by_slices:
                nearest = min(numbers, key=lambda other: abs(int(other) - int(number)))
                by_slices[number] = by_slices[nearest]


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
    itself go before those of another kind.
    """
    is_h200 = "E" in table.labels and "H200" in table.device.split("_")
    return "NVIDIA_H200" if is_h200 else table.device


def _lines(table: TunedTable) -> dict[str, dict[str, TableValue]]:
    return {str(size): _sort_fields(config) for size, config in table.configs.items()}


def _sort_fields(config: Mapping[str, TableValue]) -> dict[str, TableValue]:
    first = [name for name in _FIELDS if name in config]
    return {name: config[name] for name in [*first, *sorted(config.keys() - set(first))]}
