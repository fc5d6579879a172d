"""Tables of fused experts for vLLM and SGLang, made from the records of `fused_moe_suite`.

An engine has a file for each layer's shape, quantization and GPU, such as
`E=8,N=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8.json`, with a config for each of several batch
sizes. A cached kernel takes from a store only configs that its author has declared, while an engine
launches whatever its table says: so a table sets nothing but `FIELDS`.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from ..model.record import Record
from ..model.scenario import Config
from ..model.selection import winner
from ..stores import Store
from ..system.safe_files import open_replacement

KERNEL = "fused_moe_kernel"


class KeyArguments(BaseModel):
    """Key arguments of the tuned operation: a layer's sizes, its blocks of scales, its dtype."""

    model_config = ConfigDict(strict=True, extra="forbid")

    M: NonNegativeInt
    N: NonNegativeInt
    K: NonNegativeInt
    E: NonNegativeInt
    top_k: NonNegativeInt
    group_n: NonNegativeInt
    group_k: NonNegativeInt
    use_fp8_w8a8: bool


KEYS = tuple(KeyArguments.model_fields)

FIELDS = (
    *("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "SPLIT_K"),
    *("kpack", "matrix_instr_nonkdim", "num_stages", "num_warps", "waves_per_eu"),
)
"""What a table of either engine may set, in the order of a file."""

LARGEST = 1 << 16
"""Largest value of a field."""

DEVICE_NAME = re.compile(r"[\w.()+-]{1,100}", re.ASCII)
"""A GPU's name as a part of a file's name: nothing that leads to another folder."""


class TableSubject(NamedTuple):
    """What a table is for.

    Attributes:
        experts: number of experts.
        features: features between their two products.
        block: edge of the blocks of float8 weights that share a scale, 0 for one scale per expert;
            None for weights of 16 bits.
        device: the GPU's name, with underscores for spaces.
        triton: the version of Triton.
    """

    experts: int
    features: int
    block: int | None
    device: str
    triton: str

    def name(self, separator: str) -> str:
        """Return the name of a file, in which a separator is between the two edges of a block."""
        name = f"E={self.experts},N={self.features},device_name={self.device}"
        if self.block is not None:
            name += ",dtype=fp8_w8a8"
        if self.block:
            name += f",block_shape=[{self.block}{separator}{self.block}]"
        return f"{name}.json"


class TunedTable(NamedTuple):
    """The best configs for a subject.

    Attributes:
        subject: what the table is for.
        configs: the configs by batch size, with the fields of a table.
        uncompared: the number of those whose results nobody has compared.
        unknown: what no table may set, with the number of configs that are left out for it.
    """

    subject: TableSubject
    configs: Mapping[int, Mapping[str, int]]
    uncompared: int
    unknown: Counter[str]


class _TableLine(NamedTuple):
    config: Config
    at: datetime
    is_compared: bool


def collect_tables(store: Store) -> list[TunedTable]:
    """Return all tables that a store's records make, in order.

    A line of a table is a record that was tuned to its end, or pinned; of several, such as those of
    two versions of the engine, the latest.
    """
    chosen: dict[TableSubject, dict[int, _TableLine]] = defaultdict(dict)
    for context in store.contexts():
        device = re.sub(r"[ /]+", "_", context.environment.device.name)
        is_ours = context.kernel.name.rpartition(".")[2] == KERNEL
        if not is_ours or not DEVICE_NAME.fullmatch(device):
            continue
        for record in store.records(context):
            try:
                keys = KeyArguments.model_validate(record.scenario.args)
            except ValidationError:  # another function of this name
                continue
            subject = _subject_of(keys, device, context.environment.triton)
            line = _line_of(record)
            if subject is not None and line is not None:
                lines = chosen[subject]
                if keys.M not in lines or lines[keys.M].at < line.at:
                    lines[keys.M] = line
    return [_make_table(subject, chosen[subject]) for subject in sorted(chosen, key=str)]


def _subject_of(keys: KeyArguments, device: str, triton: str) -> TableSubject | None:
    """Return the subject of a record; None for blocks that no table has."""
    block = keys.group_n
    if block != keys.group_k or (block and not keys.use_fp8_w8a8):
        return None
    return TableSubject(keys.E, keys.N, block if keys.use_fp8_w8a8 else None, device, triton)


def _line_of(record: Record) -> _TableLine | None:
    """Return the config of a record that was tuned to its end, or pinned."""
    if record.pin is not None and record.pin.config is not None:
        return _TableLine(record.pin.config, record.pin.at, is_compared=True)
    best = winner(record, record.by_config)
    if record.winner is None or best is None:
        return None
    is_compared = record.winner.is_compared and best == record.winner.config
    return _TableLine(best, record.winner.at, is_compared)


def _make_table(subject: TableSubject, lines: Mapping[int, _TableLine]) -> TunedTable:
    configs: dict[int, dict[str, int]] = {}
    uncompared, unknown = 0, Counter[str]()
    for size, line in sorted(lines.items()):
        values = line.config.values
        if values.get("num_ctas") == 1:  # `triton.Config` always has it, and tables never
            del values["num_ctas"]
        allowed = {
            name: value
            for name in FIELDS
            if type(value := values.get(name)) is int and 0 <= value <= LARGEST
        }
        unknown.update(values.keys() - allowed.keys())
        if allowed.keys() == values.keys():
            configs[size] = allowed
            uncompared += not line.is_compared
    return TunedTable(subject, configs, uncompared, unknown)


TableFiles = dict[str, Mapping[str, Any]]
"""Contents of files by their paths within an engine's folder."""


def vllm_files(tables: Iterable[TunedTable], version: str) -> TableFiles:
    """Return a Triton version's files for the folder that `VLLM_TUNED_CONFIG_FOLDER` names.

    vLLM has one name for all kinds of H200. The tables of the kind that has this name itself come
    last, so that they stay.
    """
    files: TableFiles = {}
    for table in sorted(tables, key=lambda table: table.subject.device == "NVIDIA_H200"):
        subject = table.subject
        if subject.triton == version and table.configs:
            if "H200" in subject.device.split("_"):
                subject = subject._replace(device="NVIDIA_H200")
            files[subject.name(",")] = {"triton_version": version, **_lines(table)}
    return files


def sglang_files(tables: Iterable[TunedTable], version: str) -> TableFiles:
    """Return the files for the folder that `SGLANG_MOE_CONFIG_DIR` names, of one Triton or of all.

    SGLang looks in the folder of its own version of Triton first, then in all others. It stops at a
    folder whose name has more than numbers, so that tables of 3.4.0+git are in that of 3.4.0,
    unless there is one of 3.4.0 itself.
    """
    files: TableFiles = {}
    for table in sorted(tables, key=lambda table: len(table.subject.triton), reverse=True):
        subject = table.subject
        release = re.match(r"\d+(\.\d+)*", subject.triton, re.ASCII)
        if release and version in ("", subject.triton) and table.configs:
            folder = f"configs/triton_{release[0].replace('.', '_')}"
            files[f"{folder}/{subject.name(', ')}"] = _lines(table)
    return files


TABLE_FILES = {"vllm": vllm_files, "sglang": sglang_files}
"""The files of each engine's tables: `(tables, version of Triton)`."""


def _lines(table: TunedTable) -> dict[str, Mapping[str, int]]:
    return {str(size): config for size, config in table.configs.items()}


def write_table(name: str, content: Mapping[str, Any], folder: Path) -> Path:
    """Write a file into a folder as a whole, and return its path; no link below is followed.

    Raises:
        OSError: the file cannot be written.
    """
    path = folder / name
    with open_replacement(path, folder) as out:
        out.write((json.dumps(content, indent=4) + "\n").encode())
    return path
