"""Tuned tables of engines, made from the records and imported results of a store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import NamedTuple

from ..model.foreign_result import ForeignResult
from ..model.record import Record
from ..model.scenario import Config, Context, Scalar
from ..model.selection import winner
from ..stores import Store
from .lora_tables import LORA_KERNELS
from .table_names import FUNCTIONS, SIZE_NAMES, STATE_UPDATE, TableEntry

__all__ = ["TableValue", "TunedTable", "collect_tables"]

TableValue = int | str | None
"""Value of a parameter in a table."""

_REGISTER_MODES = ("128", "256", "auto", "default")
"""Values of `grf_mode`, which is an option of Intel's compiler."""

LARGEST = 1 << 16
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

_SIZE = re.compile(r"[0-9]{1,18}")

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


class _Candidate(NamedTuple):
    """A config for one line of a table; a record's counts more than an imported one."""

    at: datetime
    config: Mapping[str, TableValue]
    is_compared: bool = True


def collect_tables(store: Store) -> list[TunedTable]:
    """Return all tables that a store's records and imported results make, sorted by their names.

    A line of a table is a record that was tuned to its end, or pinned; of several, such as those of
    two versions of the engine, the latest. Imported results make the lines that no record makes.
    """
    lines: dict[tuple[tuple[tuple[str, str], ...], str, str], dict[int, _Candidate]] = {}
    for entry, device, triton, candidate in (*_from_imports(store), *_from_records(store)):
        labels = entry.labels()
        size = entry.named.get(entry.size_name, "")
        if labels is None or not _SIZE.fullmatch(size):
            continue
        device = re.sub(r"[ /]+", "_", device)  # as vLLM has it in a file's name
        name = "".join((*labels.values(), device, triton))
        if not _IN_FILE_NAMES.fullmatch(name) or len(name) > _LONGEST_NAME:
            continue
        key = (tuple(labels.items()), device, triton)
        table = lines.setdefault(key, {})
        earlier = table.get(int(size))
        if earlier is None or earlier.at < candidate.at:
            table[int(size)] = candidate
    return [
        TunedTable(
            dict(labels),
            device,
            triton,
            {size: table[size].config for size in sorted(table)},
            sum(not candidate.is_compared for candidate in table.values()),
        )
        for (labels, device, triton), table in sorted(lines.items())
    ]


_Line = tuple[TableEntry, str, str, _Candidate]


def _from_imports(store: Store) -> Iterator[_Line]:
    for function in FUNCTIONS:
        for result in store.imported(function):
            config = _table_config(result.timings[0].config, ())
            if result.named and config:
                yield _entry(result), result.device, result.triton, _Candidate(_NEVER, config)


def _entry(result: ForeignResult) -> TableEntry:
    return TableEntry(result.function, result.named, SIZE_NAMES[result.function])


def _from_records(store: Store) -> Iterator[_Line]:
    for context in store.contexts():
        function = context.kernel.name.rpartition(".")[2]
        if function in FUNCTIONS:
            environment = context.environment
            for record in store.records(context):
                line = _best(context, record)
                if line is not None:
                    entry = TableEntry(function, _as_text(record), SIZE_NAMES[function])
                    yield entry, environment.device.name, environment.triton, line


def _best(context: Context, record: Record) -> _Candidate | None:
    """Return the config of a record that was tuned to its end, or pinned."""
    if record.pin is not None and record.pin.config is not None:
        chosen, at, is_compared = record.pin.config, record.pin.at, True
    elif record.winner is not None:
        best = winner(record, record.by_config)
        if best is None:
            return None
        chosen, at = best, record.winner.at
        is_compared = record.winner.is_compared and best == record.winner.config
    else:
        return None
    function = context.kernel.name.rpartition(".")[2]
    config = _table_config(chosen, _UNNAMED.get(function, _TRITON_DEFAULTS))
    return _Candidate(at, config, is_compared) if config else None


def _as_text(record: Record) -> dict[str, str]:
    return {name: str(value) for name, value in record.scenario.args.items()}


_TRITON_DEFAULTS = (("num_ctas", 1),)
"""Options that `triton.Config` always sets, and tables only where they differ."""

_UNNAMED: Mapping[str, tuple[tuple[str, Scalar], ...]] = {
    **dict.fromkeys(LORA_KERNELS.values(), ()),
    STATE_UPDATE: (*_TRITON_DEFAULTS, ("num_stages", 3)),
}
"""Such options of kernels whose tables set others: LoRA's all, those of states only the warps."""


def _table_config(
    config: Config, unnamed: Iterable[tuple[str, Scalar]]
) -> dict[str, TableValue] | None:
    """Return a config as tables have it, or None if a table must not set one of its values."""
    fields = {**config.params, **config.options}
    for name, value in unnamed:
        if fields.get(name) == value:
            del fields[name]
    allowed: dict[str, TableValue] = {}
    for name, value in fields.items():
        if isinstance(value, float) or not _is_allowed(name, value):
            return None
        allowed[name] = value
    return allowed or None


def _is_allowed(name: str, value: TableValue) -> bool:
    if name in _NAMES and isinstance(value, int) and 0 <= value <= LARGEST:
        return name in _FLAGS or not isinstance(value, bool)
    return (name == "grf_mode" and value in _REGISTER_MODES) or (name, value) == ("max_nreg", None)
